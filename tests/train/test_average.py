"""A running mean of weights: by hand, as what a run evaluates and keeps, and over a stop."""

import signal
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load
from torch import nn

from datransformer.train import average, loop
from datransformer.train.average import EVERY, Average
from datransformer.train.config import TrainConfig
from datransformer.train.errors import Interrupted

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def test_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    mean = Average(model, 0.5 ** (1 / EVERY))  # half of the mean goes from one that counts to the next
    found = []
    for weight in (8.0, 4.0, 0.0, 1.0):
        nn.init.constant_(model.weight, weight)
        mean.add()
        found.append(mean.means["weight"].item())
    assert found == pytest.approx([8.0, 6.0, 3.0, 2.0])
    with mean.in_place():
        assert model.weight.item() == pytest.approx(2.0)
    assert model.weight.item() == 1.0


def test_without_any_there_is_nothing_to_put_in_place_and_what_is_frozen_stays_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    model[1].requires_grad_(True)
    mean = Average(model, 0.9)
    before = [parameter.clone() for parameter in model.parameters()]
    with mean.in_place():
        assert all(map(torch.equal, model.parameters(), before))
    mean.add()
    assert set(mean.means) == {"1.weight", "1.bias"}


def test_weights_come_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    mean = Average(model, 0.9)
    mean.add()
    nn.init.constant_(model.weight, 5.0)
    with pytest.raises(KeyError), mean.in_place():
        raise KeyError
    assert model.weight.item() == 5.0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> int:
    """Every second step counts."""
    for module in (average, loop):
        monkeypatch.setattr(module, "EVERY", 2)
    return 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_keeps_the_mean(bench: "Bench", often: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its last steps if all that it evaluates is the end; and rows that wait are counted as they should be."""
    monkeypatch.setattr(loop, "LEAST_ROWS", 1 if waits else 10**9)
    monkeypatch.setattr(loop, "ROWS_PER_TOKEN", 0)
    weights = []
    put = Average.add

    def add(mean: Average) -> None:
        put(mean)
        weights.append({name: weight.detach().clone() for name, weight in mean._weights.items()})

    monkeypatch.setattr(Average, "add", add)
    config = bench.config(train_average=0.8, train_steps=8, train_evaluate_every=8)
    bench.fit(config)
    assert len(weights) == 4
    mean = weights[0]
    for count, one in enumerate(weights[1:], 2):
        share = max(1 - 0.8**often, 1 / count)
        mean = {name: (1 - share) * value + share * one[name] for name, value in mean.items()}
    kept = load(bench.weights())
    torch.testing.assert_close({name: kept[name] for name in mean}, mean)
    assert bench.lines()[-1]["step"] == 8


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
