"""Every task shape learns a task that chance cannot solve."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.train.conftest import Bench

BIG = {"model_heads": 4, "model_head_dim": 8, "model_embed_dim": 32, "model_feedforward_dim": 32}
Rows = list[tuple[object, ...]]


def words(random: np.random.Generator, count: int) -> list[str]:
    return [f"w{word}" for word in random.integers(0, 20, count)]


def rated(random: np.random.Generator) -> tuple[object, ...]:
    """The rating is how often the word good is said."""
    good = int(random.integers(0, 5))
    text = words(random, 6) + ["good"] * good
    return " ".join(random.permutation(text)), 1 + good


def related(random: np.random.Generator) -> tuple[object, ...]:
    """Whether the two texts are about the same colour."""
    first, second = random.integers(0, 3, 2)
    if random.integers(2):
        second = first
    one, two = ([*words(random, 3), ("red", "green", "blue")[colour]] for colour in (first, second))
    return " ".join(random.permutation(one)), " ".join(random.permutation(two)), "yes" if first == second else "no"


def reviewed(random: np.random.Generator) -> tuple[object, ...]:
    """One sentence of several says what it is about."""
    label = int(random.integers(2))
    sentences = [" ".join(words(random, int(random.integers(1, 5)))) for _ in range(int(random.integers(0, 4)))]
    sentences.append(f"it is {('bad', 'fine')[label]}")
    return " . ".join(random.permutation(sentences)), "np"[label]


def drawn(bench: "Bench", draw: Callable[[np.random.Generator], tuple[object, ...]], *header: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    rows: Rows = [draw(random) for _ in range(1500)]
    names = (*header, "label")
    train, dev = bench.csv("t.csv", rows[:1300], names), bench.csv("d.csv", rows[1300:], names)
    return {"files_train": [train], "files_dev": dev}


def learned(bench: "Bench", steps: int = 100, **settings: Any) -> float:
    """The best dev metric."""
    chosen = {"train_steps": steps, "train_epochs": 100, "train_batch_size": 32, "train_schedule": "cosine", **BIG}
    config = bench.config(**{**chosen, "train_lr": 0.01, "train_evaluate_every": steps, **settings})
    result = bench.fit(config)
    assert result["steps"] == steps
    return float(next(iter(result["metrics"]["dev"].values())))


def test_the_probe(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot tell distances is right about 64 % of the time."""
    monkeypatch.setattr("datransformer.train.fit.PROBE_ROWS", 8000)
    settings: dict[str, Any] = {"files_train": [], "files_dev": None, "files_dataset": "probe", "train_batch_size": 64}
    assert learned(bench, 120, **settings, model_heads=8) > 0.9


def test_ratings(bench: "Bench") -> None:
    """Predicting the mean is off by √2: the ratings are 1 to 5, all as frequent."""
    assert learned(bench, **drawn(bench, rated, "text"), model_head="rating") < 0.5


@pytest.mark.parametrize("pair", ["joint", "siamese"])
def test_pairs(bench: "Bench", pair: str) -> None:
    files = drawn(bench, related, "text", "other")
    settings = {"data_text_pair_column": "other", "model_pair": pair, "task": "pair"}
    assert learned(bench, 200, **files, **settings) > 0.9


def test_documents(bench: "Bench") -> None:
    assert learned(bench, 60, **drawn(bench, reviewed, "text"), task="document") > 0.9


def test_ratings_of_documents(bench: "Bench") -> None:
    """The ratings are 1 and 5: predicting the mean is off by 2."""

    def starred(random: np.random.Generator) -> tuple[object, ...]:
        text, label = reviewed(random)
        return text, {"n": 1, "p": 5}[str(label)]

    assert learned(bench, **drawn(bench, starred, "text"), task="document", model_head="rating") < 0.7


def test_tastes(bench: "Bench") -> None:
    """A fifth of the users have read nothing, so the best AUC is about 0.9."""
    files = bench.news(300, taste=True)
    settings = {"task": "recommend", "files_train": list(files.train), "files_dev": files.dev}
    assert learned(bench, 80, **settings, rows=300) > 0.8


def test_the_rate_of_chance(bench: "Bench") -> None:
    """Labels that follow from nothing are not learned: dev is not seen in training."""
    random = np.random.default_rng(1)
    rows: Rows = [(" ".join(words(random, 5)), "ab"[random.integers(2)]) for _ in range(700)]
    files = {"files_train": [bench.csv("t.csv", rows[:400])], "files_dev": bench.csv("d.csv", rows[400:])}
    assert learned(bench, 100, **files) < 0.62
