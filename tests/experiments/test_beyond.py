"""What goes beyond the paper: other distances against plain arithmetic, and options that never see the test set."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from datransformer.data.errors import InputError
from datransformer.experiments import beyond, studies
from datransformer.experiments.beyond import (
    FactorOfWeights,
    LogDistance,
    OwnScale,
    SharpAtFirst,
    ShuffledDistance,
    SignedDistance,
    random_places,
)
from datransformer.experiments.paper import OURS
from datransformer.experiments.runs import settings_of, without_seed
from datransformer.experiments.studies import Settings, config_of
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.mixers import MIXERS
from datransformer.report.records import Results
from datransformer.report.searched import beyond_the_paper, difference_to_plain
from datransformer.train.optimizer import FACTOR, in_groups
from datransformer.train.progress import Reporter


def by_hand(layer: DistanceAwareAttention, query: int, key: int, head: int) -> float:
    """The coefficient of a pair, as the class says it."""
    w, v = layer.distance_weight.detach()[head], layer.distance_shift.detach()[head]
    apart = torch.tensor(float(abs(query - key)))
    if isinstance(layer, LogDistance):
        apart = torch.log(1 + apart)
    elif isinstance(layer, SignedDistance) and key > query:
        w = layer.distance_weight_behind.detach()[head]
    own = layer.distance_shift_scale.detach()[head].exp() if isinstance(layer, OwnScale) else 1.0
    return float(own * (1 + v.exp()) / (1 + (v - w * apart).exp()))


BY_HAND = {name: mixer for name, mixer in beyond.OWN_MIXERS.items() if mixer is not ShuffledDistance}


@pytest.mark.parametrize("mixer", BY_HAND.values(), ids=BY_HAND)
def test_scores_are_adjusted_as_the_class_says(mixer: type[DistanceAwareAttention]) -> None:
    torch.manual_seed(0)
    layer = mixer(8, 2, 4)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    inputs = torch.randn(1, 5, 8)
    _, weights = layer(inputs, inputs, inputs, average_attn_weights=False)
    query, key, _ = layer.project(inputs, inputs, inputs)
    scores = (query @ key.mT)[0] / 2  # √4
    for head in range(2):
        factors = torch.tensor([[by_hand(layer, i, j, head) for j in range(5)] for i in range(5)])
        if isinstance(layer, FactorOfWeights):
            expected = factors * scores[head].exp()
            expected /= expected.sum(-1, keepdim=True)
        else:
            expected = (scores[head].relu() * factors).softmax(-1)
        torch.testing.assert_close(weights[0, head], expected)


def test_scores_are_four_times_as_large_at_first() -> None:
    inputs, scores = torch.randn(1, 5, 8), []
    for mixer in (DistanceAwareAttention, SharpAtFirst):
        torch.manual_seed(0)
        query, key, _ = mixer(8, 2, 4).project(inputs, inputs, inputs)
        scores.append(query @ key.mT)
    torch.testing.assert_close(scores[1], 4 * scores[0])


def test_shuffled_distances_are_those_of_words_in_another_order() -> None:
    """Attention is that of the plain one on the shuffled text; padding is behind all words, wherever it was."""
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 2:5] = True
    torch.manual_seed(1)
    places = random_places(padding)
    assert [sorted(row.tolist()) for row in places] == [list(range(7))] * 2
    assert sorted(places[1, ~padding[1]].tolist()) == [0, 1, 2, 3]
    assert places[0].tolist() != list(range(7))
    shuffled, plain = (
        mixer(8, 2, 4, distance_weight_init=[-0.7, 0.6]) for mixer in (ShuffledDistance, DistanceAwareAttention)
    )
    plain.load_state_dict(shuffled.state_dict())
    inputs = torch.randn(2, 7, 8)
    torch.manual_seed(1)
    outputs, weights = shuffled(inputs, inputs, inputs, padding)
    order = places.argsort(1)
    moved = torch.stack([text[one] for text, one in zip(inputs, order, strict=True)])
    expected, _ = plain(moved, moved, moved, padding.gather(1, order))
    expected = torch.stack([text[one] for text, one in zip(expected, places, strict=True)])
    torch.testing.assert_close(outputs, expected)
    assert weights is not None
    assert not weights[1, :, padding[1]].any()
    torch.manual_seed(1)
    whole = torch.zeros_like(padding)
    first = shuffled(inputs, inputs, inputs)[0]
    torch.manual_seed(1)
    torch.testing.assert_close(first, shuffled(inputs, inputs, inputs, whole)[0])


def test_a_factor_of_weights_stays_finite_far_away() -> None:
    torch.manual_seed(0)
    layer = FactorOfWeights(8, 2, 4, distance_weight_init=[-1.0, 1.0], distance_shift_init=[40.0, -40.0])
    inputs = torch.randn(1, 300, 8)
    outputs, weights = layer(inputs, inputs, inputs, average_attn_weights=False)
    outputs.square().sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters() if parameter.grad is not None)
    assert weights[0, 0, 0, 150:].max() < 1e-30  # w < 0: what is far is out


def test_signed_distance_starts_as_the_plain_one() -> None:
    torch.manual_seed(0)
    signed, plain = SignedDistance(8, 2, 4), DistanceAwareAttention(8, 2, 4)
    weights = signed.state_dict()
    del weights["distance_weight_behind"]
    plain.load_state_dict(weights)
    inputs = torch.randn(2, 5, 8)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    outputs = [layer(inputs, inputs, inputs, hidden, need_weights=False)[0] for layer in (signed, plain)]
    torch.testing.assert_close(*outputs)


def test_a_scale_of_its_own_starts_at_one_and_learns_as_fast_as_w() -> None:
    torch.manual_seed(0)
    assert not OwnScale(8, 2, 4).distance_weight.any()
    assert not ShuffledDistance(8, 2, 4).distance_weight.any()
    own, plain = OwnScale(8, 2, 4, distance_weight_init=0.3), DistanceAwareAttention(8, 2, 4)
    plain.load_state_dict({name: value for name, value in own.state_dict().items() if "scale" not in name})
    inputs = torch.randn(2, 5, 8)
    torch.testing.assert_close(own(inputs, inputs, inputs)[0], plain(inputs, inputs, inputs)[0])
    fast = next(group["params"] for group in in_groups(own, distance_rate=10.0) if group[FACTOR] == 10.0)
    assert {id(one) for one in fast} == {
        id(one) for one in (own.distance_weight, own.distance_shift, own.distance_shift_scale)
    }


def test_options_are_run_on_dev_alone_and_once(tmp_path: Path, sst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mixer in beyond.OWN_MIXERS.items():
        monkeypatch.setitem(MIXERS, name, mixer)
    small = {"model.embed_dim": 8, "model.heads": 2, "model.head_dim": 4, "train.epochs": 1}
    options: dict[str, Settings] = {
        "log": {"model.attention": "log_distance"},
        "rate": {"model.attention": "own_scale", "train.distance_rate": 10.0},
    }
    monkeypatch.setattr(beyond, "OPTIONS", {name: {**small, **one} for name, one in options.items()})
    monkeypatch.setattr(beyond, "SEEDS", {"sst": 2})
    monkeypatch.setattr(beyond, "MORE", {"log": {"sst": range(3)}, beyond.PLAIN: {"sst": range(5, 5)}})
    out = tmp_path / "out"
    one = beyond.plan_options(sst, out, "cpu", ["rate"], ["sst"])
    assert [(option, planned.seed) for option, planned in one] == [("rate", 0), ("rate", 1)]
    assert beyond.plan_options(sst, out, "cpu", studies=["ag"]) == []
    path = beyond.go_beyond(sst, out, device="cpu", reporter=Reporter(enabled=False))
    first = json.loads(path.read_text())
    settings = first["settings"]
    assert all(len(level["distance_weight"]) == 2 for row in first["rows"] for level in row["distances"].values())
    assert [(row["option"], row["seed"]) for row in first["rows"]] == [
        *((option, seed) for seed in (0, 1) for option in options), ("log", 2)
    ]  # fmt: skip
    records = [json.loads(one.read_text()) for one in (out / "results").glob("*/*.json")]
    assert {record["settings"]["model"]["attention"] for record in records} == {"log_distance", "own_scale"}
    assert all(set(record["metrics"]) == {"dev"} for record in records)
    means = [sum(level["entropy"]) / 2 for record in records for level in record["heads"].values()]
    assert sorted(row["entropy"] for row in first["rows"]) == pytest.approx(sorted(means), abs=1e-4)
    for row in first["rows"]:
        found = row.get("scales", {})
        assert found.keys() == (row["distances"].keys() if row["option"] == "rate" else set())
        assert all(len(own) == 2 and all(0 < abs(scale - 1) < 0.1 for scale in own) for own in found.values())
    reached = [sum(level["distance"]) / 2 for record in records for level in record["heads"].values()]
    attended = [one for row in first["rows"] for one in row["attended"].values()]
    assert sorted(attended) == pytest.approx(sorted(reached), abs=1e-4)
    assert beyond.go_beyond(sst, out, device="cpu", reporter=Reporter(enabled=False)) == path
    assert json.loads(path.read_text()) == first
    console = Console(file=io.StringIO(), width=200)
    nothing = beyond.go_beyond(sst, tmp_path / "new", options=[beyond.PLAIN], device="cpu", reporter=Reporter(console))
    assert json.loads(nothing.read_text())["rows"] == []
    assert "nothing to run" in console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "Held against nothing, for want of runs of the same settings and precision"
        in beyond_the_paper(Results({}), first)[-1]
    )

    del first["settings"]
    path.write_text(json.dumps({**first, "rows": first["rows"][1:]}))
    with pytest.raises(
        InputError, match=r"beyond\.json: holds rows on sst of unknown settings or data; expected another --out"
    ):
        beyond.go_beyond(sst, out, device="cpu", reporter=Reporter(enabled=False))
    path.write_text(json.dumps({**first, "rows": first["rows"][1:], "settings": settings}))

    monkeypatch.setitem(studies.CHOICES, "train.lr", studies.Choice(1e-4, "a test"))
    with pytest.raises(InputError, match=r"beyond\.json: sst was tried with another train\.lr \(0\.0001, was 0\.001\)"):
        beyond.go_beyond(sst, out, device="cpu", reporter=Reporter(enabled=False))


def test_options_are_held_against_runs_of_the_same_settings() -> None:
    settings = settings_of(config_of("sst", OURS, 3, {}))
    record = {"study": "sst", "variant": OURS, "seed": 3, "settings": settings, "metrics": {"dev": {"accuracy": 0.5}}}
    rows = [{"study": "sst", "option": "log", "seed": 0, "dev": {"accuracy": 0.7}}]

    def compared(**about: Any) -> list[float]:
        results = Results([record], beyond={"note": "", "rows": rows, **about})
        found = difference_to_plain(results, rows, "log", "sst")
        return [] if found is None else list(found.plain)

    assert compared() == [0.5]  # of a file that does not say
    assert compared(settings={"sst": without_seed(settings)}) == [0.5]
    assert compared(settings={"sst": without_seed(settings), "ag": {}}) == [0.5]
    assert compared(settings={"sst": {**without_seed(settings), "task": "pair"}}) == []
    older = without_seed(settings)
    del older["train"]["average"]  # as a file that was written before there was this setting has it
    assert compared(settings={"sst": older}) == [0.5]


def test_models_can_be_built_of_all_options(tmp_path: Path, sst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mixer in beyond.OWN_MIXERS.items():
        monkeypatch.setitem(MIXERS, name, mixer)
    monkeypatch.setattr(beyond, "SEEDS", {"sst": 1})
    for option, planned in beyond.plan_options(sst, tmp_path, "cpu"):
        layers = planned.config.model.encoder().layers
        assert len(layers) == (2 if option == "two layers" else 1)


def test_plain_runs_have_seeds_that_the_reproduction_has_not(
    tmp_path: Path, sst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mixer in beyond.OWN_MIXERS.items():
        monkeypatch.setitem(MIXERS, name, mixer)
    monkeypatch.setattr(beyond, "SEEDS", {"sst": 5})
    every = beyond.plan_options(sst, tmp_path, "cpu")
    seeds = {option: [planned.seed for name, planned in every if name == option] for option in beyond.OPTIONS}
    assert seeds[beyond.SIGNED] == list(range(15))
    assert all(seeds[option] == list(range(5)) for option in beyond.OPTIONS if option != beyond.SIGNED)
    folders = {option: {planned.folder for name, planned in every if name == option} for option in seeds}
    assert all(len(own) == 1 for own in folders.values())
    assert len(set.union(*folders.values())) == len(folders)  # whatever is added before or behind them
    plain = [planned for name, planned in every if name == beyond.PLAIN]
    assert [planned.seed for planned in plain] == list(range(5, 15))
    assert all(planned.config.model.attention == "distance_aware" for planned in plain)
