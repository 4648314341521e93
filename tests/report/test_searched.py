"""The sections on the search and on what goes beyond the paper, by hand."""

from typing import Any

import pytest

from datransformer.experiments.beyond import FROM_ZERO, PLAIN
from datransformer.experiments.paper import OURS
from datransformer.report.records import Results
from datransformer.report.results import results_page
from datransformer.report.searched import beyond_the_paper, searched

LEVEL = "text.sequence.encoder.layers.0.attention"


def trial(settings: dict[str, Any], score: float, study: str = "ag", number: str = "one", **more: Any) -> Any:
    metric = "rmse" if study == "amazon_rating" else "accuracy"
    return {"round": number, "study": study, "variant": OURS, "settings": settings, "seed": 0, "dev": {metric: score},
            **more}  # fmt: skip


def test_rounds_by_hand() -> None:
    trials = [
        trial({}, 0.80), trial({}, 0.82), trial({"train.lr": 0.1}, 0.805),
        trial({}, 1.0, "amazon_rating"), trial({"train.lr": 0.1}, 0.9, "amazon_rating"),
        trial({"a|b": "<i>"}, 0.5, number="two", variant="vanilla"),
    ]  # fmt: skip
    lines = searched({"note": "By | hand", "trials": trials, "chosen": {"train.lr": 0.1, "model.pooling": "mean"}})
    assert lines[0] == r"By \| hand"
    assert "the test set was never looked at" in lines[2]
    assert lines[4:11] == [
        "### one",
        "",
        "| settings | AG, DA-Transformer, Accuracy | Amazon, rating regression, DA-Transformer, RMSE |",
        "| --- | ---: | ---: |",
        "| nothing changed | **81.00** (2) | 1.000 (1) |",
        "| train.lr = 0.1 | 80.50 (1) | **0.900** (1) |",
        "",
    ]
    assert lines[11:] == [
        "### two",
        "",
        "| settings | AG, Transformer, Accuracy |",
        "| --- | ---: |",
        r"| a\|b = &lt;i&gt; | **50.00** (1) |",
        "",
        "Chosen: train.lr = 0.1, model.pooling = mean.",
    ]


def test_a_list_of_numbers_is_shown_by_its_ends() -> None:
    settings = {
        "model.attention_options": {"first": [-0.5, -0.25, 0.0, 0.25, 0.5], "mapping": "clip"},
        "train.lr": 0.01,
    }
    lines = searched({"note": "", "trials": [trial(settings, 0.5)], "chosen": {}})
    shown = r"| model.attention\_options = (first = -0.5 to 0.5, mapping = clip), train.lr = 0.01 | **50.00** (1) |"
    assert lines[-1] == shown
    other = {**settings, "model.attention_options": {"first": [-0.5, 0.25, 0.0, 0.25, 0.5], "mapping": "clip"}}
    lines = searched({"note": "", "trials": [trial(settings, 0.5), trial(other, 0.6)], "chosen": {}})
    assert [line.split(" | ")[-1] for line in lines[-2:]] == ["50.00 (1) |", "**60.00** (1) |"]


def test_a_study_that_was_not_tried_is_missing() -> None:
    trials = [trial({"a": 1}, 0.8), trial({"b": 1}, 1.0, "amazon_rating")]
    lines = searched({"note": "", "trials": trials, "chosen": {}})
    assert lines[-2:] == ["| a = 1 | **80.00** (1) | — |", "| b = 1 | — | **1.000** (1) |"]


def plain(study: str, *scores: float) -> list[dict[str, Any]]:
    metric = "rmse" if study == "amazon_rating" else "accuracy"
    metrics = [{"dev": {metric: score - 0.1}, "test": {metric: score, "macro_f1": 0.5, "mae": 0.5}} for score in scores]
    return [
        {"study": study, "variant": OURS, "seed": seed, "metrics": one, "caveat": "", "device": "cpu",
         "wall_seconds": 1.0, "examples": {}}
        for seed, one in enumerate(metrics)
    ]  # fmt: skip


def test_options_against_plain_ours() -> None:
    results = Results([*plain("ag", 0.8, 0.81), *plain("amazon_rating", 0.9)])
    rows = [
        {"study": "ag", "option": "two|layers", "seed": seed, "dev": {"accuracy": score}}
        for seed, score in enumerate((0.72, 0.73))
    ]
    rows += [{"study": "amazon_rating", "option": "signed", "seed": 0, "dev": {"rmse": 0.7}},
             {"study": "sst", "option": "signed", "seed": 0, "dev": {"accuracy": 0.8}}]  # fmt: skip
    beyond = {"note": "Ideas", "rows": rows}
    lines = beyond_the_paper(results, beyond)
    assert lines[0] == "Ideas"
    assert lines[2].endswith(
        "On dev clearly better: none; clearly worse: none (p < 0.05 after Holm's correction over 1 test)."
    )
    # Means 0.725 and 0.705, both variances 0.00005: t = 0.02 / √0.00005 with 2 degrees of freedom.
    assert lines[6:] == [
        "| option | AG, Accuracy, dev | Amazon, rating regression, RMSE, dev |",
        "| --- | ---: | ---: |",
        r"| two\|layers | +2.00 points (p = 0.106, 2 and 2) | — |",
        "| signed | — | -0.100 (no p, 1 and 1) |",
        "",
        "Held against nothing, for want of runs of the same settings and precision on this page: 1 on SST.",
    ]
    for row in rows[:2]:
        row["entropy"] = 0.5
    level = {"entropy": [0.6, 0.8], "keys": [1.0, 1.0], "distance": [1.0, 1.0]}
    for record in results.runs("ag", OURS):
        record["heads"] = {"text": level}
    assert beyond_the_paper(results, beyond)[-3:] == [
        "| option | AG |",
        "| --- | ---: |",
        r"| two\|layers | -0.200 (no p, 2 and 2) |",
    ]
    again = [
        {"study": "ag", "option": "plain", "seed": seed, "dev": {"accuracy": 0.7}, "entropy": 0.9} for seed in (0, 2)
    ]
    line = beyond_the_paper(results, {**beyond, "rows": rows + again})[-1]
    # Of 0.7, 0.7 and 0.9: a seed counts once. t = (0.8 / 3) / √(0.04 / 9) = 4 with 2 degrees of freedom.
    assert line == r"| two\|layers | -0.267 (p = 0.057, 2 and 3) |"
    page = results_page(Results(plain("ag", 0.8), beyond=beyond))
    assert " Tried beyond the paper, on dev: clearly better: none; clearly worse: none." in page
    assert "## Beyond the paper" in page
    assert "## What was searched" not in page


def test_which_options_are_clearly_better_or_worse() -> None:
    """By dev, the right way round for errors too, and against further plain runs as well."""
    results = Results([*plain("ag", 0.8, 0.81), *plain("amazon_rating", 0.9, 0.91)])
    rows = [
        {"study": study, "option": option, "seed": seed, "dev": {metric: score + 0.001 * seed}}
        for study, metric, option, score in (
            ("ag", "accuracy", "up", 0.8), ("amazon_rating", "rmse", "up", 0.6), ("ag", "accuracy", "down", 0.6),
            ("ag", "accuracy", "even", 0.705), ("ag", "accuracy", "plain", 0.703),
        )
        for seed in range(2, 5)
    ]  # fmt: skip
    lines = beyond_the_paper(results, {"note": "", "rows": rows})
    better, worse = "up on AG and Amazon, rating regression", "down on AG"
    assert lines[0].endswith(
        f"On dev clearly better: {better}; clearly worse: {worse} (p < 0.05 after Holm's correction over 4 tests)."
    )
    table = [line for line in lines if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in table[2:]] == ["| up", "| down", "| even"]
    assert all("3 and 5" in line.split(" | ")[1] for line in table[2:])
    rows = [{**row, "seed": 0, "entropy": 0.5} for row in rows if row["option"] == "plain"]
    assert beyond_the_paper(results, {"note": "", "rows": rows})[-1] == "| --- | ---: |"  # and nothing on entropies


def test_runs_of_another_precision_are_held_against_nothing() -> None:
    """Devices decide the precision; where w and v go can be told from either."""
    records = [{**record, "settings": {"train": {"precision": "bf16-mixed"}}} for record in plain("ag", 0.8, 0.81)]
    level = {LEVEL: {"distance_weight": [0.5, 0.1], "distance_shift": [0.0, 0.0]}}
    rows = [
        {"study": "ag", "option": option, "seed": seed, "dev": {"accuracy": 0.72 + seed / 100}, "entropy": 0.5,
         "device": device, "distances": level}
        for device, option, seeds in (("cpu", FROM_ZERO, (0, 1)), ("A GPU", "signed", (0, 1)), ("cpu", PLAIN, (8, 9)))
        for seed in seeds
    ]  # fmt: skip
    about = {"note": "", "rows": rows, "settings": {"ag": {"train": {"precision": "bf16-mixed"}}}}
    results = Results(records, beyond=about)
    lines = beyond_the_paper(results, about)
    assert any(line.endswith("settings and precision on this page: 4 on AG.") for line in lines)
    assert f"| {FROM_ZERO} | — |" in lines
    # As above, of two and two; the further plain runs would count if they were as precise.
    assert "| signed | +2.00 points (p = 0.106, 2 and 2) |" in lines
    assert all(f"| {FROM_ZERO} |" not in line for line in lines[lines.index("| option | AG |") :])  # on entropies
    for settings in ({"ag": {"train": {"precision": "32-true"}}}, {}):  # as a CPU writes it, and as none does
        again = {**about, "settings": settings}
        results = Results(records, beyond=again)
        assert beyond_the_paper(results, again) == lines
        assert len(results.from_zero("ag", "distance_weight")[LEVEL]) == 2
    here, there = ({**rows[0], "device": device, "distances": {LEVEL: {**level[LEVEL], "distance_weight": [w, w]}}}
                   for device, w in (("A GPU", 0.9), ("cpu", 0.8)))  # fmt: skip
    for found in ([here, there], [there, here]):  # a seed counts once
        weights = Results(records, beyond={**about, "rows": found}).from_zero("ag", "distance_weight")
        assert weights[LEVEL].tolist() == [[0.9, 0.9]]
    unknown = [{**row, "device": "cpu"} for row in rows if row["option"] == "signed"]
    del unknown[0]["device"]  # of a file from before it was kept
    told = beyond_the_paper(Results(records, beyond=about), {**about, "rows": unknown})
    assert any(line.endswith("on this page: 1 on AG.") for line in told)
    only = [row for row in rows if row["device"] == "cpu"]
    nothing = beyond_the_paper(Results([], beyond=about), {**about, "rows": only})
    assert any(line.endswith("on this page: 4 on AG.") for line in nothing)
    assert "| option |" in nothing


@pytest.mark.parametrize("has", [True, False])
def test_the_search_is_on_the_page_where_there_is_one(has: bool) -> None:
    search = {"note": "n", "trials": [trial({}, 0.5)], "chosen": {}} if has else None
    page = results_page(Results(plain("ag", 0.8), search))
    assert ("## What was searched" in page) == has
    assert "## Beyond the paper" not in page
