"""A folder for Hugging Face's transformers, held against the run from the text on."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from datransformer.data.errors import InputError
from datransformer.export.check import check_difference
from datransformer.export.samples import SHAPES, draw_texts
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.run import load_run
from datransformer.train.tasks import Answers

Answer = Callable[[Sequence[list[str]]], Answers]


def export_hf(run_folder: Path, out: Path) -> str:
    """Write a run as a folder that ``from_pretrained`` and ``pipeline`` read, loaded again and held against the run."""
    if find_spec("transformers") is None:
        raise InputError("--to hf: needs transformers: pip install datransformer[hf]")
    from datransformer.hf.convert import export_hf as convert  # slow to import

    began, run, worst = time.monotonic(), load_run(run_folder), 0.0
    with _quiet():
        convert(run_folder, out)
        for weights in out.glob("*.safetensors"):  # which nobody else may read, unlike what lies beside them
            weights.chmod((out / "config.json").stat().st_mode)
        answer = _load(out, rating=run.config.rating)
    for shape in SHAPES:
        sides = draw_texts(run, shape)
        expected = answer_rows(run, rows_of_texts(*sides), labelled=False).answers
        asked = f"{shape.batch} texts of up to {shape.length} words"
        worst = max(worst, check_difference("the folder", asked, answer(sides), expected))
    return (
        f"{', '.join(sorted(path.name for path in out.iterdir()))}: {len(SHAPES)} batches as torch answers them, "
        f"largest difference {worst:.1e}, {time.monotonic() - began:.1f} s; "
        "where it is loaded, import datransformer.hf first"
    )


def _load(folder: Path, *, rating: bool) -> Answer:
    """What another program gets from the folder: probabilities [texts, classes], or ratings [texts]."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)

    @torch.no_grad()
    def answer(sides: Sequence[list[str]]) -> Answers:
        logits = model(**tokenizer(*sides, padding=True, return_tensors="pt")).logits  # [B, C]
        answers: Answers = (logits.squeeze(-1) if rating else logits.softmax(-1)).float().numpy()
        return answers

    return answer


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
