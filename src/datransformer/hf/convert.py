"""A run directory to a folder that ``from_pretrained`` and ``pipeline`` read."""

from pathlib import Path

import torch
from torch import Tensor

from datransformer.data.errors import InputError
from datransformer.hf.card import model_card
from datransformer.hf.configuration import DATransformerConfig
from datransformer.hf.modeling import DATransformerForSequenceClassification
from datransformer.hf.tokenizer import convert_tokenizer
from datransformer.models.heads import RatingHead
from datransformer.models.sentence import SentenceModel
from datransformer.train.run import TOKENIZER, Run, load_run


def export_hf(run_folder: Path, out: Path) -> None:
    """Write the run's model as `DATransformerForSequenceClassification`, with a fast tokenizer and a model card.

    `datransformer.export.export_run` does this and also holds the folder against the run.

    Args:
        run_folder: A run directory of the task ``sentence``, or ``pair`` in its joint form.
        out: A folder that is empty or not there yet.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is there already, expected an empty folder or a new name")
    run = load_run(run_folder)
    if not isinstance(run.model, SentenceModel):
        raise InputError(
            f"{run_folder}: the task is {run.config.task!r}, which transformers has no counterpart of, "
            "expected 'sentence', or 'pair' with model.pair = 'joint'"
        )
    tokenizer, moved = convert_tokenizer(run_folder / TOKENIZER, run.config.data.max_length)
    classes = run.labels.classes
    config = DATransformerConfig.from_parts(
        run.config.model,
        vocab_size=run.tokenizer.size,
        pad_token_id=tokenizer.pad_token_id,
        sep_token_id=tokenizer.sep_token_id,
        id2label={0: "rating"} if classes is None else dict(enumerate(classes)),
        label2id={"rating": 0} if classes is None else {name: number for number, name in enumerate(classes)},
        problem_type="regression" if classes is None else "single_label_classification",
    )
    model = DATransformerForSequenceClassification(config).to(next(run.model.parameters()).dtype)
    model.load_state_dict(convert_weights(run, moved))
    try:
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        (out / "README.md").write_text(model_card(run), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from error


def convert_weights(run: Run, moved: int) -> dict[str, Tensor]:
    """The run's weights under the names of `DATransformerForSequenceClassification`.

    Args:
        run: The run.
        moved: How many word vectors go from the start to the end.
    """
    prefixes = {
        "text.sequence.encoder.": "model.",
        "text.sequence.pooling.": "pooling.",
        "head.": "classifier.",
    }
    model = run.model
    assert isinstance(model, SentenceModel)
    weights = {
        new + name.removeprefix(old): tensor
        for name, tensor in model.state_dict().items()
        for old, new in prefixes.items()
        if name.startswith(old)
    }
    vectors = model.text.vectors(torch.arange(run.tokenizer.size)).detach()  # scaled and projected once and for all
    weights["model.embed_tokens.weight"] = torch.cat((vectors[moved:], vectors[:moved]))
    head = model.get_submodule("head")
    if isinstance(head, RatingHead):  # mean + deviation · (x·w + b) is one linear layer
        for name in ("mean", "deviation", "linear.weight", "linear.bias"):
            del weights[f"classifier.{name}"]
        weights["classifier.weight"] = head.deviation * head.linear.weight.detach()
        weights["classifier.bias"] = head.mean + head.deviation * head.linear.bias.detach()
    return weights
