"""Where a trained model looked: w, v and the attention weights of every head for one text."""

from typing import Any

import torch
from torch import Tensor, nn

from datransformer.data.batches import TextBatches
from datransformer.data.encode import encode_columns
from datransformer.experiments.heads import watched
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.serve.answers import answer_rows
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Worker

TOKENS = 48  # of a sequence that are shown
SEQUENCES = 8  # of a module that are shown, if they are sentences of a document
DIGITS = 5


@torch.no_grad()
def explain(run: Run, text: str, pair: str | None = None, *, worker: Worker = ALONE) -> dict[str, Any]:
    """The answer to a text, and for every attention module and head w, v, near or far, and its attention weights.

    Weights are those of the whole text; given are those among the first `TOKENS` tokens of the first `SEQUENCES`
    sequences, so that a row adds up to 1 unless something is cut. At the sentence level of a document a token is the
    number of a sentence.

    Args:
        run: The trained run, of any task but recommend.
        text: The text.
        pair: Its second text, for a run of the task pair.
        worker: Where the model is.
    """
    row = (text,) if pair is None else (text, pair)
    columns = [[part] for part in row]
    examples, _ = encode_columns(columns, shape=run.config.shape, tokenizer=run.tokenizer, config=run.config.data)
    inputs = TextBatches(examples, run.config.shape).batch(examples.rows - 1, ()).inputs
    inputs = {name: tensor.to(worker.device) for name, tensor in inputs.items()}
    weights: dict[str, list[Tensor]] = {}

    def see(name: str, seen: Tensor, padding: Tensor | None) -> None:
        weights.setdefault(name, []).extend(seen[:SEQUENCES])

    words = [tensor for name, tensor in inputs.items() if name != "sentences"]
    with watched(run.model, see):
        for tokens in words:  # one by one: the whole model takes the sentences of a document in another order
            run.model.get_submodule("text")(tokens)
    spelled = [[run.tokenizer.words[token] for token in row if token] for part in words for row in part.tolist()]
    sequences = dict.fromkeys(weights, spelled)
    if "sentences" in inputs:
        with watched(run.model.get_submodule("document"), lambda name, *seen: see(f"document.{name}", *seen)):
            run.model(**inputs)
        numbers = [str(number) for number in range(1, len(spelled) + 1)]
        sequences.update({name: [numbers] for name in weights if name not in sequences})
    return {
        **answer_rows(run, [row], worker)[0],
        "cut": any(len(lists) > SEQUENCES or max(map(len, lists)) > TOKENS for lists in sequences.values()),
        "modules": [_describe(run.model, name, sequences[name], weights[name]) for name in weights],
    }


def _describe(model: nn.Module, name: str, sequences: list[list[str]], weights: list[Tensor]) -> dict[str, Any]:
    """One module: what of each sequence is shown, and its heads."""
    shown = [sequence[:TOKENS] for sequence in sequences[:SEQUENCES]]
    values = [
        tensor[:, : len(sequence), : len(sequence)].double().cpu().numpy().round(DIGITS).tolist()
        for tensor, sequence in zip(weights, shown, strict=False)
    ]  # of each sequence [H, N, N]
    module = model.get_submodule(name)
    heads = []
    for head in range(len(values[0])):
        w = v = None
        if isinstance(module, DistanceAwareAttention):
            w, v = module.distance_weight[head].item(), module.distance_shift[head].item()
        looks = None if not w else "near" if w < 0 else "far"
        heads.append({"w": w, "v": v, "looks": looks, "attention": [sequence[head] for sequence in values]})
    return {"name": name, "sequences": shown, "heads": heads}
