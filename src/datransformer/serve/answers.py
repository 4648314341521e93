"""What a run answers to texts that are in memory."""

from collections.abc import Sequence
from typing import Any

from datransformer.data.encode import encode_columns
from datransformer.train.predict import spell_answer
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Worker, answer_texts


def answer_rows(run: Run, rows: Sequence[Sequence[str]], worker: Worker = ALONE) -> list[dict[str, Any]]:
    """What `datransformer predict` answers, without its files on the way.

    Args:
        run: The trained run, its model on the worker's device.
        rows: Texts that are not empty, or pairs of them.
        worker: Where to compute.
    """
    columns = list(zip(*rows, strict=True))
    examples, cut = encode_columns(columns, shape=run.config.shape, tokenizer=run.tokenizer, config=run.config.data)
    answers = answer_texts(run.model, examples, run.config, worker)
    return [_as_dict(run, answer, bool(lost)) for answer, lost in zip(answers, cut, strict=True)]


def _as_dict(run: Run, answer: Any, truncated: bool) -> dict[str, Any]:
    best, *values = spell_answer(run.labels, answer)
    classes = run.labels.classes
    named = None if classes is None else dict(zip(classes, values, strict=True))
    return {"prediction": best, "probabilities": named, "truncated": truncated}
