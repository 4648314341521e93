"""Verdicts and tables from records whose right verdict is known."""

from typing import Any

import pytest

from datransformer.experiments.paper import CLAIMS, METHODS, OURS
from datransformer.experiments.studies import STUDIES, TABLES
from datransformer.report.records import Results
from datransformer.report.results import compare_all, results_page
from datransformer.report.verdicts import FAILED, HELD, VERDICTS, Verdict

LEVEL = "text.sequence.encoder.layers.0.attention"
GOOD = {"vanilla": 0.80, "rpr": 0.82, "xl": 0.86, "adapted": 0.85, OURS: 0.90}


def make_record(study: str, variant: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    noise = (seed - 1) * 0.001
    return {
        "study": study, "variant": variant, "seed": seed, "caveat": "made up", "device": "cpu", "wall_seconds": 60.0,
        "metrics": {"dev": {}, "test": dict.fromkeys(STUDIES[study].metrics, score + noise)},
        "examples": {"train": 10, "dev": 1, "test": 4}, "distances": {}, **more,
    }  # fmt: skip


def make_results(scores: dict[str, float], study: str = "ag", **ours: Any) -> Results:
    return Results(
        make_record(study, variant, seed, score, **(ours if variant == OURS else {}))
        for variant, score in scores.items()
        for seed in range(3)
    )


def judge(claim: str, results: Results) -> Verdict | None:
    return VERDICTS[claim](results, compare_all(results))


def test_every_verdict_is_on_a_claim() -> None:
    assert VERDICTS.keys() <= CLAIMS.keys()


@pytest.mark.parametrize(
    ("claim", "changed"),
    [
        ("first_everywhere", {"xl": 0.95}),
        ("significant", {"xl": 0.8995}),
        ("distance_helps", {"adapted": 0.79}),
        ("rpr_weakest", {"adapted": 0.81}),
    ],
)
def test_methods(claim: str, changed: dict[str, float]) -> None:
    held, failed = judge(claim, make_results(GOOD)), judge(claim, make_results({**GOOD, **changed}))
    assert held is not None
    assert failed is not None
    assert (held.verdict, failed.verdict) == (HELD, FAILED)


def test_lower_errors_are_better() -> None:
    errors = {name: 2 - score for name, score in GOOD.items()}
    verdict = judge("first_everywhere", make_results(errors, "amazon_rating"))
    assert verdict == Verdict(HELD, "first in 2 of 2 metrics")
    assert judge("first_everywhere", make_results(GOOD, "amazon_rating")) == Verdict(FAILED, "first in 0 of 2 metrics")


@pytest.mark.parametrize(
    ("claim", "table"), [("learnable_sigmoid_best", "mappings"), ("early_multiply_best", "adjustments")]
)
def test_ablations(claim: str, table: str) -> None:
    scores = dict.fromkeys(TABLES[table], 0.8)
    assert judge(claim, make_results({**scores, OURS: 0.9})) == Verdict(
        HELD, "on 1 of 1 data sets by the first metric: ag"
    )
    tied = judge(claim, make_results(scores))
    assert tied is not None
    assert tied.verdict == FAILED
    assert judge(claim, make_results(GOOD)) is None  # no such runs


@pytest.mark.parametrize(
    ("claim", "study", "name", "held", "failed"),
    [
        ("half_near_half_far", "ag", "distance_weight", [-1.0, -0.5, 0.5, 1.0], [0.1, 0.2, 0.5, 1.0]),
        ("mild_on_ag", "ag", "distance_shift", [-1.0, -0.5, -0.1, 1.0], [0.1, 0.2, -0.5, 1.0]),
        ("one_near_head", "mind", "distance_weight", [-1.0, 0.5, 0.1, 1.0], [-0.1, -0.2, 0.5, 1.0]),
        ("all_shifts_positive", "mind", "distance_shift", [1.0, 0.5, 0.1, 1.0], [0.1, 0.2, -0.5, 1.0]),
    ],
)
def test_heads(claim: str, study: str, name: str, held: list[float], failed: list[float]) -> None:
    other = "distance_shift" if name == "distance_weight" else "distance_weight"
    for numbers, verdict in ((held, HELD), (failed, FAILED)):
        levels = {LEVEL: {name: held, other: held}, "user.encoder.layers.0.attention": {name: numbers, other: held}}
        if study == "ag":
            levels = {LEVEL: {name: numbers, other: held}}
        found = judge(claim, make_results(GOOD, study, distances=levels))
        assert found is not None
        assert found.verdict == verdict, found


def test_sharper() -> None:
    for entropy, verdict in ((0.3, HELD), (0.7, FAILED)):
        numbers = {"entropy": [0.5], "keys": [0.5], "distance": [1.0]}
        records = [make_record("ag", "vanilla", 0, 0.8, heads={LEVEL: numbers})]
        records.append(make_record("ag", OURS, 0, 0.8, heads={LEVEL: {**numbers, "entropy": [entropy]}}))
        found = judge("sharper_attention", Results(records))
        assert found is not None
        assert found.verdict == verdict


def test_the_probe_does_not_judge_the_paper() -> None:
    records = [make_record(study, name, seed, score) for study, sign in (("ag", 1), ("probe", -1)) for seed in range(3)
               for name, score in ((name, sign * score) for name, score in GOOD.items())]  # fmt: skip
    found = judge("distance_helps", Results(records))
    assert found == Verdict(HELD, "on 1 of 1 data sets by the first metric: ag")
    page = results_page(Results(records))
    assert "first in 2 of 2 metrics" in page
    assert "of which the paper knows nothing" not in page
    assert "of which the paper knows nothing" in results_page(make_results(GOOD, "probe"))


def test_the_paper_stands_beside_ours() -> None:
    page = results_page(make_results(GOOD))
    line = next(line for line in page.splitlines() if line.startswith(f"| {METHODS[OURS]}"))
    assert "**90.00**" in line
    assert "93.72 ± 0.11" in line
    assert r"\*" in line
    assert "Data: made up." in page
