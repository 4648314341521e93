"""Why a claim holds or not: the section's numbers from records that are made up."""

from typing import Any

import numpy as np
import pytest
import torch

from datransformer.experiments.beyond import FROM_ZERO, OWN_SCALE, SHUFFLED
from datransformer.experiments.heads import starting_distances
from datransformer.experiments.paper import OURS
from datransformer.ops.mapping import MAPPINGS
from datransformer.report.reasons import coefficient, reasons
from datransformer.report.records import Results

LEVEL = "text.sequence.encoder.layers.0.attention"
SCORES = {"ag": "accuracy", "amazon_rating": "rmse"}


def make_results(study: str, scores: dict[str, float], **more: Any) -> Results:
    return Results(
        {
            "study": study, "variant": variant, "seed": seed, "caveat": "made up", "device": "cpu",
            "wall_seconds": 1.0, "steps": 1234, "examples": {"train": 1},
            "metrics": {"dev": {}, "test": {SCORES[study]: score + 0.001 * seed}},
            **{name: values[variant] for name, values in more.items() if variant in values},
        }
        for variant, score in scores.items() for seed in range(3)
    )  # fmt: skip


def heads_of(entropies: dict[str, float]) -> dict[str, Any]:
    return {
        variant: {LEVEL: {"entropy": [mean - 0.01, mean + 0.01], "keys": [1.0, 1.0], "distance": [1.0, 1.0]}}
        for variant, mean in entropies.items()
    }


def test_nothing_to_tell() -> None:
    assert reasons(Results([])) == []
    assert reasons(make_results("ag", {"vanilla": 0.9, "none": 0.8})) == []


@pytest.mark.parametrize(
    ("study", "metric", "score", "lost", "row"),
    [
        ("ag", "accuracy", 0.9, 0.02, "| AG, Accuracy | 3 | 90.10 | 88.10 | +2.00 points (p = 0.003) |"),
        (
            "amazon_rating", "rmse", 0.9, -0.02,
            "| Amazon, rating regression, RMSE | 3 | 0.901 | 0.921 | +0.020 (p = 0.003) |",
        ),
    ],
)  # fmt: skip
def test_what_is_lost_without_distances(study: str, metric: str, score: float, lost: float, row: str) -> None:
    results = make_results(study, {OURS: score, "none": 0.5})
    for record in results.runs(study, OURS):
        off = record["metrics"]["test"][metric] - lost + 0.002 * (record["seed"] - 1)
        record["without_distances"] = {metric: off}
    assert row in reasons(results)
    del results.runs(study, OURS)[0]["without_distances"]
    assert "| 2 |" in "".join(reasons(results))


@pytest.mark.parametrize(
    ("study", "scores", "row"),
    [
        (
            "ag",
            {OURS: 0.89, "vanilla": 0.92, "none": 0.90},
            "| AG, Accuracy | Transformer: +2.00 points (p < 0.0001) | -1.00 points (p = 0.00026) |",
        ),
        (
            "amazon_rating",
            {OURS: 0.89, "vanilla": 0.92, "none": 0.90},
            "| Amazon, rating regression, RMSE | DA-Transformer: +0.010 (p = 0.00026) | +0.010 (p = 0.00026) |",
        ),
    ],
)
def test_what_there_is_to_win(study: str, scores: dict[str, float], row: str) -> None:
    assert row in reasons(make_results(study, scores))


def test_how_far_heads_go() -> None:
    start = starting_distances({}, 2)["distance_weight"]
    assert start == [-0.5, 0.5]
    distances = {OURS: {LEVEL: {"distance_weight": [-0.4, -0.5], "distance_shift": [0.25, -0.25]}}}
    assert "| AG, words | 1,234 | 0.550 (most 1.000) | 0.250 (most 0.250) | 1.0 of 2 |" in reasons(
        make_results("ag", {OURS: 0.9}, distances=distances)
    )


def test_where_heads_go_from_zero() -> None:
    rows = [
        {
            "study": "ag", "option": FROM_ZERO, "seed": seed, "dev": {}, "device": device, "attended": {LEVEL: reach},
            "distances": {LEVEL: {"distance_weight": [low, 0.5, 0.1], "distance_shift": [-1.0, 3.0, 0.0]}},
        }
        for seed, (low, device, reach) in enumerate(((-0.4, "cpu", 0.9), (0.2, "A | B", 1.0)))
    ]  # fmt: skip
    rows.append({"study": "sst", "option": FROM_ZERO, "seed": 0, "dev": {}})  # of before they were kept
    near = {LEVEL: {"distance_weight": [-0.1, -0.1, -0.1], "distance_shift": [0.0, 0.0, 0.0]}}
    scaled = {"study": "ag", "option": OWN_SCALE, "seed": 0, "dev": {}, "distances": near}
    rows.append({**scaled, "scales": {LEVEL: [1.0, 2.0, 4.5]}})
    assert "shuffled" not in "".join(reasons(Results([], beyond={"note": "", "rows": rows})))
    order = {**scaled, "option": SHUFFLED, "attended": {LEVEL: 1.0}}
    shuffled = reasons(Results([], beyond={"note": "", "rows": [*rows, order]}))
    assert shuffled[-1].startswith("| AG, words, shuffled | 1 on — | 3.0 of 3 | ")
    assert shuffled[-1].endswith(" | — |")  # in the order of the text, which those heads do not know
    assert "In the shuffled runs distances are those of a random order" in shuffled[-7]
    assert "Most heads end" not in shuffled[-7]
    lines = reasons(Results([], beyond={"note": "", "rows": rows}))
    # (1 + eᵛ) / (1 + e^(v − 5w)) of the first head is 0.368 and 1.205, of the others 7.961 and 1.245; 2 / (1 + √e).
    assert [line.split(" | ") for line in lines[-2:]] == [
        ["| AG, words", r"2 on cpu, A \| B", "0.5 ± 0.7 of 3", "-0.15, +0.50", "1.0 ± 0.0 of 3", "-1.00, +3.00", "3.33",
         "—", "0.950 |"],
        ["| AG, words, own scale", "1 on —", "3.0 of 3", "-0.10, -0.10", "0.0 of 3", "+0.00, +0.00", "0.76",
         "2.50", "— |"],
    ]  # fmt: skip
    assert lines[-4].endswith(" | f at distance 5 | own scale | reach |")
    assert "In the runs with an own scale" in lines[-6]
    assert "Reach, distance in the tables of heads, is" in lines[-6]
    alone = reasons(Results([], beyond={"note": "", "rows": [scaled]}))
    assert alone[-3].endswith(" | f at distance 5 |")  # what nothing is known of has no column, and is not explained
    assert "Reach, " not in alone[-5]
    assert "The paper" not in alone[-7]
    plain = reasons(Results([], beyond={"note": "", "rows": rows[:2]}))
    assert "own scale" not in "".join(plain)
    seen = {variant: {LEVEL: {"entropy": [0.5, 0.5], "keys": [1.0, 1.0], "distance": [0.8, reach]}}
            for variant, reach in ((OURS, 1.0), ("none", 1.1))}  # fmt: skip
    beside = make_results("ag", {OURS: 0.9, "none": 0.9}, heads=seen)
    beside.beyond = {"note": "", "rows": rows[:2]}
    lines = reasons(beside)
    at = next(number for number, line in enumerate(lines) if line.startswith("| data | runs | w below 0"))
    assert lines[at].endswith(" | reach | reach of DA-Transformer as usual | reach of no positions |")
    assert lines[at + 2].endswith(" | 3.33 | 0.950 | 0.900 | 0.950 |")


@pytest.mark.parametrize(
    ("texts", "order", "told"),
    [
        ([3, 3, 3], [3, 3, 3], "clearly on the same side of 0"),
        ([0, 0, 0], [0, 0, 0], "clearly on the same side of 0"),
        ([3, 3, 3], [0, 0, 0], "clearly on the other side on AG, words."),
        ([3, 3, 3], [1, 2, 1], None),  # no clear majority
        ([2, 1, 2], [1, 2, 1], None),
        ([3, 3], [3, 3], None),  # too few
        ([3, 3, 3], [], None),
    ],
)
def test_sides_are_compared_where_both_are_clear(texts: list[int], order: list[int], told: str | None) -> None:
    rows = [
        {"study": "ag", "option": option, "seed": seed, "dev": {}, "distances": {LEVEL: {
            "distance_weight": [-0.1] * near + [0.1] * (3 - near), "distance_shift": [0.0] * 3
        }}}
        for option, counts in ((FROM_ZERO, texts), (SHUFFLED, order))
        for seed, near in enumerate(counts)
    ]  # fmt: skip
    lines = " ".join(reasons(Results([], beyond={"note": "", "rows": rows})))
    assert ("Most heads end" in lines) == (told is not None)
    assert told is None or f"Most heads end {told}" in lines


def test_runs_in_a_random_order_are_held_against_those_in_that_of_the_text() -> None:
    rows = [
        {"study": "ag", "option": option, "seed": seed, "dev": {"accuracy": score + seed / 50},
         "distances": {LEVEL: {"distance_weight": [0.1], "distance_shift": [0.0]}}}
        for option, score in ((FROM_ZERO, 0.8), (SHUFFLED, 0.7))
        for seed in (0, 1)
    ]  # fmt: skip
    lines = reasons(Results([], beyond={"note": "", "rows": rows}))
    assert lines[-4].endswith(" | dev |")
    assert lines[-2].endswith(" | 81.00 |")
    # Variances of 0.0002: t = 0.1 / √0.0002 with 2 degrees of freedom.
    assert lines[-1].endswith(" | 71.00 (p = 0.019) |")
    assert "The last column is the first metric on dev" in lines[-6]
    alone = reasons(Results([], beyond={"note": "", "rows": rows[2:]}))
    assert alone[-1].endswith(" | 71.00 |")


def test_the_coefficient_is_that_of_the_model() -> None:
    weights, shifts = np.array([-0.4, 0.5, 0.1, -9.0]), np.array([-1.0, 3.0, 0.0, 50.0])
    expected = MAPPINGS["learnable_sigmoid"](torch.tensor(weights * 5), torch.tensor(shifts))
    np.testing.assert_allclose(coefficient(weights * 5, shifts), expected.numpy(), rtol=1e-12)


def test_who_is_sharp() -> None:
    scores = dict.fromkeys((OURS, "vanilla", "none"), 0.9)
    results = make_results("ag", scores, heads=heads_of({OURS: 0.7, "vanilla": 0.5, "none": 0.6}))
    for runs in results.records["ag"].values():
        for seed, record in runs.items():
            record["heads"] = {LEVEL: {**record["heads"][LEVEL]}}
            record["heads"][LEVEL]["entropy"] = [one + 0.001 * seed for one in record["heads"][LEVEL]["entropy"]]
    lines = reasons(results)
    assert "| AG | 0.601 | 0.501 (-0.100, p < 0.0001) | 0.701 (+0.100, p < 0.0001) | — |" in lines
    assert any("Clearly sharper than that: Transformer on 1 of 1, DA-Transformer on 0 of 1." in line for line in lines)
    spread = {0: -0.3, 1: 0.1, 2: 0.1}  # lower on average, but not clearly
    for seed, record in results.records["ag"]["vanilla"].items():
        record["heads"][LEVEL]["entropy"] = [0.6 + spread[seed]] * 2
    assert any("sharper than that: Transformer on 0 of 1," in line for line in reasons(results))


def test_what_records_say_is_shown_as_it_is() -> None:
    distances = {OURS: {"a|b": {"distance_weight": [-0.5, 0.5], "distance_shift": [0.0, 0.0]}}}
    results = make_results("ag", {OURS: 0.9}, distances=distances)
    for record in results.runs("ag", OURS):
        del record["steps"]  # as in older records
    assert r"| AG, a\|b | — | 0.000 (most 0.000) | 0.000 (most 0.000) | 0.0 of 2 |" in reasons(results)


def test_whether_the_side_of_a_word_matters() -> None:
    metrics = {"vanilla": 0.9, OURS: 0.80, "rpr": 0.84, "xl": 0.82}
    records = [
        {
            "study": "ag", "variant": variant, "seed": seed, "caveat": "made up", "device": "cpu", "wall_seconds": 1.0,
            "examples": {"train": 1}, "metrics": {"dev": {"accuracy": score + 0.001 * seed}, "test": {"accuracy": 0.5}},
        }
        for variant, score in metrics.items() for seed in range(3)
    ]  # fmt: skip
    rows = [
        {"study": "ag", "option": "signed distance", "seed": seed, "dev": {"accuracy": 0.85 + 0.001 * seed}}
        for seed in range(3)
    ]
    lines = reasons(Results(records, beyond={"note": "", "rows": rows}))
    assert lines[-1] == "| AG, Accuracy | 80.10 | 85.10 (p < 0.0001, 3 and 3) | Transformer-RPR: 84.10 |"
    assert reasons(Results(records, beyond={"note": "", "rows": []})) == reasons(Results(records)) == []
