import csv
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datransformer.data.config import DataConfig
from datransformer.models.config import ModelConfig
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.fit import fit

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]

WORDS = [
    *["the", "film", "is", "fine", "dull"],
    "n't",
    "it",
    "'s",
    "u.s.",
    "1,000.5",
    "o'neill",
    "café",
    "中文",
    *",.![]",
    "pad",
    "sep",
]


@dataclass
class Runs:
    """Small runs on texts by chance."""

    folder: Path

    def texts(self, rows: int, seed: int) -> list[str]:
        random = np.random.default_rng(seed)
        return [" ".join(random.choice(WORDS, random.integers(1, 13))) for _ in range(rows)]

    def fit(
        self,
        *,
        task: str = "sentence",
        labels: tuple[str, ...] = ("good", "bad", "ugly"),
        data: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        **train: Any,
    ) -> Path:
        """Train and return the run directory."""
        header, rows = ["text", "label"], [[text] for text in self.texts(31, 0)]
        if task == "pair":
            header = ["text", "second", "label"]
            rows = [[*row, text] for row, text in zip(rows, self.texts(31, 1), strict=True)]
        path = self.folder / "train.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            labelled = ([*row, labels[number % len(labels)]] for number, row in enumerate(rows))
            csv.writer(file).writerows([header, *labelled])
        settings: dict[str, Any] = {"text_pair_column": "second"} if task == "pair" else {}
        config = RunConfig(
            task=task,
            files=FileConfig(train=(str(path),), dev=str(path)),
            data=DataConfig(**{"max_length": 11, **settings, **(data or {})}),
            model=ModelConfig(
                **{"heads": 3, "head_dim": 5, "embed_dim": 7, "feedforward_dim": 11, "layers": 2, **(model or {})}
            ),
            train=TrainConfig(**{"batch_size": 5, "epochs": 2, "lr": 0.03, **train}),
        )
        folder = self.folder / "run"
        fit(config, folder, cache=self.folder / "cache", device="cpu")
        return folder


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture
def small() -> Callable[..., Any]:
    """Settings of a small model, axes of different primes."""
    from datransformer.hf import DATransformerConfig

    def build(**settings: Any) -> Any:
        return DATransformerConfig(
            **{
                "vocab_size": 31,
                "hidden_size": 14,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "head_dim": 5,
                "intermediate_size": 11,
                **settings,
            }
        )

    return build
