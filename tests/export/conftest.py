from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from datransformer.data.encode import Labels
from datransformer.data.tokenizer import TextTokenizer, WordTokenizer
from datransformer.models.build import build_model
from datransformer.train.checkpoint import save_tensors
from datransformer.train.config import RunConfig, from_dict, to_dict
from datransformer.train.run import WEIGHTS, finish_folder, start_folder

WORDS = [*(f"w{number}" for number in range(23)), ".", "n't", "café", "don"]
MakeRun = Callable[..., Path]


def write_run(
    folder: Path,
    *,
    task: str = "sentence",
    words: Sequence[str] = WORDS,
    tokenizer: TextTokenizer | None = None,
    **settings: Any,
) -> Path:
    """A run that nobody trained, far from how models start; settings by dotted name with _ for the point."""
    values = to_dict(RunConfig(task=task))
    values["model"] |= {"layers": 1, "heads": 3, "head_dim": 4, "embed_dim": 10, "width": 12, "feedforward_dim": 11}
    for name, value in settings.items():
        group, _, key = name.partition("_")
        values[group][key] = value
    config = from_dict(RunConfig, values, "config")
    tokenizer = tokenizer or WordTokenizer(words)
    labels = Labels(None if task == "recommend" or config.rating else ("bad", "good", "so-so"))
    start_folder(folder, config, tokenizer, labels, "none")
    model = build_model(task, tokenizer.size, len(labels.classes or ()), config.model)
    if config.train.precision == "64-true":
        model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    save_tensors(folder / WEIGHTS, model.state_dict())
    finish_folder(folder, {})
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return lambda **settings: write_run(tmp_path / "run", **settings)
