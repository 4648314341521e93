"""A running mean of weights: by hand, as what a run evaluates and keeps, and over a stop."""

import itertools
import operator
import signal
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load
from torch import nn

from datransformer.train import average, loop
from datransformer.train.average import Average
from datransformer.train.config import TrainConfig
from datransformer.train.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.train.conftest import Bench


def test_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    keep = 0.8
    mean = Average(model, keep)
    weights = {3: 8.0, 4: 4.0, 9: 0.0, 11: 1.0}  # by the step after which they are looked at
    seen: list[float] = []  # of every step, what stands for it
    for step, weight in weights.items():
        nn.init.constant_(model.weight, weight)
        mean.add(step)
        seen += [weight] * (step - len(seen))
        counts = [keep ** (step - one) for one in range(1, step + 1)]
        expected = sum(map(operator.mul, counts, seen)) / sum(counts)
        assert mean.means["weight"].item() == pytest.approx(expected)
    with mean.in_place():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 1.0


@pytest.mark.parametrize(("keep", "every"), [(0.5, 1), (0.9, 1), (0.99, 10), (0.9999, 25)])
def test_when_it_is_due(keep: float, every: int) -> None:
    mean = Average(nn.Linear(1, 1), keep)
    assert [step for step in range(1, 60) if mean.is_due(step)] == [*range(every, 60, every)]
    assert mean.is_due(7, at_once=True)
    mean.add(7)
    assert not mean.is_due(7, at_once=True)
    assert not Average(nn.Linear(1, 1), 0.0).is_due(25, at_once=True)


def test_without_any_there_is_nothing_to_put_in_place_and_what_is_frozen_stays_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    model[1].requires_grad_(True)
    mean = Average(model, 0.9)
    before = [parameter.clone() for parameter in model.parameters()]
    with mean.in_place():
        assert all(map(torch.equal, model.parameters(), before))
    mean.add(1)
    assert set(mean.means) == {"1.weight", "1.bias"}


def test_weights_come_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    mean = Average(model, 0.9)
    mean.add(1)
    nn.init.constant_(model.weight, 5.0)
    with pytest.raises(KeyError), mean.in_place():
        raise KeyError
    assert model.weight.item() == 5.0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many steps are between two looks where a mean keeps 0.8."""
    monkeypatch.setattr(average, "OFTEN", 2.5)
    return 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_keeps_the_mean(bench: "Bench", often: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its last steps if all that it evaluates is the end."""
    monkeypatch.setattr(loop, "LEAST_ROWS", 1 if waits else 10**9)
    monkeypatch.setattr(loop, "ROWS_PER_TOKEN", 0)
    weights = []
    put = Average.add

    def add(mean: Average, step: int) -> None:
        put(mean, step)
        weights.append({name: weight.detach().clone() for name, weight in mean._weights.items()})

    monkeypatch.setattr(Average, "add", add)
    config = bench.config(train_average=0.8, train_steps=8, train_evaluate_every=8)
    bench.fit(config)
    assert len(weights) == 4
    mean = weights[0]
    for count, one in enumerate(weights[1:], 2):
        share = (1 - 0.8**often) / (1 - 0.8 ** (often * count))
        mean = {name: (1 - share) * value + share * one[name] for name, value in mean.items()}
    kept = load(bench.weights())
    torch.testing.assert_close({name: kept[name] for name in mean}, mean)
    assert bench.lines()[-1]["step"] == 8


def test_rows_that_wait_are_in_the_mean_as_dense_ones_are(
    bench: "Bench", often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    monkeypatch.setattr(loop, "ROWS_PER_TOKEN", 0)
    for name, least in (("waits", 1), ("dense", 10**9)):
        monkeypatch.setattr(loop, "LEAST_ROWS", least)
        bench.fit(bench.config(train_average=0.8, train_steps=8, train_evaluate_every=8), name)
        kept.append(load(bench.weights(name)))
    torch.testing.assert_close(*kept, atol=1e-5, rtol=0)


def test_a_run_that_evaluates_more_often_has_other_weights_each_time(bench: "Bench") -> None:
    """Or its patience would end with evaluations of the same mean; and short runs have one too."""
    for keep, name in ((0.0, "plain"), (0.9, "mean")):
        bench.fit(bench.config(train_average=keep, train_steps=9, train_evaluate_every=2), name)
    assert bench.weights("plain") != bench.weights("mean")
    seen = []
    put = Average._put

    def watch(mean: Average, values: "Mapping[str, torch.Tensor]") -> None:
        if values is mean.means:
            seen.append(torch.cat([value.flatten() for value in values.values()]))
        put(mean, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Average, "_put", watch)
        bench.fit(bench.config(train_average=0.9, train_steps=9, train_evaluate_every=2), "watched")
    assert len(seen) == 5
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(seen))


def test_it_changes_what_is_evaluated_and_not_how_weights_are_trained(bench: "Bench", often: int) -> None:
    losses, scores = [], []
    for name, keep in (("plain", 0.0), ("mean", 0.9)):
        bench.fit(bench.config(train_average=keep), name)
        losses.append([line["loss"] for line in bench.lines(name) if "loss" in line])
        scores.append(bench.weights(name))
    assert losses[0] == losses[1]
    assert scores[0] != scores[1]


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_run_that_is_stopped_goes_on_bit_for_bit(bench: "Bench", often: int, stop: int) -> None:
    config = bench.config(train_average=0.8, train_checkpoint_every=3, train_evaluate_every=5, train_steps=13)
    bench.fit(config, "whole")
    with pytest.raises(Interrupted):
        bench.fit(config, on_step=lambda step: signal.raise_signal(signal.SIGINT) if step == stop else None)
    bench.fit(config, resume=True)
    assert bench.weights() == bench.weights("whole")
    assert bench.lines() == bench.lines("whole")


@pytest.mark.parametrize("keep", [-0.1, 1.0, float("nan")])
def test_a_share_is_from_0_to_below_1(keep: float) -> None:
    with pytest.raises(ValueError, match=r"average: got .*, expected a number from 0 to below 1"):
        TrainConfig(average=keep)
