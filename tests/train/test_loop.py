"""The loop against a few lines of plain torch, and against the formulas that its settings stand for."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.nn import functional as F

from datransformer.data.batches import TextBatches, plan_batches
from datransformer.data.errors import InputError
from datransformer.data.prepare import TextData, no_progress
from datransformer.models.build import build_model
from datransformer.train import loop as loop_module
from datransformer.train.config import RunConfig
from datransformer.train.fit import load_data
from datransformer.train.tasks import TextTask

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def by_hand(
    bench: "Bench", config: RunConfig, groups: list[list[list[int]]], clip: float
) -> tuple[nn.Module, list[float]]:
    """Train on rows given by number, each group of batches as one large batch without any bookkeeping."""
    data = load_data(config, bench.folder / "cache", no_progress)
    assert isinstance(data, TextData)
    examples = data.splits["train"]
    assert examples.labels is not None
    torch.manual_seed(config.train.seed)
    model = build_model("sentence", data.tokenizer.size, 2, config.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.lr)
    losses = []
    for group in groups:
        rows = [row for batch in group for row in batch]
        batch = TextBatches(examples, "sentence").batch(np.array(rows), ())
        loss = F.cross_entropy(model(**batch.inputs), torch.tensor(examples.labels[rows]).long())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Fixed batches of unequal size for training; those of evaluation are left as they are."""
    fixed = [[0, 5, 9], [7], [3, 1, 4, 12, 2], [8, 6], [11, 10]]

    def planned(sizes: Any, **options: Any) -> Any:
        return [np.array(batch) for batch in fixed] if "order" in options else plan_batches(sizes, **options)

    monkeypatch.setattr(loop_module, "plan_batches", planned)
    return fixed


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_group_of_batches_is_one_large_batch(
    bench: "Bench", plan: list[list[int]], accumulate: int, clip: float
) -> None:
    config = bench.config(rows=13, train_accumulate=accumulate, train_epochs=2, train_clip=clip)
    last: dict[str, torch.Tensor] = {}
    models: list[nn.Module] = []
    start = TextTask.start

    def watch(task: TextTask, model: nn.Module) -> None:
        models.append(model)
        start(task, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextTask, "start", watch)
        bench.fit(config, on_step=lambda step: last.update({n: t.clone() for n, t in models[0].state_dict().items()}))
    groups = [plan[start : start + accumulate] for start in range(0, len(plan), accumulate)] * 2
    model, losses = by_hand(bench, config, groups, clip)
    assert bench.losses() == pytest.approx(losses, abs=2e-5)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(last[name], tensor, rtol=0, atol=2e-4)


def test_clipping_clips(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def watch(optimizer: torch.optim.AdamW, *arguments: Any) -> Any:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients)))
        return step(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", watch)
    bench.fit(bench.config(train_clip=0.0), "free")
    free = norms[:]
    norms.clear()
    clip = sorted(free)[len(free) // 2]
    bench.fit(bench.config(train_clip=clip), "clipped")
    assert max(free) > clip
    assert max(norms) <= clip * 1.0001
    assert norms[0] == pytest.approx(min(free[0], clip), rel=1e-4)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_the_rate_is_as_the_formula_says(bench: "Bench", schedule: str, warmup: int) -> None:
    config = bench.config(train_schedule=schedule, train_warmup=warmup, train_lr=0.02, train_steps=11)
    used: list[float] = []
    step = torch.optim.AdamW.step

    def watch(optimizer: torch.optim.AdamW, *arguments: Any) -> Any:
        used.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", watch)
        bench.fit(config)
    expected = []
    for number in range(1, 12):
        if number <= warmup:
            expected.append(0.02 * number / warmup)
        elif schedule == "constant":
            expected.append(0.02)
        else:
            expected.append(0.01 * (1 + math.cos(math.pi * (number - 1 - warmup) / (11 - warmup))))
    assert used == pytest.approx(expected)
    assert [line["lr"] for line in bench.lines() if "lr" in line] == pytest.approx(expected)


class Scripted:
    """Dev metrics as a list says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: list[float], name: str = "accuracy") -> None:
        self.weights: list[dict[str, torch.Tensor]] = []
        self.steps = 0
        self.values: Iterator[float] = iter(values)
        self.name = name
        monkeypatch.setattr(TextTask, "evaluate", self.evaluate)

    def evaluate(self, model: nn.Module, *others: object) -> dict[str, float]:
        self.weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {self.name: next(self.values), "other": 0.0}


@pytest.mark.parametrize(
    ("values", "patience", "evaluations", "best"),
    [
        ([0.1, 0.3, 0.2, 0.2, 0.9], 2, 4, 2),
        ([0.1, 0.3, 0.2, 0.4, 0.4, 0.9], 1, 3, 2),
        ([0.5, 0.5, 0.5, 0.9], 2, 3, 1),  # as good is not better
        ([0.1, 0.3, 0.2, 0.2, 0.2], None, 5, 2),
    ],
)
def test_patience_and_the_best_weights(
    bench: "Bench",
    monkeypatch: pytest.MonkeyPatch,
    values: list[float],
    patience: int | None,
    evaluations: int,
    best: int,
) -> None:
    scripted = Scripted(monkeypatch, values)
    config = bench.config(train_epochs=5, train_patience=patience, rows=13)
    result = bench.fit(config)
    assert len(scripted.weights) == evaluations
    assert result["steps"] == 3 * evaluations
    assert result["epochs"] == evaluations
    assert result["best_step"] == 3 * best
    assert result["metrics"]["dev"] == {"accuracy": values[best - 1], "other": 0.0}
    saved = load(bench.weights())
    assert all(torch.equal(tensor, saved[name]) for name, tensor in scripted.weights[best - 1].items())
    assert [line["step"] for line in bench.lines() if "dev" in line] == [3 * n for n in range(1, evaluations + 1)]


def test_a_smaller_error_is_better(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, [0.5, 0.2, 0.4], "rmse")
    train, dev = bench.csv("r.csv", [("a", 1), ("b", 2.5)] * 5), bench.csv("s.csv", [("a", 3)])
    result = bench.fit(bench.config(files_train=[train], files_dev=dev, train_epochs=3, model_head="rating"))
    assert result["metrics"]["dev"]["rmse"] == 0.2


def test_the_metric_can_be_another(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(task: TextTask, *others: object) -> dict[str, float]:
        return {"accuracy": next(accuracies), "macro_f1": next(scores)}

    accuracies, scores = iter([0.1, 0.2, 0.3]), iter([0.2, 0.8, 0.5])
    monkeypatch.setattr(TextTask, "evaluate", evaluate)
    assert bench.fit(bench.config(train_epochs=3, train_metric="macro_f1", rows=13))["best_step"] == 6


@pytest.mark.parametrize(
    ("task", "head", "known"),
    [
        ("sentence", "class", "accuracy, macro_f1"),
        ("sentence", "rating", "rmse, mae"),
        ("recommend", "class", "auc, mrr, ndcg@5, ndcg@10"),
    ],
)
def test_an_unknown_metric_is_refused_before_anything_is_written(
    bench: "Bench", task: str, head: str, known: str
) -> None:
    settings: dict[str, Any] = {"task": task, "model_head": head}
    if head == "rating":
        settings["files_train"] = [bench.csv("r.csv", [("a", 1), ("b", 2.5)] * 5)]
        settings["files_dev"] = None
    with pytest.raises(InputError, match=rf"^train\.metric: got 'nope', expected one of: {known}$"):
        bench.fit(bench.config(**settings, train_metric="nope"))
    assert not (bench.folder / "run").exists()
    result = bench.fit(bench.config(**settings, train_epochs=1))
    assert set(known.split(", ")) <= set(result["metrics"]["dev"])


@pytest.mark.parametrize(
    ("settings", "steps", "evaluated", "epochs"),
    [  # 8 steps an epoch
        ({"train_epochs": 2}, 16, [8, 16], 2),
        ({"train_epochs": 2, "train_steps": 3}, 3, [3], 0),
        ({"train_epochs": 2, "train_steps": 8}, 8, [8], 1),
        ({"train_epochs": 2, "train_steps": 11}, 11, [8, 11], 1),
        ({"train_epochs": 2, "train_steps": 16}, 16, [8, 16], 2),
        ({"train_epochs": 2, "train_steps": 100}, 16, [8, 16], 2),
        ({"train_epochs": 2, "train_evaluate_every": 5}, 16, [5, 10, 15, 16], 2),
        ({"train_epochs": 2, "train_evaluate_every": 8}, 16, [8, 16], 2),
        ({"train_epochs": 1, "train_evaluate_every": 50}, 8, [8], 1),
    ],
)
def test_steps_epochs_and_evaluations(
    bench: "Bench", settings: dict[str, Any], steps: int, evaluated: list[int], epochs: int
) -> None:
    result = bench.fit(bench.config(**settings))
    assert (result["steps"], result["epochs"]) == (steps, epochs)
    assert [line["step"] for line in bench.lines() if "dev" in line] == evaluated
    assert [line["step"] for line in bench.lines() if "loss" in line] == list(range(1, steps + 1))
    assert [line["epoch"] for line in bench.lines() if "loss" in line] == [1 + n // 8 for n in range(steps)]


def test_epochs_of_unequal_length_end_where_they_end(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token budget the number of batches depends on the order; `steps` beyond the last epoch changes nothing."""

    def planned(sizes: Any, *, order: tuple[int, int], **options: Any) -> list[Any]:
        return np.array_split(np.arange(len(sizes)), (3, 2, 4)[order[1]])

    monkeypatch.setattr(loop_module, "plan_batches", planned)
    for name, steps in (("whole", None), ("capped", 100)):
        result = bench.fit(bench.config(train_epochs=3, train_steps=steps), name)
        assert (result["steps"], result["epochs"]) == (9, 3)
        assert [line["epoch"] for line in bench.lines(name) if "loss" in line] == [1, 1, 1, 2, 2, 3, 3, 3, 3]
        assert [line["step"] for line in bench.lines(name) if "dev" in line] == [3, 5, 9]


def test_every_row_once_an_epoch_in_another_order(bench: "Bench") -> None:
    seen: list[int] = []
    batch = TextBatches.batch

    def watch(source: TextBatches, indices: Any, key: tuple[int, ...], *share: int) -> Any:
        made = batch(source, indices, key, *share)
        if key:
            seen.extend(made.rows.tolist())
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextBatches, "batch", watch)
        bench.fit(bench.config(train_epochs=2))
    assert sorted(seen[:37]) == sorted(seen[37:]) == list(range(1, 38))
    assert seen[:37] != seen[37:]


def test_a_seed_is_another_run_and_the_same_seed_the_same(bench: "Bench") -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        bench.fit(bench.config(train_seed=seed, model_dropout=0.2), name)
    assert bench.weights("one") == bench.weights("again")
    assert bench.lines("one") == bench.lines("again")
    assert bench.losses("one") != bench.losses("other")


def test_dropout_is_on_in_training_and_off_in_evaluation(bench: "Bench") -> None:
    """Evaluated twice with the same weights, dev is the same; evaluating does not change what comes after."""
    config: dict[str, Any] = {"model_dropout": 0.5, "train_lr": 1e-12, "train_epochs": 3}
    bench.fit(bench.config(**config), "often")
    assert len({str(metrics) for metrics in bench.dev("often")}) == 1
    bench.fit(bench.config(**config, train_evaluate_every=1), "oftener")
    assert bench.losses("often") == bench.losses("oftener")
    bench.fit(bench.config(**{**config, "model_dropout": 0.0}), "without")
    assert bench.losses("often") != pytest.approx(bench.losses("without"), abs=1e-3)


def test_the_mean_of_the_losses_since_the_last_line(bench: "Bench") -> None:
    bench.fit(bench.config(), "each")
    bench.fit(bench.config(train_log_every=3), "thirds")
    each = bench.losses("each")
    assert bench.losses("thirds") == pytest.approx([sum(each[n : n + 3]) / 3 for n in range(0, 15, 3)])
