import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from datransformer.report.statistics import (
    RESAMPLED,
    Comparison,
    ResampledMetric,
    Summary,
    bootstrap_difference,
    compare,
    correct,
    correlate,
    holm,
    interval_of,
    paired_t_test,
    ranked,
    summarise,
    two_sided,
    welch_of_summaries,
    welch_t_test,
)
from datransformer.train.metrics import classification_metrics, rating_metrics

SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=7).filter(lambda values: max(values) - min(values) > 1e-6)
P_VALUES = st.dictionaries(st.text(max_size=3), st.none() | st.floats(0, 1), max_size=8)


def test_summary_by_hand() -> None:
    assert summarise([2, 4, 9]) == Summary(5.0, math.sqrt((9 + 1 + 16) / 2), 3)
    assert summarise([0.9]) == Summary(0.9, None, 1)


def test_equal_runs_have_a_spread_of_exactly_zero() -> None:
    assert np.std([0.1] * 3, ddof=1) > 0  # the rounding that would be taken for a spread
    assert summarise([0.1] * 3).deviation == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"values: got shape \(0,\), expected one axis that is not empty"),
        ([[1.0]], r"values: got shape \(1, 1\)"),
        ([0.1, math.nan], "values: 1 values are NaN or infinite"),
    ],
)
def test_summary_refuses(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarise(values)


@pytest.mark.parametrize("freedom", [0.5, 1, 1.7, 4, 8, 30.3, 1000])
@pytest.mark.parametrize("statistic", [0.0, 1e-3, 0.3, 1, 2.3, 5, 20, 1e3, 1e10, 1e200])
def test_students_distribution_agrees_with_scipy(statistic: float, freedom: float) -> None:
    expected = 2 * stats.t.sf(statistic, freedom)
    assert two_sided(statistic, freedom) == pytest.approx(expected, rel=1e-11, abs=1e-300)
    assert two_sided(-statistic, freedom) == two_sided(statistic, freedom)


def test_students_distribution_keeps_eight_digits_at_a_million_degrees() -> None:
    assert two_sided(2.3, 1e6) == pytest.approx(2 * stats.t.sf(2.3, 1e6), rel=1e-8)


def test_students_distribution_near_zero_by_hand() -> None:
    # One degree of freedom is Cauchy's: P(|T| ≥ t) = 1 − 2/π · atan t. SciPy loses the last digits of it.
    assert 1 - two_sided(1e-8, 1) == pytest.approx(2 / math.pi * math.atan(1e-8), rel=1e-7)
    assert two_sided(1, 1) == pytest.approx(0.5)


@given(SCORES, SCORES)
def test_welch_agrees_with_scipy(first: list[float], second: list[float]) -> None:
    found, expected = welch_t_test(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-8, abs=1e-12)
    assert found.freedom == pytest.approx(expected.df, rel=1e-8)
    swapped = welch_t_test(second, first)
    assert swapped.p == pytest.approx(found.p)
    assert swapped.difference == -found.difference


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_interval_agrees_with_scipy(level: float) -> None:
    first, second = [0.8, 0.82, 0.85, 0.81], [0.7, 0.9, 0.75]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(level)
    assert interval_of(welch_t_test(first, second), level) == pytest.approx((expected.low, expected.high), rel=1e-7)
    assert interval_of(welch_t_test(first, [0.8])) is None
    same = [2 * float(np.mean(first)) - score for score in first]  # of the same mean
    low, high = interval_of(welch_t_test(first, same), level) or (0, 0)
    assert low < 0 < high
    assert low + high == pytest.approx(0, abs=1e-12)
    assert interval_of(welch_t_test([0.8, 0.8], [0.8, 0.8])) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=7))
def test_paired_agrees_with_scipy(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    found = paired_t_test(first.tolist(), second.tolist())
    if np.ptp(first - second) < 1e-6:
        return
    expected = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.freedom == len(pairs) - 1
    assert found.effect == pytest.approx(expected.statistic / math.sqrt(len(pairs)), rel=1e-8, abs=1e-12)


def test_effect_sizes_by_hand() -> None:
    # Variances 1 (three runs) and 8 (two), pooled by their n − 1: (2·1 + 1·8) / 3.
    found = welch_t_test([3, 4, 5], [0, 4])
    assert found.difference == 2
    assert found.effect == pytest.approx(2 / math.sqrt((2 * 1 + 1 * 8) / 3))
    # Differences 1, 2, 3: mean 2, deviation 1.
    assert paired_t_test([2, 4, 6], [1, 2, 3]).effect == pytest.approx(2)


def test_one_constant_method_is_tested_against_the_spread_of_the_other() -> None:
    found = welch_t_test([0.5, 0.5, 0.5], [0.1, 0.2, 0.3])
    assert found.freedom == pytest.approx(2)
    assert found.p == pytest.approx(stats.ttest_1samp([0.1, 0.2, 0.3], 0.5).pvalue)


@pytest.mark.parametrize(
    ("first", "second", "why_not"),
    [
        ([0.5], [0.1, 0.2], "a method with one run has no spread"),
        ([0.5, 0.6], [0.1], "a method with one run has no spread"),
        ([0.5], [0.1], "a method with one run has no spread"),
        ([0.1, 0.1, 0.1], [0.3, 0.3, 0.3], "neither method's runs differ"),
    ],
)
def test_welch_says_why_there_is_no_p(first: list[float], second: list[float], why_not: str) -> None:
    found = welch_t_test(first, second)
    assert (found.p, found.effect, found.statistic) == (None, None, None)
    assert found.difference == pytest.approx(np.mean(first) - np.mean(second))
    assert found.why_not is not None
    assert found.why_not.startswith(why_not)


@pytest.mark.parametrize(
    ("first", "second", "why_not"),
    [
        ([0.5], [0.1], "one pair of runs has no spread to test against"),
        ([0.9, 0.8, 0.7], [0.8, 0.7, 0.6], "the differences of all pairs of runs are the same"),
        ([0.5, 0.5], [0.5, 0.5], "the differences of all pairs of runs are the same"),
    ],
)
def test_paired_says_why_there_is_no_p(first: list[float], second: list[float], why_not: str) -> None:
    found = paired_t_test(first, second)
    assert found.p is None
    assert found.why_not == why_not


def test_paired_refuses_unequal_numbers_of_runs() -> None:
    with pytest.raises(ValueError, match="second: got 1 runs, expected 2 as for first"):
        paired_t_test([1, 2], [1])


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04, and none below the one before it.
    given = {"a": 0.03, "b": 0.01, "none": None, "c": 0.04, "d": 0.02}
    expected = {"a": 0.06, "b": 0.04, "none": None, "c": 0.06, "d": 0.06}
    assert holm(given) == {key: value and pytest.approx(value) for key, value in expected.items()}
    assert holm({1: 0.7, 2: 0.6}) == {1: 1.0, 2: 1.0}
    assert holm({}) == {}


@given(P_VALUES)
def test_holm_never_lowers_and_keeps_the_order(values: dict[str, float | None]) -> None:
    found = holm(values)
    assert list(found) == list(values)
    present = sorted((p, found[key]) for key, p in values.items() if p is not None)
    family = len(present)
    assert all(after is not None and p <= after <= min(1, family * p) for p, after in present)
    corrected = [after for _, after in present]
    assert corrected == sorted(corrected, key=lambda after: -1.0 if after is None else after)
    assert all(found[key] is None for key, p in values.items() if p is None)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_probability(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"p_values\['a'\]: got .*, expected 0 to 1, or None"):
        holm({"a": wrong})


def test_ranks_share_a_place() -> None:
    means = {"a": 0.5, "b": 0.9, "c": 0.9, "d": 0.7}
    assert ranked(means) == (("b", "c"), ("d",))
    assert ranked(means, higher_is_better=False) == (("a",), ("d",))
    assert ranked({"a": 1.0, "b": 1.0}) == (("a", "b"), ())
    assert ranked({}) == ((), ())


RUNS = {"vanilla": [0.5, 0.6], "xl": [0.7, 0.9], "distance_aware": [0.9, 0.94], "rpr": []}


def test_comparison_names_the_best_and_tests_against_the_best_of_the_others() -> None:
    found = compare(RUNS, "distance_aware")
    assert list(found.summaries) == ["distance_aware", "xl", "vanilla"]
    assert (found.best, found.second, found.missing) == (("distance_aware",), ("xl",), ("rpr",))
    assert found.rival == "xl"
    assert found.gain == pytest.approx(0.12)
    assert found.welch == welch_t_test(RUNS["distance_aware"], RUNS["xl"])
    assert found.paired is None  # nobody said which runs share a seed


def test_comparison_where_we_lose_has_a_negative_gain() -> None:
    found = compare(RUNS, "vanilla")
    assert (found.rival, found.best) == ("distance_aware", ("distance_aware",))
    assert found.gain == pytest.approx(-0.37)


def test_comparison_of_errors_turns_around() -> None:
    found = compare({"vanilla": [0.8, 0.9], "distance_aware": [0.6, 0.7], "xl": [1.5]}, "distance_aware", False)
    assert (found.best, found.second, found.rival) == (("distance_aware",), ("vanilla",), "vanilla")
    assert found.gain == pytest.approx(0.2)
    assert found.welch.difference == pytest.approx(-0.2)


def test_runs_are_paired_by_seed_whatever_their_order() -> None:
    found = compare({"xl": {1: 0.5, 3: 0.7, 2: 0.6}, "ours": {3: 0.8, 2: 0.68, 1: 0.61}}, "ours").paired
    assert found == paired_t_test([0.8, 0.68, 0.61], [0.7, 0.6, 0.5])
    other_seeds = compare({"xl": {1: 0.5, 4: 0.7, 2: 0.6}, "ours": {3: 0.8, 2: 0.68, 1: 0.61}}, "ours")
    assert other_seeds.paired is None


def test_comparison_refuses() -> None:
    with pytest.raises(ValueError, match="ours: got 'da', expected one of 'vanilla', 'xl', 'distance_aware', 'rpr'"):
        compare(RUNS, "da")
    with pytest.raises(ValueError, match="scores: got runs of a, expected some of b and of another"):
        compare({"a": [1.0], "b": []}, "b")
    with pytest.raises(ValueError, match="scores: got runs of a, expected some of a and of another"):
        compare({"a": [1.0], "b": []}, "a")
    with pytest.raises(ValueError, match=r"scores\['b'\]: 1 values are NaN"):
        compare({"a": [1.0], "b": [math.nan]}, "a")


def test_correction_counts_the_tests_that_were_made() -> None:
    seeds = {"xl": {0: 0.5, 1: 0.7, 2: 0.6}, "ours": {0: 0.8, 1: 0.69, 2: 0.65}}
    plain: dict[str, Comparison] = {
        "ag": compare({"xl": [0.5, 0.52, 0.51], "ours": [0.6, 0.63, 0.61]}, "ours"),
        "sst": compare(seeds, "ours"),
        "one run": compare({"xl": [0.5], "ours": [0.6]}, "ours"),
    }
    found = correct(plain)
    assert list(found) == list(plain)
    first, second = plain["ag"].welch.p, plain["sst"].welch.p
    assert first is not None
    assert second is not None
    assert first < second
    assert found["ag"].welch.corrected == pytest.approx(2 * first)
    assert found["sst"].welch.corrected == pytest.approx(max(second, 2 * first))
    assert found["one run"].welch.corrected is None
    assert [comparison.welch.family for comparison in found.values()] == [2, 2, 2]
    paired = found["sst"].paired
    assert paired is not None
    assert (paired.corrected, paired.family) == (paired.p, 1)  # the only one of its family
    assert found["ag"].paired is None
    assert replace(found["ag"], welch=plain["ag"].welch) == plain["ag"]


def test_welch_of_published_numbers() -> None:
    # MRR on MIND in the paper: 33.36 ± 0.16 and 33.15 ± 0.16, five runs: t = 0.21 / (0.16 √(2/5)) with 8 degrees.
    found = welch_of_summaries(Summary(33.36, 0.16, 5), Summary(33.15, 0.16, 5))
    assert found.freedom == pytest.approx(8)
    assert found.statistic == pytest.approx(0.21 / (0.16 * math.sqrt(0.4)))
    assert found.p == pytest.approx(2 * stats.t.sf(0.21 / (0.16 * math.sqrt(0.4)), 8))
    assert found.effect == pytest.approx(0.21 / 0.16)
    assert welch_of_summaries(Summary(33.36, 0.16, 5), Summary(33.15, 0.16, 1)).p is None


RUNS_OF_US, RUNS_OF_OTHER, ITEMS, CLASSES = 3, 2, 53, 5


def answers(seed: int = 0) -> tuple[NDArray[np.int_], NDArray[np.int_], NDArray[np.int_]]:
    """Ours is right more often than the other; class 4 is rare and so missing in some resamples."""
    generator = np.random.default_rng(seed)
    labels = np.minimum(generator.integers(0, 13, ITEMS) // 3, CLASSES - 1)
    noise = generator.integers(0, CLASSES - 1, (RUNS_OF_US + RUNS_OF_OTHER, ITEMS))
    ours = np.where(generator.random((RUNS_OF_US, ITEMS)) < 0.8, labels, noise[:RUNS_OF_US])
    other = np.where(generator.random((RUNS_OF_OTHER, ITEMS)) < 0.5, labels, noise[RUNS_OF_US:])
    return ours, other, labels


def plain_metric(name: str) -> float:
    ours, other, labels = answers()
    if name in ("rmse", "mae"):
        scores = [
            [rating_metrics(run.astype(float), labels.astype(float))[name] for run in method]
            for method in (ours, other)
        ]
    elif name == "mean":
        scores = [[float(run.mean()) for run in method] for method in (ours, other)]
    else:
        scores = [[classification_metrics(run, labels, CLASSES)[name] for run in method] for method in (ours, other)]
    return float(np.mean(scores[0]) - np.mean(scores[1]))


@pytest.mark.parametrize("name", RESAMPLED)
def test_difference_is_that_of_the_library_s_metrics_averaged_over_runs(name: str) -> None:
    found = bootstrap_difference(*answers(), name, resamples=20)
    assert found.difference == pytest.approx(plain_metric(name))
    assert (found.items, found.resamples) == (ITEMS, 20)


def resampled(metric: Callable[[Any, Any], float]) -> ResampledMetric:
    """Any function of answers [items] and labels [items], one call a run and resample."""

    def metric_of_times(answers: Any, labels: Any, times: Any) -> NDArray[np.float64]:
        drawn = [np.repeat(np.arange(len(labels)), row) for row in times.astype(np.int_)]
        return np.array([[metric(run[chosen], labels[chosen]) for run in answers] for chosen in drawn])

    return metric_of_times


def test_resampling_by_counts_is_resampling_items() -> None:
    """The vectorised metrics against one plain call a resample, on the very same draws."""
    for name in ("accuracy", "macro_f1"):

        def plain(predicted: NDArray[np.int_], labels: NDArray[np.int_], name: str = name) -> float:
            return classification_metrics(predicted, labels, CLASSES)[name]

        quick = bootstrap_difference(*answers(), name, resamples=150)
        slow = bootstrap_difference(*answers(), resampled(plain), resamples=150)
        assert quick.low == pytest.approx(slow.low)
        assert quick.high == pytest.approx(slow.high)
        assert quick.low < quick.difference < quick.high


def test_interval_of_a_mean_is_the_textbook_s() -> None:
    values = np.random.default_rng(0).normal(size=2003)
    found = bootstrap_difference(values, np.zeros(2003), None, "mean", resamples=4000)
    error = values.std() / math.sqrt(2003)
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.08 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.08 * error)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        labels = np.zeros(199, np.int_)
        ours, other = (generator.random((1, 199)) > 0.8).astype(int), (generator.random((1, 199)) > 0.7).astype(int)
        found = bootstrap_difference(ours, other, labels, "accuracy", resamples=400, seed=trial)
        covered += found.low <= 0.1 <= found.high
    assert 0.91 <= covered / 300 <= 0.985  # 0.95 ± three standard errors


def test_items_are_drawn_alike_for_both_methods() -> None:
    ours, _, labels = answers()
    found = bootstrap_difference(ours, ours, labels, "macro_f1", resamples=50)
    assert (found.low, found.difference, found.high) == (0, 0, 0)


def test_seed_level_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = answers()
    whole = bootstrap_difference(*given, "accuracy", resamples=101)
    assert bootstrap_difference(*given, "accuracy", resamples=101) == whole
    assert bootstrap_difference(*given, "accuracy", resamples=101, seed=1) != whole
    narrow = bootstrap_difference(*given, "accuracy", resamples=101, level=0.5)
    assert whole.low < narrow.low < narrow.high < whole.high
    monkeypatch.setattr("datransformer.report.statistics._BLOCK", 7 * ITEMS)
    assert bootstrap_difference(*given, "accuracy", resamples=101) == whole


def test_one_run_may_come_without_its_axis() -> None:
    ours, other, labels = answers()
    flat = bootstrap_difference(ours[0], other[0], labels, "accuracy", resamples=50)
    assert flat == bootstrap_difference(ours[:1], other[:1], labels, "accuracy", resamples=50)


def test_bootstrap_refuses() -> None:
    ours, other, labels = answers()
    with pytest.raises(ValueError, match=r"other: got shape \(2, 52\), expected 53 items as in ours"):
        bootstrap_difference(ours, other[:, 1:], labels, "accuracy")
    with pytest.raises(ValueError, match=r"labels: got shape \(52,\), expected 53 items as in ours"):
        bootstrap_difference(ours, other, labels[1:], "accuracy")
    with pytest.raises(ValueError, match=r"ours: got shape \(1, 0\), expected \[items\] or \[runs, items\], not empty"):
        bootstrap_difference(np.array([]), np.array([]), None, "mean")
    with pytest.raises(ValueError, match="labels: got None, expected what is right for each item, which accuracy asks"):
        bootstrap_difference(ours, other, None, "accuracy")
    with pytest.raises(ValueError, match="other: 2 values are NaN or infinite"):
        bootstrap_difference(ours, other / np.where(np.arange(ITEMS) == 3, np.nan, 1), None, "mean")
    with pytest.raises(ValueError, match="metric: got 'f1', expected one of 'accuracy', 'macro_f1'"):
        bootstrap_difference(ours, other, labels, "f1")
    with pytest.raises(ValueError, match="resamples: got 0, expected a positive int"):
        bootstrap_difference(ours, other, labels, "accuracy", resamples=0)
    with pytest.raises(ValueError, match="level: got 95, expected a number between 0 and 1"):
        bootstrap_difference(ours, other, labels, "accuracy", level=95)


def test_correlation_agrees_with_scipy() -> None:
    first, second = [1.0, 2.0, 3.5, 5.0, 8.0, 9.0], [0.3, 0.1, 0.5, 0.2, 0.7, 0.4]
    found, expected = correlate(first, second), stats.pearsonr(first, second)
    assert found is not None
    assert (found.r, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high, found.count) == pytest.approx((interval.low, interval.high, 6))


def test_correlation_at_its_ends() -> None:
    line = correlate([1, 2, 3, 4], [-2, -4, -6, -8])
    assert line is not None
    assert (line.r, line.p) == pytest.approx((-1, 0), abs=1e-6)
    assert -1 <= line.low <= line.high < -0.9
    assert correlate([1, 2, 3], [1, 2, 4]) is None
    assert correlate([1, 2, 3, 4], [0.1] * 4) is None
    with pytest.raises(ValueError, match="second: got 3 values, expected 4"):
        correlate([1, 2, 3, 4], [1, 2, 3])
