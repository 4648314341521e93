"""Verdicts and pages from records whose right verdict is known."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datransformer.data.errors import InputError
from datransformer.experiments.beyond import FROM_ZERO, OWN_SCALE, SHUFFLED
from datransformer.experiments.heads import starting_distances
from datransformer.experiments.paper import CLAIMS, METHODS, OURS, RESULTS
from datransformer.experiments.pieces import PIECES
from datransformer.experiments.studies import LINEAR, PUBLISHED, STUDIES, TABLES
from datransformer.report.comparisons import compare_all
from datransformer.report.records import Results, read_results
from datransformer.report.results import results_page, write_results
from datransformer.report.verdicts import (
    ABLATED,
    CONTRADICTED,
    FAILED,
    FREE,
    HELD,
    PARTLY,
    RANDOM,
    SCALED,
    UNDECIDED,
    UNTESTED,
    VERDICTS,
    Verdict,
)

LEVEL = "text.sequence.encoder.layers.0.attention"
NEWS = "user.encoder.layers.0.attention"
PAPER = tuple(RESULTS)
GOOD = {"vanilla": 0.80, "rpr": 0.82, "xl": 0.86, "adapted": 0.85, OURS: 0.90}


def make_record(study: str, variant: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    noise = (seed - 1) * 0.001
    return {
        "study": study, "variant": variant, "seed": seed, "caveat": f"{PUBLISHED}, made up", "device": "cpu",
        "wall_seconds": 60.0,
        "metrics": {"dev": {}, "test": dict.fromkeys(STUDIES[study].metrics, score + noise)},
        "examples": {"train": 10, "dev": 1, "test": 4}, "distances": {}, **more,
    }  # fmt: skip


def make_results(scores: dict[str, float], *studies: str, seeds: int = 3, **ours: Any) -> Results:
    return Results(
        make_record(study, variant, seed, score, **(ours if variant == OURS else {}))
        for study in studies or ("ag",)
        for variant, score in scores.items()
        for seed in range(seeds)
    )


def merge(*parts: Results) -> Results:
    return Results(
        record for part in parts for variants in part.records.values() for runs in variants.values()
        for record in runs.values()
    )  # fmt: skip


def judge(claim: str, results: Results) -> Verdict:
    return VERDICTS[claim](results, compare_all(results))


def test_there_is_a_verdict_on_every_claim_in_the_words_of_the_goal() -> None:
    assert VERDICTS.keys() == CLAIMS.keys()
    assert (HELD, FAILED, UNTESTED) == ("reproduced", "not reproduced", "not testable here")


@pytest.mark.parametrize("claim", CLAIMS)
def test_without_runs_nothing_is_judged(claim: str) -> None:
    for results in (Results([]), make_results(GOOD, "probe")):
        verdict = judge(claim, results)
        assert verdict.verdict == UNTESTED
        assert verdict.numbers


@pytest.mark.parametrize(
    ("claim", "lost", "close"),
    [
        ("first_everywhere", {"xl": 0.95}, {"xl": 0.8995}),
        ("significant", {"xl": 0.95}, {"xl": 0.8995}),
        ("distance_helps", {"adapted": 0.79}, {"adapted": 0.8005}),
        ("rpr_weakest", {"adapted": 0.81}, {"adapted": 0.8205}),
    ],
)
def test_methods(claim: str, lost: dict[str, float], close: dict[str, float]) -> None:
    held = judge(claim, make_results(GOOD, *PAPER))
    assert held.verdict == HELD
    assert "clear in" in held.numbers
    others = make_results(GOOD, *PAPER[1:])
    failed = judge(claim, merge(others, make_results({**GOOD, **lost}, PAPER[0])))
    assert failed.verdict == FAILED
    assert "the other way round in" in failed.numbers
    assert failed.how == CONTRADICTED
    listed = judge("first_everywhere", merge(others, make_results({**GOOD, **lost}, PAPER[0]))).differences
    assert any("AG, Accuracy" in text and "-" in text for text in listed)
    assert claim == "significant" or any("AG, Accuracy" in text for text in failed.differences)
    noise = judge(claim, merge(others, make_results({**GOOD, **close}, PAPER[0])))
    assert noise.verdict == FAILED
    assert "the difference is within noise in" in noise.numbers
    assert noise.how == UNDECIDED
    partly = judge(claim, make_results(GOOD, "ag", "mind"))
    assert partly.verdict == UNTESTED
    assert "no runs for it on amazon, sst, snli" in partly.numbers
    assert judge(claim, make_results({**GOOD, **lost}, "ag")).verdict == FAILED
    three = {name: score for name, score in GOOD.items() if name != "rpr"}
    assert judge(claim, make_results(three, *PAPER)).verdict == UNTESTED
    once = judge(claim, make_results(GOOD, *PAPER, seeds=1))
    assert once.verdict == UNTESTED
    assert "a method with one run has no spread" in once.numbers


def test_significance_is_after_the_correction() -> None:
    """0.9 against 0.8975 has p = 0.04 in one test, and twelve times that in twelve."""
    close = make_results({**GOOD, "xl": 0.8975}, *PAPER)
    assert judge("first_everywhere", close).verdict == HELD
    assert judge("significant", close).verdict == FAILED


def test_errors_count_the_other_way_and_not_among_the_tables() -> None:
    errors = {name: 2 - score for name, score in GOOD.items()}
    assert judge("first_everywhere", make_results(errors, "amazon_rating")).verdict == UNTESTED
    lost = make_results(GOOD, "amazon_rating")
    for claim in ("first_everywhere", "distance_helps", "rpr_weakest"):
        assert judge(claim, merge(make_results(GOOD, *PAPER), lost)).verdict == HELD
    assert judge("first_everywhere", make_results({**GOOD, "xl": 0.95}, "amazon")).verdict == FAILED


@pytest.mark.parametrize(
    ("classes", "stars", "verdict", "numbers"),
    [
        (GOOD, {name: 2 - score for name, score in GOOD.items()}, HELD, "of 10 pairs .* 10 differ clearly the same"),
        (
            GOOD,
            {**{name: 2 - score for name, score in GOOD.items()}, "vanilla": 1.17},
            FAILED,
            "9 differ .* 1 the other",
        ),
        (GOOD, GOOD, FAILED, "0 differ clearly the same way in RMSE, 10 the other way round"),
        (GOOD, dict.fromkeys(GOOD, 1.0), FAILED, "in 10 the difference is within noise"),
        (dict.fromkeys(GOOD, 0.8), GOOD, UNTESTED, "accuracy separates no two methods .* 10 of 10 pairs"),
        (GOOD, {}, UNTESTED, "no two methods have several runs in both"),
    ],
)
def test_regression(classes: dict[str, float], stars: dict[str, float], verdict: str, numbers: str) -> None:
    results = merge(make_results(classes, "amazon"), make_results(stars, "amazon_rating"))
    found = judge("regression_alike", results)
    assert found.verdict == verdict
    assert re.search(numbers, found.numbers), found.numbers


def test_adapted_on_short_texts() -> None:
    short = make_results({**GOOD, "adapted": 0.88}, "sst")
    long = make_results(GOOD, *(name for name in PAPER if name != "sst"))
    assert judge("adapted_on_short_texts", merge(short, long)).verdict == HELD
    assert judge("adapted_on_short_texts", make_results(GOOD, *PAPER)).verdict == FAILED
    assert judge("adapted_on_short_texts", make_results({**GOOD, "adapted": 0.88}, *PAPER)).verdict == FAILED
    same = judge("adapted_on_short_texts", make_results({**GOOD, "adapted": 0.86}, *PAPER))
    assert same.verdict == FAILED
    assert "within noise in 5" in same.numbers


SIGMOIDS = dict.fromkeys(TABLES["mappings"], 0.7) | {
    "mapping_clip": 0.8, "mapping_exponent": 0.75, "mapping_sigmoid": 0.85, OURS: 0.9
}  # fmt: skip
ADJUSTED = dict.fromkeys(TABLES["adjustments"], 0.7) | {
    "adjust_early_add": 0.85, "adjust_late_multiply": 0.8, "adjust_late_add": 0.75, OURS: 0.9
}  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "scores", "worse"),
    [
        ("learnable_sigmoid_best", SIGMOIDS, {"mapping_clip": 0.95}),
        ("learnable_sigmoid_best", SIGMOIDS, {"mapping_exponent": 0.87}),
        ("early_multiply_best", ADJUSTED, {"adjust_late_multiply": 0.87}),
        ("early_multiply_best", ADJUSTED, {"adjust_late_add": 0.82}),
        ("early_multiply_best", ADJUSTED, {"adjust_early_add": 0.9}),
    ],
)
def test_ablations(claim: str, scores: dict[str, float], worse: dict[str, float]) -> None:
    assert judge(claim, make_results(scores, *ABLATED)).verdict == HELD
    assert judge(claim, make_results({**scores, **worse}, *ABLATED)).verdict == FAILED
    assert judge(claim, make_results(scores, "ag", "mind")).verdict == UNTESTED
    assert judge(claim, make_results(GOOD, *ABLATED)).verdict == UNTESTED  # no such runs


def with_heads(study: str, levels: dict[str, Any], name: str, seeds: int = 3) -> Results:
    """Runs of ours with these values at each level, a little apart in each run."""
    records = []
    for seed in range(seeds):
        distances = {}
        for level, values in levels.items():
            moved = (np.array(values) * (1 + 0.01 * seed)).tolist()
            distances[level] = {"distance_weight": moved, "distance_shift": moved}
            assert name in distances[level]
        records.append(make_record(study, OURS, seed, 0.9, distances=distances))
    return Results(records)


FLIPPED = [0.5, 0.4, -0.4, -0.5]  # each head on the other side than it starts on
STARTED = starting_distances({}, 4)["distance_weight"]


@pytest.mark.parametrize(
    ("claim", "study", "name", "values", "verdict", "numbers"),
    [
        ("half_near_half_far", "ag", "distance_weight", FLIPPED, HELD, "2.0 ± 0.0 of 4 heads have w < 0"),
        ("half_near_half_far", "ag", "distance_weight", [0.1, 0.2, 0.5, 1.0], FAILED, "0.0 ± 0.0 of 4"),
        ("half_near_half_far", "ag", "distance_weight", STARTED, UNTESTED, "0.0 ± 0.0 have changed sides"),
        ("mild_on_ag", "ag", "distance_shift", [-1.0, -0.5, -0.1, 1.0], HELD, "3.0 ± 0.0 of 4 heads have v < 0"),
        ("mild_on_ag", "ag", "distance_shift", [0.1, 0.2, -0.5, 1.0], FAILED, "1.0 ± 0.0 of 4 heads have v < 0"),
        ("mild_on_ag", "ag", "distance_shift", [0.1, -0.2, -0.5, 1.0], FAILED, "the difference is within noise"),
        ("words_look_far", "mind", "distance_weight", [-1.0, 0.5, 0.1, 1.0], HELD, "3.0 ± 0.0 of 4 heads have w > 0"),
        ("words_look_far", "mind", "distance_weight", [-1.0, -0.5, 0.1, 1.0], FAILED, "the difference is within noise"),
        ("words_look_far", "mind", "distance_weight", [-1.0, -0.5, -0.1, 1.0], FAILED, "1.0 ± 0.0 of 4"),
    ],
)
def test_heads_of_words(claim: str, study: str, name: str, values: list[float], verdict: str, numbers: str) -> None:
    levels = {NEWS: [-value for value in values], LEVEL: values}  # what is not of words does not count
    found = judge(claim, with_heads(study, levels, name))
    assert found.verdict == verdict, found
    assert numbers in found.numbers
    if verdict == FAILED:
        assert found.how == (UNDECIDED if "within noise" in numbers else CONTRADICTED)
    assert judge(claim, with_heads(study, levels, name, seeds=1)).verdict == UNTESTED


@pytest.mark.parametrize(
    ("claim", "name", "news", "verdict"),
    [
        ("one_near_head", "distance_weight", [-1.0, 0.5, 0.1, 1.0], HELD),
        ("one_near_head", "distance_weight", [-1.0, -0.5, 0.1, 1.0], FAILED),
        ("one_near_head", "distance_weight", [1.0, 0.5, 0.1, 1.0], FAILED),
        ("all_shifts_positive", "distance_shift", [1.0, 0.5, 0.1, 1.0], HELD),
        ("all_shifts_positive", "distance_shift", [1.0, 0.5, -0.1, 1.0], FAILED),
    ],
)
def test_heads_of_news(claim: str, name: str, news: list[float], verdict: str) -> None:
    levels = {LEVEL: [0.3, 0.5, 0.1, 1.0], NEWS: news}
    assert judge(claim, with_heads("mind", levels, name)).verdict == verdict
    assert judge(claim, with_heads("mind", {LEVEL: news}, name)) == Verdict(UNTESTED, "no level of news")


def test_heads_that_spread_over_runs_are_not_half() -> None:
    runs = [[-1.0] * 4, FLIPPED, [1.0] * 4]
    records = [
        make_record("ag", OURS, seed, 0.9, distances={LEVEL: {"distance_weight": w, "distance_shift": w}})
        for seed, w in enumerate(runs)
    ]
    verdict = judge("half_near_half_far", Results(records))
    assert verdict.verdict == FAILED
    assert "2.0 ± 2.0 of 4" in verdict.numbers
    assert verdict.how == UNDECIDED


@pytest.mark.parametrize(
    ("claim", "study", "name", "runs", "clear"),
    [
        ("all_shifts_positive", "mind", "distance_shift", [[x, 1, 1, 1, 1] for x in (-0.1, 0.2, 0.2)], False),
        ("all_shifts_positive", "mind", "distance_shift", [[x, 1, 1, 1, 1] for x in (-0.15, -0.2, -0.2)], True),
        ("one_near_head", "mind", "distance_weight", [[-9.0, 9.0], [-9.0, -9.0], [9.0, 9.0]], False),
        ("one_near_head", "mind", "distance_weight", [[9.0, 9.0]] * 3, True),
        ("half_near_half_far", "ag", "distance_weight", [[9.0, -9.0], [9.0, 9.0], [9.0, 9.0]], False),
    ],
)
def test_what_runs_do_not_agree_on_is_not_contradicted(
    claim: str, study: str, name: str, runs: list[list[float]], clear: bool
) -> None:
    both = ("distance_weight", "distance_shift")
    records = [
        make_record(study, OURS, seed, 0.9, distances={level: dict.fromkeys(both, values) for level in (LEVEL, NEWS)})
        for seed, values in enumerate(runs)
    ]
    verdict = judge(claim, Results(records))
    assert verdict.verdict == FAILED, verdict
    assert verdict.how == (CONTRADICTED if clear else UNDECIDED)


def with_shifts(words: list[list[float]], news: list[list[float]]) -> Results:
    both = ("distance_weight", "distance_shift")
    return Results(
        make_record("mind", OURS, seed, 0.9, distances={
            level: dict.fromkeys(both, values) for level, values in ((LEVEL, one), (NEWS, other))
        })
        for seed, (one, other) in enumerate(zip(words, news, strict=True))
    )  # fmt: skip


def test_shifts_that_tell_nothing_contradict_nothing() -> None:
    """Of 16 numbers that noise alone has moved from 0 the lowest is below it, in every run."""
    noise = np.random.default_rng(0).normal(scale=0.1, size=(5, 16))
    assert (noise.min(axis=1) < -0.1).all()
    found = judge("all_shifts_positive", with_shifts(noise.tolist(), (noise / 10).tolist()))
    assert found.verdict == UNTESTED
    assert "words: " in found.numbers
    assert "but signs are as if tossed (p = " in found.numbers
    assert "from its start at 0 on average, which is nearly nothing" in found.numbers
    few = noise.copy()
    few[:, :13] = 0.3 + abs(few[:, :13])
    few[:, 13:] = -abs(few[:, 13:]) - 0.05
    found = judge("all_shifts_positive", with_shifts(few.tolist(), (noise / 10).tolist()))
    assert (found.verdict, found.how) == (FAILED, CONTRADICTED)


def test_what_one_reading_of_several_says_is_told_apart() -> None:
    """The paper read SNLI in one way, and does not say in which."""
    worse = {**GOOD, "xl": 0.95}
    readings = ("snli", "snli_siamese", "snli2", "snli2_siamese")
    for count, how in ((1, PARTLY), (3, PARTLY), (4, CONTRADICTED)):
        studies = [make_results(worse, *readings[:count]), make_results(GOOD, *readings[count:])]
        found = judge("first_everywhere", merge(make_results(GOOD, "ag"), *(one for one in studies if one.studies)))
        assert (found.verdict, found.how) == (FAILED, how)
        assert (f"in {count} of 4 readings of SNLI: " in found.numbers) == (how == PARTLY)
        assert "Transformer-XL ahead of DA-Transformer on SNLI, 3 classes, joint" in found.numbers
    assert found.told == "not reproduced: contradicted"
    alone = judge("first_everywhere", make_results(worse, "snli2"))  # all that was run
    assert alone.how == CONTRADICTED


def test_heads_that_are_most_in_some_runs_alone_are_noise() -> None:
    shifts = [[-1.0] * 4, [-1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, 1.0]]
    records = [
        make_record("ag", OURS, seed, 0.9, distances={LEVEL: {"distance_weight": v, "distance_shift": v}})
        for seed, v in enumerate(shifts)
    ]
    verdict = judge("mild_on_ag", Results(records))
    assert verdict.verdict == FAILED
    # 1 / (1 / √3) with 2 degrees of freedom
    assert (
        "3.0 ± 1.0 of 4 heads have v < 0 (p = 0.225 against half of them; the difference is within" in verdict.numbers
    )
    two = judge("mild_on_ag", Results([records[0], {**records[0], "seed": 1}]))
    assert two.verdict == UNTESTED
    assert "too few runs to tell" in two.numbers


def sharp(ours: float, vanilla: float, study: str = "ag") -> Results:
    return Results(
        make_record(study, name, seed, 0.8, heads={LEVEL: {
            "entropy": [mean + 0.01 * seed] * 2, "keys": [mean + 0.01 * seed] * 2, "distance": [1.0] * 2,
        }})
        for name, mean in ((OURS, ours), ("vanilla", vanilla)) for seed in range(3)
    )  # fmt: skip


def test_sharper() -> None:
    assert judge("sharper_attention", sharp(0.3, 0.5)).verdict == HELD
    assert judge("sharper_attention", sharp(0.7, 0.5)).verdict == FAILED
    close = judge("sharper_attention", sharp(0.499, 0.5))
    assert close.verdict == FAILED
    assert "within noise in 2" in close.numbers
    assert judge("sharper_attention", sharp(0.3, 0.5, "sst")).verdict == UNTESTED


def test_length() -> None:
    """By the paper's lengths mind < sst < snli < ag < amazon."""

    def results(below: dict[str, int]) -> Results:
        values = {name: [-1.0] * count + [1.0] * (10 - count) for name, count in below.items()}
        return merge(*(with_heads(name, {LEVEL: one}, "distance_weight") for name, one in values.items()))

    falling = judge("length_does_not_decide", results({"mind": 9, "sst": 7, "snli": 7, "ag": 4, "amazon": 1}))
    assert falling.verdict == FAILED
    assert falling.how == CONTRADICTED
    assert "MIND 0.90, 11.5; r with" in falling.numbers
    measured = results({"mind": 9, "sst": 7, "snli": 7, "ag": 4, "amazon": 1})
    for record in measured.runs("amazon", OURS):
        record["mean_length"] = 77.5
    assert "Amazon 0.10, 77.5;" in judge("length_does_not_decide", measured).numbers
    loose = judge("length_does_not_decide", results({"mind": 5, "sst": 4, "snli": 6, "ag": 4, "amazon": 6}))
    assert loose.verdict == UNTESTED
    assert "5 data sets cannot rule a correlation out" in loose.numbers
    same = judge("length_does_not_decide", results(dict.fromkeys(("mind", "sst", "snli", "ag"), 5)))
    assert "expected four data sets at least" in same.numbers


def test_the_paper_stands_beside_ours() -> None:
    page = results_page(make_results(GOOD))
    line = next(line for line in page.splitlines() if line.startswith(f"| {METHODS[OURS]}"))
    assert "**90.00**" in line
    assert "93.72 ± 0.11" in line
    assert r"\*" in line
    assert "Data: the published files, made up. Trained on cpu, 32-true." in page
    assert "  - AG, Accuracy: DA-Transformer − Transformer-XL +4.00 points (p < 0.0001)" in page


def test_the_controls_are_held_against_all() -> None:
    page = results_page(
        merge(make_results({**GOOD, "alibi": 0.91, "none": 0.895}), make_results({LINEAR: 0.88}, seeds=1))
    )
    assert (
        "Gain in Accuracy over TF-IDF, logistic regression: +3.10 points by ALiBi, the best Transformer here, "
        "+2.10 points by DA-Transformer; over no positions: +1.50 points (Welch's t-test: p < 0.0001) by ALiBi, "
        "the best Transformer here, +0.50 points (Welch's t-test: p = 0.004) by DA-Transformer."
    ) in page
    errors = {**{name: 2 - score for name, score in GOOD.items()}, "none": 1.09}
    page = results_page(make_results(errors, "amazon_rating"))
    assert "Gain in RMSE over no positions: -0.010 (Welch's t-test: p = 0.000" in page
    assert "by DA-Transformer, the best Transformer here." in page
    assert "TF-IDF" not in page
    assert "TF-IDF, logistic regression | —" in results_page(make_results(GOOD))
    assert "Gain in" not in results_page(make_results(GOOD))


def items_of_runs(study: str, **kept: Any) -> Results:
    results = make_results(GOOD, study, seeds=2)
    for variants in results.records[study].values():
        for record in variants.values():
            record.update(kept)
    return results


def test_intervals_over_items_of_every_kind() -> None:
    rng = np.random.default_rng(0)
    ratings = items_of_runs("amazon_rating", truth=[1, 2, 3, 4, 5] * 8)
    for record in ratings.runs("amazon_rating", OURS) + ratings.runs("amazon_rating", "vanilla"):
        record["answers"] = (np.array(record["truth"]) + (0.5 if record["variant"] == OURS else 1.0)).tolist()
    for name in ("rpr", "xl", "adapted"):
        ratings.records["amazon_rating"].pop(name)
    found = compare_all(ratings)["amazon_rating", "rmse"].interval
    assert found is not None
    assert (found.items, found.difference, found.low, found.high) == pytest.approx((40, -0.5, -0.5, -0.5))

    clicks = items_of_runs("mind")
    for record in clicks.runs("mind", OURS) + clicks.runs("mind", "xl"):
        gain = 100 if record["variant"] == OURS else 0
        record["items"] = {name: (rng.integers(300, 700, 50) + gain).tolist() for name in STUDIES["mind"].metrics}
    compared = compare_all(clicks)
    for metric in STUDIES["mind"].metrics:
        interval = compared["mind", metric].interval
        assert interval is not None
        assert interval.items == 50
        assert interval.low < 0.1 < interval.high
    assert "interval over 50 items" in results_page(clicks)
    del clicks.runs("mind", "xl")[0]["items"]
    assert compare_all(clicks)["mind", "auc"].interval is None
    assert compare_all(items_of_runs("ag"))["ag", "accuracy"].interval is None


def test_what_files_say_is_shown_as_it_is() -> None:
    nasty = "a | b\n<script> *c* `d` _e_ [f](g) $h$\n# i"
    shown = r"a \| b &lt;script&gt; \*c\* \`d\` \_e\_ \[f\](g) \$h\$ \# i"
    records = [make_record("ag", name, 0, 0.8) for name in GOOD]
    records = [{**record, "caveat": nasty, "device": nasty, "examples": {nasty: 3}} for record in records]
    records += [{"study": "ag", "variant": "xl", "seed": 1, "failed": nasty}]
    page = results_page(Results(records))
    assert page.count(shown) == 6
    assert nasty not in page
    assert "<script>" not in page


@pytest.mark.parametrize("name", ["page.pdf", "page", "page.htm"])
def test_a_page_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: got the ending '.*', expected \.md or \.html"):
        write_results(tmp_path, tmp_path / name)


def test_the_folder_of_a_reproduction_is_as_good_as_that_of_its_results(tmp_path: Path) -> None:
    path = tmp_path / "results" / "ag" / "xl-0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(make_record("ag", "xl", 0, 0.8)))
    (tmp_path / "results" / "calls.json").write_text(json.dumps({"calls": []}))
    assert results_page(read_results(tmp_path)) == results_page(read_results(tmp_path / "results"))


def test_page_and_pictures_are_a_function_of_the_records(tmp_path: Path) -> None:
    words = ["a", "$b"]
    for seed in (0, 1):
        for study, variant in (("ag", "vanilla"), ("ag", OURS), ("amazon_rating", "xl"), ("amazon_rating", OURS)):
            numbers = {"distance_weight": [0.5, -0.5], "distance_shift": [0.1, 0.2]}
            more: dict[str, Any] = {"distances": {LEVEL: numbers}} if variant == OURS else {}
            more["maps"] = {"tokens": words, "levels": {LEVEL: [[[0.5, 0.5], [0.1, 0.9]]] * 2}}
            path = tmp_path / "results" / study / f"{variant}-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(make_record(study, variant, seed, 0.8, **more)))
    names = ["figure_3_amazon_rating", "figure_6_ag", f"figure_8_ag_{OURS}", "figure_8_ag_vanilla", "leads"]
    for page in (tmp_path / "my page.md", tmp_path / "other.md"):
        write_results(tmp_path / "results", page)
        images = page.with_name(f"{page.stem}_images")
        assert [path.name for path in sorted(images.iterdir())] == [f"{name}.png" for name in names]
        text = page.read_text(encoding="utf-8")
        assert text == results_page(read_results(tmp_path / "results"), images.name)
        assert all(f"]({images.name.replace(' ', '%20')}/{name}.png)" in text for name in names)
    write_results(tmp_path, tmp_path / "one.html")
    assert not (tmp_path / "one_images").exists()
    inside = re.findall('src="data:image/png;base64,([^"]+)"', (tmp_path / "one.html").read_text(encoding="utf-8"))
    drawn = {(tmp_path / "other_images" / f"{name}.png").read_bytes() for name in names}
    assert {base64.b64decode(one, validate=True) for one in inside} == drawn
    for name in names:
        first, second = ((tmp_path / f"{stem}_images" / f"{name}.png").read_bytes() for stem in ("my page", "other"))
        assert first == second


def test_where_ours_stands_is_told_at_once() -> None:
    page = results_page(merge(make_results(GOOD, "ag"), make_results({**GOOD, OURS: 0.81}, "sst")))
    top = page[: page.index("## What holds")]
    # Both deviations are 0.001: 2.776 · √(2 · 0.001² / 3) around the difference; over the best of four 4.315 instead.
    assert (
        "| AG, Accuracy | 90.00 | 1 of 5 | 86.00 (Transformer-XL) | +4.00 [+3.65, +4.35] | +0.37 | "
        "+10.00 [+9.77, +10.23] | +0.71 |"
    ) in top
    assert "| SST, Accuracy | 81.00 | 4 of 5 | 86.00 (Transformer-XL) | -5.00 [-5.35, -4.65] | +0.34 |" in top
    assert (
        "- **Does it win?** Against the best of the paper's other methods: of 2 set-ups ahead on 1, behind on 1; "
        "clearly ahead on 1: AG (after Holm's correction: AG); clearly behind on 1: SST (after Holm's correction: SST)."
        " The best is picked after the runs: were all methods equally good, "
        "chance alone would put DA-Transformer ahead on one set-up in 5. Against the plain Transformer: "
    ) in top
    assert (
        "**DA-Transformer is clearly ahead of the best of the paper's other methods on 1 (1 after Holm's correction) "
        "of 2 set-ups, and clearly behind on 1 (1 after Holm's correction). "
        "DA-Transformer is clearly ahead of the plain Transformer on 2 (2 after Holm's correction) of 2 set-ups, and "
        "clearly behind on 0. Of the paper's 15 claims, by their numbers below: 0 reproduced; "
    ) in top
    assert "stand-ins" not in top
    assert "†" not in top
    assert "- AG; SST: the published files, made up." in top
    assert "Transformer here minus Transformer in the paper, in points: AG -13.01; SST -9.67." in top
    assert "SNLI with 3" not in top

    wide = {**{name: 2 - score for name, score in GOOD.items()}, OURS: 1.3}  # errors
    top = results_page(make_results(wide, "amazon_rating"))
    assert "of 1 set-up ahead on 0, behind on 1; clearly ahead on 0; clearly behind on 1: Amazon" in top
    assert (
        "| Amazon, rating regression, RMSE (less is better) | 1.300 | 5 of 5 | 1.140 (Transformer-XL) | -0.160 [" in top
    )
    assert "not levels" not in top
    assert "The paper has 5 seeds a method" in results_page(make_results(wide, "amazon_rating"))
    alone = results_page(make_results(GOOD, seeds=1))
    assert (
        "5 networks, up to one seed a method, on cpu. All methods with one seed take 17 runs, of which 12 are not "
        "there."
    ) in alone
    assert (
        "**No lead can be clear: a method with one run has no spread to test against. None of the paper's 15 claims "
        "can be tested with these runs.**"
    ) in alone
    assert "of RMSE by how much it is lower, here without intervals; beside" in alone


def test_what_was_made_with_other_data_is_marked() -> None:
    parts = make_results(GOOD, "ag", "sst")
    for study in ("ag", "sst"):
        for variant in GOOD:
            for record in parts.runs(study, variant):
                record["caveat"] = PIECES["ag"].caveat if study == "ag" else "as they were once"
    top = results_page(parts).partition("## What holds")[0]
    assert " Not the paper's data sets, but parts of them or stand-ins: 2 of 2, see below.**" in top
    assert "| AG, Accuracy |" in top
    assert "| SST †, Accuracy |" in top
    assert "The runs on SST (†) had other settings or data than `reproduce` takes now." in top


def test_complete_data_are_not_called_parts() -> None:
    parts = make_results(GOOD, "ag", "sst", "sst_phrases")
    for study in ("ag", "sst", "sst_phrases"):
        for variant in GOOD:
            for record in parts.runs(study, variant):
                record["caveat"] = PIECES[study].caveat
    assert " but parts of them or stand-ins: 1 of 2, see below.**" in results_page(parts)


def test_what_larger_word_vectors_do_is_told_where_it_was_searched_for_both() -> None:
    def page(*tried: tuple[str, float, float]) -> str:
        trials = [
            {"round": "one", "study": "ag", "variant": variant, "settings": {"model.embed_scale": scale}, "seed": seed,
             "dev": {"accuracy": score + seed / 100}}
            for variant, scale, score in tried
            for seed in range(3)
        ]  # fmt: skip
        return results_page(
            Results(make_results(GOOD, "ag").runs("ag", OURS), {"note": "", "trials": trials, "chosen": {}})
        )

    both = (("vanilla", 1.0, 0.7), ("vanilla", 4.0, 0.8), (OURS, 4.0, 0.5), (OURS, 1.0, 0.7))
    # The means are 30 points apart and the deviations 1 each: t = 0.3 / √(2 · 0.01² / 3).
    assert "On AG, on dev, it is +0.00 (× 1, p = 1.000), -30.00 (× 4, p < 0.0001) with vectors so many" in page(*both)
    for tried in (both[:2], both[:3], both[1:3], (both[0], both[3])):
        assert "How large word vectors" not in page(*tried)
    assert "Not among them are runs on dev alone: 12 of the search." in page(*both)


def test_the_mapping_that_has_no_bound_is_held_against_ours() -> None:
    def page(**more: float) -> str:
        results = make_results({**GOOD, "none": 0.8, **more}, "ag")
        for variant in ("none", "vanilla", OURS):
            for seed, record in enumerate(results.runs("ag", variant)):
                record["heads"] = {LEVEL: {"entropy": [0.5 + seed / 100], "keys": [0.5], "distance": [1.0]}}
        return results_page(results)

    told = "But exponent, another mapping, which has no such bound, is clearly better than the learnable sigmoid on"
    assert f"{told} 1 of 1." in page(mapping_exponent=0.95)
    assert f"{told} 0 of 1." in page(mapping_exponent=0.85)
    assert "One suspect" not in page()
    assert "A suspect is that its heads can hardly be sharp" in page()
    assert "But exponent" not in page()


def test_the_best_of_several_counts_as_often_as_it_was_picked_from() -> None:
    """Ours is behind the best of four at p = 0.021, which counts as 0.085."""
    scores = {"vanilla": [0.7, 0.7, 0.71], "rpr": [0.7, 0.71, 0.7], "adapted": [0.71, 0.7, 0.7]}
    scores |= {"xl": [0.91, 0.93, 0.95], OURS: [0.87, 0.85, 0.89]}
    runs = [make_record(study, name, seed, one - (seed - 1) * 0.001) for study in ("ag", "sst")
            for name, many in scores.items() for seed, one in enumerate(many)]  # fmt: skip
    page = results_page(Results(runs))
    assert (
        "is clearly ahead of the best of the paper's other methods on 0 of 2 set-ups, and clearly behind on 0."
    ) in page


def test_what_runs_that_are_there_refute_is_refuted() -> None:
    """One run of a method has no test; that others are ahead is clear all the same."""
    behind = make_results({**GOOD, OURS: 0.7}, "ag")
    best = make_results({"adapted": 0.95}, "ag", seeds=1)
    without = make_results({name: score for name, score in GOOD.items() if name not in ("adapted", OURS)}, "ag")
    found = judge("first_everywhere", merge(without, make_results({OURS: 0.7}, "ag"), best))
    assert (found.verdict, found.how) == (FAILED, CONTRADICTED)
    assert judge("first_everywhere", behind).how == CONTRADICTED


def test_stars_that_differ_by_chance_contradict_nothing() -> None:
    """One pair of ten differs the other way round, at p = 0.038: Holm's correction leaves none of it."""
    classes = make_results(GOOD, "amazon")
    few = {name: [2 - score + (seed - 1) * 0.001 for seed in range(3)] for name, score in GOOD.items()}
    few |= {"vanilla": [1.12, 1.14, 1.16], "rpr": [1.17, 1.19, 1.21]}
    stars = [make_record("amazon_rating", name, seed, one - (seed - 1) * 0.001) for name, many in few.items()
             for seed, one in enumerate(many)]  # fmt: skip
    found = judge("regression_alike", merge(classes, Results(stars)))
    assert "1 the other way round" in found.numbers, found.numbers
    assert (found.verdict, found.how) == (FAILED, UNDECIDED)
    half = dict.fromkeys(GOOD, 1.1) | {"vanilla": 1.2}
    noisy = judge("regression_alike", merge(classes, make_results(half, "amazon_rating")))
    assert re.search("of 10 pairs .* 4 differ clearly the same way", noisy.numbers), noisy.numbers
    assert (noisy.verdict, noisy.how) == (FAILED, UNDECIDED)


def test_runs_from_zero_with_other_settings_decide_nothing() -> None:
    levels = {LEVEL: STARTED}
    records = [{**record, "settings": {"train": {"epochs": 5}}}
               for record in with_heads("ag", levels, "distance_weight").runs("ag", OURS)]  # fmt: skip
    distances = {LEVEL: dict.fromkeys(("distance_weight", "distance_shift"), FLIPPED)}
    rows = [{"study": "ag", "option": FROM_ZERO, "seed": seed, "distances": distances} for seed in range(3)]
    for epochs, verdict in ((5, HELD), (1, UNTESTED)):
        settings = {"ag": {"train": {"epochs": epochs}}}
        beyond = {"note": "", "rows": rows, "settings": settings}
        assert judge("half_near_half_far", Results(records, beyond=beyond)).verdict == verdict


def test_leads_that_many_tests_leave_are_told_apart() -> None:
    """Welch's p is below 0.0001 on AG and 0.038 elsewhere, four times: Holm's correction leaves the first alone."""
    few = {OURS: [0.90, 0.92, 0.94], "vanilla": [0.87, 0.85, 0.89]}
    weak = [
        make_record(study, name, seed, score)
        for study in ("sst", "snli", "amazon", "mind")
        for name, scores in few.items()
        for seed, score in enumerate(scores)
    ]
    page = results_page(merge(make_results({"vanilla": 0.8, OURS: 0.9}, "ag"), Results(weak)))
    assert (
        "is clearly ahead of the plain Transformer on 5 (1 after Holm's correction) of 5 set-ups, and clearly behind "
        "on 0."
    ) in page


def test_one_comparison_of_many_contradicts_nothing() -> None:
    """Adapted is to be behind Transformer-XL on four data sets, and is ahead on one, at p = 0.038."""
    few = {"adapted": [0.90, 0.92, 0.94], "xl": [0.87, 0.85, 0.89]}
    odd = [make_record("ag", name, seed, score) for name, scores in few.items() for seed, score in enumerate(scores)]
    rest = make_results({"adapted": 0.8, "xl": 0.8}, "amazon", "snli", "mind")
    found = judge("adapted_on_short_texts", merge(rest, Results(odd)))
    assert (found.verdict, found.how) == (FAILED, UNDECIDED)
    assert "the other way round in 1; after Holm's correction over all 4 that were compared in none;" in found.numbers
    alone = judge("adapted_on_short_texts", Results(odd))
    assert alone.how == CONTRADICTED
    assert (
        "the other way round in 1; after Holm's correction over all 1 that were compared: Adapted Transformer ahead of "
        "Transformer-XL on AG;"
    ) in alone.numbers


def test_what_was_picked_is_corrected_for_what_it_was_picked_from() -> None:
    """RPR is ahead of one of three at p = 0.038: two more tests leave 0.11 of it."""
    scores = {
        "rpr": [0.90, 0.92, 0.94],
        OURS: [0.87, 0.85, 0.89],
        "xl": [0.89, 0.95, 0.92],
        "adapted": [0.88, 0.93, 0.95],
    }
    runs = [make_record("ag", name, seed, one) for name, many in scores.items() for seed, one in enumerate(many)]
    found = judge("rpr_weakest", Results(runs))
    assert (found.verdict, found.how) == (FAILED, UNDECIDED)
    assert "; the other way round in 1; after Holm's correction over all 3 that were compared in none" in (
        f"; {found.numbers}"
    )


def test_what_a_page_is_made_of_is_told_at_its_end() -> None:
    about = [
        {"device": device, "commit": commit}
        for device, commit in (("NVIDIA H200", "a" * 40), ("NVIDIA H200", "b" * 40 + "-dirty"), ("cpu", None))
    ]
    runs = [make_record("ag", OURS, seed, 0.9, **known) for seed, known in enumerate(about)]
    page = results_page(Results([*runs, make_record("ag", LINEAR, 0, 0.8, commit="c" * 40)]))
    assert (
        "3 networks, up to 3 seeds a method, on NVIDIA H200 (2), cpu (1) and 1 linear model on a CPU, made at commit "
        "aaaaaaa (1), bbbbbbb-dirty (1), unknown (1)."
    ) in page
    assert "made at commit" not in results_page(make_results(GOOD))


def test_what_chance_would_do_is_told_for_those_that_ran() -> None:
    two = make_results({"vanilla": 0.8, OURS: 0.9}, "ag")
    assert "chance alone would put DA-Transformer ahead on one set-up in 2." in results_page(two)
    assert "equally good" not in results_page(merge(two, make_results(GOOD, "sst")))


def test_what_knows_no_places_and_what_is_clearly_otherwise_is_told_at_once() -> None:
    scores = {**GOOD, "none": 0.85, "vanilla": 0.80, "xl": 0.95}
    top = results_page(make_results(scores, *PAPER)).partition("## What holds")[0]
    names = "AG; Amazon; SST; SNLI, 3 classes, joint; MIND"
    assert (
        "- **What are positions worth here?** DA-Transformer against no positions: of 5 set-ups ahead on 5, behind on "
        f"0; clearly ahead on 5: {names} (after Holm's correction: {names}); clearly behind on 0." in top
    )
    assert (
        " Transformer against no positions: of 5 set-ups ahead on 0, behind on 5; clearly ahead on 0; clearly behind "
        f"on 5: {names} (after Holm's correction: {names})." in top
    )
    verdicts = [judge(claim, make_results(scores, *PAPER)) for claim in CLAIMS]
    failed = [verdict for verdict in verdicts if verdict.verdict == FAILED]
    assert failed
    numbers = ", ".join(str(number) for number, verdict in enumerate(verdicts, 1) if verdict in failed)
    assert f"; {len(failed)} contradicted ({numbers}); 0 contradicted in some readings; 0 undecided; " in top
    for told, verdicts in (("contradicted", failed), ("undecided", [])):
        assert results_page(make_results(scores, *PAPER)).count(f"not reproduced: {told} |") == len(verdicts)


@pytest.mark.parametrize(
    ("ours", "where"),
    [
        (0.8071, "on 0 of 1 set-up; too small on 0; and within the interval on 1 (AG)."),
        (0.90, "on 0 of 1 set-up; too small on 1 (AG); and within the interval on 0."),
        (0.802, "on 1 (AG) of 1 set-up; too small on 0; and within the interval on 0."),
    ],
)
def test_the_printed_lead_is_held_against_what_was_measured(ours: float, where: str) -> None:
    """The paper prints 0.71 points over Transformer on AG, 0.37 over the best of all; runs are 0.1 points apart."""
    question = "- **By as much as in the paper?** "
    page = results_page(make_results({**GOOD, OURS: ours}, "ag"))
    assert (
        f"{question}The paper's lead over the plain Transformer is too large for the one measured here, ruled out by "
        f"its interval, {where} The paper's lead over the best of the paper's other methods is too "
    ) in page
    best = "on 0 of 1 set-up; too small on 1 (AG)" if ours == GOOD[OURS] else "on 1 (AG) of 1 set-up; too small on 0"
    assert f"methods is too large for the one measured here, ruled out by its interval, {best};" in page
    for results in (make_results(GOOD, "amazon_rating"), make_results(GOOD, "ag", seeds=1)):
        assert question not in results_page(results)


def test_a_lower_error_is_a_gain() -> None:
    errors = {name: 2 - score for name, score in GOOD.items()}
    top = results_page(make_results(errors, "amazon_rating")).partition("## What holds")[0]
    assert "+0.100 [+0.098, +0.102]" in top


def test_heads_that_stay_where_they_were_put_tell_nothing() -> None:
    far = (np.array(STARTED) * 3).tolist()  # on the same sides, but not where they were
    for claim, study in (("one_near_head", "mind"), ("words_look_far", "mind"), ("half_near_half_far", "ag")):
        levels = {LEVEL: STARTED, NEWS: STARTED}
        found = judge(claim, with_heads(study, levels, "distance_weight"))
        assert found.verdict == UNTESTED
        assert "most keep the sign that they were given" in found.numbers
        assert "mean w +0.000 at first, +0.000 ± 0.000 at the end" in found.numbers
    for claim in ("one_near_head", "words_look_far"):
        assert judge(claim, with_heads("mind", {LEVEL: far, NEWS: far}, "distance_weight")).verdict == FAILED


@pytest.mark.parametrize(
    ("claim", "study", "free", "verdict"),
    [
        ("half_near_half_far", "ag", [0.1, 0.2, 0.5, 1.0], FAILED),
        ("half_near_half_far", "ag", [-1.0, -0.5, 0.5, 1.0], HELD),
        ("half_near_half_far", "ag", [0.03, 0.1, 0.15, 0.2], FAILED),  # they have not gone far, but were put nowhere
        ("words_look_far", "mind", [-1.0, 0.2, 0.5, 1.0], HELD),
        ("words_look_far", "mind", [0.03, 0.1, 0.15, 0.2], HELD),
        ("one_near_head", "mind", [-0.03, 0.1, 0.15, 0.2], HELD),
        ("one_near_head", "mind", [-1.0, 0.2, 0.5, 1.0], HELD),
        ("one_near_head", "mind", [-1.0, -0.2, 0.5, 1.0], FAILED),
        ("all_shifts_positive", "mind", [0.2, 0.3, 0.5, 1.0], HELD),
        ("all_shifts_positive", "mind", [-0.2, 0.3, 0.5, 1.0], FAILED),
    ],
)
def test_where_heads_stay_runs_that_start_at_zero_decide(
    claim: str, study: str, free: list[float], verdict: str
) -> None:
    levels = {LEVEL: STARTED, NEWS: STARTED}
    records = [record for runs in with_heads(study, levels, "distance_weight").records[study].values()
               for record in runs.values()]  # fmt: skip

    def judged(runs: int) -> Verdict:
        distances = {level: dict.fromkeys(("distance_weight", "distance_shift"), free) for level in levels}
        rows = [{"study": study, "option": FROM_ZERO, "seed": seed, "distances": distances} for seed in range(runs)]
        return judge(claim, Results(records, beyond={"note": "", "rows": rows}))

    found = judged(3)
    assert found.verdict == verdict
    told = "signs are as if tossed" if claim == "all_shifts_positive" else "most keep the sign"
    assert told in found.numbers.partition(FREE)[0]  # which is said of the runs that start elsewhere
    assert told not in found.numbers.partition(FREE)[2]
    assert f". {FREE} (3 runs): " in found.numbers
    assert judged(0).verdict == judged(2).verdict == UNTESTED
    assert FREE not in judged(2).numbers


def test_runs_from_zero_are_told_of_where_others_decide() -> None:
    records = [record for runs in with_heads("ag", {LEVEL: [-0.1, -0.1, -0.1, 0.1]}, "distance_shift").records["ag"]
               .values() for record in runs.values()]  # fmt: skip
    free = {LEVEL: {"distance_weight": [0.1, 0.1, 0.1, 0.1], "distance_shift": [0.1, 0.1, 0.1, 0.1]}}
    scaled = {LEVEL: {"distance_weight": STARTED, "distance_shift": [-0.1, -0.1, 0.1, 0.1]}}
    rows = [
        {"study": "ag", "option": option, "seed": seed, "distances": distances}
        for option, distances in ((FROM_ZERO, free), (OWN_SCALE, scaled))
        for seed in range(3)
    ]
    found = judge("mild_on_ag", Results(records, beyond={"note": "", "rows": rows}))
    assert found.verdict == HELD
    own, _, rest = found.numbers.partition(FREE)
    from_zero, _, with_scale = rest.partition(SCALED)
    for numbers, count in ((own, 3), (from_zero, 0), (with_scale, 2)):
        assert f"{count}.0 ± 0.0 of 4 heads have v < 0" in numbers
    # What is so in a random order too says nothing.
    order = [
        {**row, "option": SHUFFLED, "distances": {LEVEL: {**free[LEVEL], "distance_weight": STARTED}}}
        for row in rows[:3]
    ]
    even = [{**row, "distances": {LEVEL: {**free[LEVEL], "distance_weight": FLIPPED}}} for row in rows[:3]]
    standing = with_heads("ag", {LEVEL: STARTED}, "distance_weight")
    for runs, verdict in ((even, HELD), ([*even, *order], UNTESTED), ([*even, *order[:2]], HELD), (order, UNTESTED),
                          ([*rows[:3], *order], FAILED)):  # fmt: skip
        told = judge("half_near_half_far", Results(standing.runs("ag", OURS), beyond={"note": "", "rows": runs}))
        assert told.verdict == verdict
        assert told.beyond == (runs is not order)
        assert (RANDOM in told.numbers) == (len(runs) == 6)
        assert told.numbers.endswith("in a random order too was not tried") == (verdict == HELD)
        assert told.numbers.endswith(": that it is so says nothing of the texts") == (
            len(runs) == 6 and verdict == UNTESTED
        )
    # Half of the heads look near with a scale, and none without it, which decides.
    assert judge("half_near_half_far", standing).verdict == UNTESTED
    both = Results(standing.runs("ag", OURS), beyond={"note": "", "rows": rows})
    assert judge("half_near_half_far", both).verdict == FAILED
    alone = Results(standing.runs("ag", OURS), beyond={"note": "", "rows": rows[3:]})
    assert judge("half_near_half_far", alone).verdict == UNTESTED


@pytest.mark.parametrize(
    ("shift", "own"),
    [
        ([-0.01, -0.01, -0.01, 0.01], "v is 0.010 from 0 on average, which tells little"),  # hardly moved
        ([-0.1, -0.1, 0.1, 0.1], "the difference is within noise"),  # half on each side
    ],
)
def test_signs_of_v_that_tell_little_are_decided_by_runs_from_zero(shift: list[float], own: str) -> None:
    standing = with_heads("ag", {LEVEL: shift}, "distance_shift")
    alone = judge("mild_on_ag", standing)
    assert own in alone.numbers
    assert alone.verdict != HELD
    for free, told in (([-0.3] * 4, HELD), ([0.3] * 4, "not reproduced: contradicted")):
        distances = {LEVEL: {"distance_weight": FLIPPED, "distance_shift": free}}
        rows = [{"study": "ag", "option": FROM_ZERO, "seed": seed, "dev": {"accuracy": 0.5}, "distances": distances}
                for seed in range(3)]  # fmt: skip
        results = Results(standing.runs("ag", OURS), beyond={"note": "", "rows": rows})
        assert judge("mild_on_ag", results).told == told
        assert re.search(r"Runs beyond the paper, in which w starts at 0, decide on (.*\b)?10\b", results_page(results))
    assert "Runs beyond the paper, in which" not in results_page(standing)


def test_runs_that_all_agree_have_no_p() -> None:
    levels = {LEVEL: [-0.1, -0.1, -0.1, 0.1]}
    found = judge("mild_on_ag", with_heads("ag", levels, "distance_shift"))
    assert found.verdict == HELD
    assert "3.0 ± 0.0 of 4 heads have v < 0 (the same in all runs against half of them); mean v" in found.numbers
    two = judge("mild_on_ag", with_heads("ag", levels, "distance_shift", seeds=2))
    assert two.verdict == UNTESTED
    assert "(no p against half of them)" in two.numbers


def test_two_runs_are_judged_if_there_is_a_test_of_them() -> None:
    records = [
        make_record("ag", OURS, seed, 0.9, distances={LEVEL: {"distance_weight": STARTED, "distance_shift": shift}})
        for seed, shift in enumerate(([-0.1, -0.1, -0.1, 0.1], [-0.1, 0.1, 0.1, 0.1]))
    ]
    found = judge("mild_on_ag", Results(records))
    assert found.told == "not reproduced: undecided"
    assert "(p = 1.000 against half of them; the difference is within noise)" in found.numbers


def test_one_level_of_two_contradicts_nothing_by_chance() -> None:
    """The lowest v of words is below 0 at p = 0.040, those of news at p = 0.17: Holm's correction leaves 0.079."""
    lowest = {LEVEL: (-0.010, -0.030, -0.012, -0.002, -0.015), NEWS: (-0.01, 0.003, -0.01, -0.012, 0.001)}
    records = [
        make_record("mind", OURS, seed, 0.9, distances={
            level: {"distance_weight": STARTED, "distance_shift": [0.1, 0.1, 0.1, lows[seed]]}
            for level, lows in lowest.items()
        })
        for seed in range(5)
    ]  # fmt: skip
    found = judge("all_shifts_positive", Results(records))
    assert found.told == "not reproduced: undecided"
    assert "(p = 0.040 against 0)" in found.numbers


def test_heads_that_have_hardly_left_zero_are_on_no_side() -> None:
    levels = {LEVEL: STARTED, NEWS: STARTED}
    records = [record for runs in with_heads("ag", levels, "distance_weight").records["ag"].values()
               for record in runs.values()]  # fmt: skip

    def judged(width: float) -> Verdict:
        both = ("distance_weight", "distance_shift")
        free = {level: {name: [-width, -width, width, width] for name in both} for level in levels}
        rows = [{"study": "ag", "option": FROM_ZERO, "seed": seed, "distances": free} for seed in range(3)]
        return judge("half_near_half_far", Results(records, beyond={"note": "", "rows": rows}))

    assert judged(0.1).verdict == HELD
    assert "2.0 ± 0.0 of 4 heads have w < 0" in judged(0.1).numbers.partition(FREE)[2]
    assert "changed sides" not in judged(0.1).numbers.partition(FREE)[2]
    assert judged(0.01).verdict == UNTESTED
    assert judged(0.01).numbers.endswith("w is 0.010 from 0 on average, which tells little")


def test_names_of_levels_are_escaped() -> None:
    levels = {LEVEL: STARTED, "<b>|x": STARTED}
    page = results_page(with_heads("mind", levels, "distance_shift"))
    assert "<b>" not in page


def test_where_a_linear_model_is_better_the_page_says_so_at_the_top() -> None:
    parts = [
        merge(make_results(GOOD, study), Results([make_record(study, LINEAR, 0, score)]))
        for study, score in (("ag", 0.5), ("sst", 0.85), ("amazon", 0.95))
    ]
    page = results_page(merge(*parts))
    told = "all on 1 (AG); some on 1 (SST); none on 1 (Amazon)."
    assert f"Of the paper's five methods ahead of TF-IDF, logistic regression: {told}" in page
    assert "ahead of TF-IDF" not in results_page(make_results(GOOD))
    some = {name: GOOD[name] for name in ("vanilla", OURS)}
    few = merge(make_results(some, "ag"), Results([make_record("ag", LINEAR, 0, 0.5)]))
    assert "ahead of TF-IDF" not in results_page(few)
