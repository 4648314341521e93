"""Is a difference between two methods more than chance? Summaries, t-tests, effect sizes, Holm, bootstrap.

Two questions are kept apart, because they have different answers. The t-tests ask whether other seeds would give the
same order: their sample is the runs. The bootstrap asks whether other test items would: its sample is the items, and
the runs are averaged. A paper that repeats a run five times, as ours does, answers only the first.

Where a test has no answer, as with one run, its p is None and a sentence says why: a 0 or a NaN would be taken for one.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datransformer.ops.checks import check_choice, check_positive_int

Floats = NDArray[np.float64]
Items = NDArray[Any]
Scores = Sequence[float] | Mapping[int, float]
Key = TypeVar("Key", bound=Hashable)

ROUNDING = 1e-12  # values that differ by less than this part of their size differ by rounding alone
SIGNIFICANT = 0.05
NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within as many deviations


@dataclass(frozen=True)
class Summary:
    """What several runs of one method came to.

    Args:
        mean: Their mean.
        deviation: Their standard deviation with n − 1; None for one run, which has none.
        count: How many there were.
    """

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Significance:
    """What a t-test says of two methods.

    Args:
        test: A key of `TEST_NAMES`.
        difference: The first mean less the second.
        effect: The difference in standard deviations: Cohen's d with the pooled one for Welch's test, d_z with that of
            the differences for the paired one; None where there is no spread to measure it by.
        statistic: Student's t; None where it is not defined.
        freedom: Its degrees of freedom; None where they are not defined.
        p: The two-sided p-value; None where there is none.
        why_not: Why there is no p; None where there is one.
        corrected: The p-value after Holm's correction over a family of tests; None before, or where there is no p.
        family: How many tests that family has; None before.
        error: The standard error of the difference; None where it is not defined.
    """

    test: str
    difference: float
    effect: float | None = None
    statistic: float | None = None
    freedom: float | None = None
    p: float | None = None
    why_not: str | None = None
    corrected: float | None = None
    family: int | None = None
    error: float | None = None


@dataclass(frozen=True)
class Interval:
    """Where the difference of two methods would lie on other test items, as far as these items can tell.

    Args:
        difference: The difference on the items themselves, the runs of each method averaged.
        low: The lower end of the percentile interval.
        high: The upper end.
        level: How much of the resamples lies between the two.
        items: How many items there were.
        resamples: How many times they were drawn.
    """

    difference: float
    low: float
    high: float
    level: float
    items: int
    resamples: int


@dataclass(frozen=True)
class Comparison:
    """One metric on one data set: who leads, and our method against the best of the others.

    Args:
        summaries: Each method that has runs, the best first.
        best: The methods with the best mean; several if they tie.
        second: The methods with the second best mean; none if all tie.
        missing: The methods without runs.
        ours: Our method.
        rival: The best of the others.
        gain: How much better ours is than the rival; negative where it is worse, whichever way the metric points.
        welch: Ours against the rival, the runs taken as independent.
        paired: Ours against the rival seed by seed; None where their seeds are not known or not the same.
        higher_is_better: Which way the metric points.
        interval: Ours less the rival over resampled test items, where predictions were kept.
    """

    summaries: Mapping[str, Summary]
    best: tuple[str, ...]
    second: tuple[str, ...]
    missing: tuple[str, ...]
    ours: str
    rival: str
    gain: float
    welch: Significance
    paired: Significance | None
    higher_is_better: bool = True
    interval: Interval | None = None


@dataclass(frozen=True)
class Correlation:
    """How far one quantity goes up with another.

    Args:
        r: Pearson's coefficient.
        p: Of no correlation, two-sided.
        low: The lower end of the 95 % interval of r.
        high: The upper end.
        count: How many points there were.
    """

    r: float
    p: float
    low: float
    high: float
    count: int


TEST_NAMES = {"welch": "Welch's t-test", "paired": "paired t-test"}


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation with n − 1, and count."""
    return _summary(_numbers("values", values))


def welch_t_test(first: Sequence[float], second: Sequence[float]) -> Significance:
    """Whether two methods differ, their runs independent and of different spread."""
    return welch_of_summaries(_summary(_numbers("first", first)), _summary(_numbers("second", second)))


def welch_of_summaries(first: Summary, second: Summary) -> Significance:
    """`welch_t_test` from means and deviations alone, which is all that a published table gives."""
    difference = first.mean - second.mean
    if first.deviation is None or second.deviation is None or min(first.count, second.count) < 2:
        return Significance("welch", difference, why_not="a method with one run has no spread to test against")
    squares = first.deviation**2, second.deviation**2
    weights = first.count - 1, second.count - 1
    if squares == (0, 0):
        return Significance("welch", difference, why_not="neither method's runs differ from one another")
    pooled = math.sqrt((weights[0] * squares[0] + weights[1] * squares[1]) / sum(weights))
    errors = squares[0] / first.count, squares[1] / second.count
    # Welch and Satterthwaite; shares of the sum, since the squares of small variances may underflow.
    shares = errors[0] / sum(errors), errors[1] / sum(errors)
    freedom = 1 / (shares[0] ** 2 / weights[0] + shares[1] ** 2 / weights[1])
    error = math.sqrt(sum(errors))
    statistic = difference / error
    p = two_sided(statistic, freedom)
    return Significance("welch", difference, difference / pooled, statistic, freedom, p, error=error)


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> Significance:
    """Whether two methods differ, run by run: the i-th of both share a seed, and so data order and split."""
    one, other = _numbers("first", first), _numbers("second", second)
    if len(one) != len(other):
        raise ValueError(f"second: got {len(other)} runs, expected {len(one)} as for first")
    # The differences of equal gaps are equal but for rounding, and that is relative to the scores.
    found = _summary(one - other, scale=float(max(np.abs(one).max(), np.abs(other).max())))
    if found.deviation is None:
        return Significance("paired", found.mean, why_not="one pair of runs has no spread to test against")
    if found.deviation == 0:
        return Significance("paired", found.mean, why_not="the differences of all pairs of runs are the same")
    effect = found.mean / found.deviation
    statistic, freedom = effect * math.sqrt(found.count), found.count - 1
    p, error = two_sided(statistic, freedom), found.deviation / math.sqrt(found.count)
    return Significance("paired", found.mean, effect, statistic, freedom, p, error=error)


def correlate(first: Sequence[float], second: Sequence[float]) -> Correlation | None:
    """Pearson's correlation, with Fisher's interval; None for fewer than four points or where either is constant."""
    one, other = _numbers("first", first), _numbers("second", second)
    if len(one) != len(other):
        raise ValueError(f"second: got {len(other)} values, expected {len(one)} as for first")
    if len(one) < 4 or 0 in (_summary(one).deviation, _summary(other).deviation):
        return None
    r = float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))
    freedom = len(one) - 2
    rest = 1 - r * r
    p = two_sided(r * math.sqrt(freedom / rest), freedom) if rest > 0 else 0.0
    middle, half = math.atanh(np.clip(r, -1 + ROUNDING, 1 - ROUNDING)), NORMAL_95 / math.sqrt(len(one) - 3)
    return Correlation(r, p, math.tanh(middle - half), math.tanh(middle + half), len(one))


def two_sided(statistic: float, freedom: float) -> float:
    """P(|T| ≥ |t|) for Student's T: the regularised incomplete beta function I_x(ν/2, 1/2) at x = ν / (ν + t²).

    Written out because the library does not otherwise need SciPy. Exact to twelve digits for a thousand degrees of
    freedom and to eight for a million, where the gamma functions' logarithms cancel.
    """
    square = statistic * statistic
    if math.isinf(square):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square))


def interval_of(test: Significance, level: float = 0.95) -> tuple[float, float] | None:
    """Between which differences the true one lies with a probability of ``level``; None where there is no test."""
    if test.error is None or test.freedom is None:
        return None
    reach = _within(level, test.freedom) * test.error
    return test.difference - reach, test.difference + reach


def _within(share: float, freedom: float) -> float:
    """How far from 0 a ``share`` of Student's T lies at most."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - share:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - share else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float, complement: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    Args:
        a: The first shape, positive.
        b: The second shape, positive.
        x: The upper end of the integral, 0 to 1.
        complement: 1 − x, given apart since it would be lost to rounding where x is nearly 1.
    """
    if x <= 0 or complement <= 0:
        return 0.0 if x <= 0 else 1.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(complement) - log_beta)
    if x < (a + 1) / (a + b + 2):  # where the continued fraction converges quickly; elsewhere its mirror image does
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, complement) / b


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """Holm's correction: what each p-value of a family is worth, given that the family gave chance many chances.

    The k-th smallest of m is multiplied by m − k + 1, never falls below the one before it, and never exceeds 1. A test
    without a p-value was not carried out: it stays None and does not count in m.
    """
    present = {key: p for key, p in p_values.items() if p is not None}
    for key, p in present.items():
        if not 0 <= p <= 1:
            raise ValueError(f"p_values[{key!r}]: got {p}, expected 0 to 1, or None")
    corrected: dict[Key, float | None] = dict.fromkeys(p_values)
    highest = 0.0
    for before, (key, p) in enumerate(sorted(present.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(present) - before)))
        corrected[key] = highest
    return corrected


def correct(comparisons: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """The comparisons with Holm's correction over all of them as one family, Welch's tests and paired ones apart.

    A reader takes one of the two tests as the one that counts; counting both would correct for a choice never made.
    """
    welch = _corrected({key: comparison.welch for key, comparison in comparisons.items()})
    paired = _corrected({key: comparison.paired for key, comparison in comparisons.items() if comparison.paired})
    return {
        key: replace(comparison, welch=welch[key], paired=paired.get(key)) for key, comparison in comparisons.items()
    }


def ranked(means: Mapping[str, float], higher_is_better: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods with the best and those with the second best mean; whoever ties shares the place."""
    places = sorted(set(means.values()), reverse=higher_is_better)[:2]
    holders = [tuple(method for method, mean in means.items() if mean == place) for place in places]
    best, second, *_ = *holders, (), ()
    return best, second


def compare(scores: Mapping[str, Scores], ours: str, higher_is_better: bool = True) -> Comparison:
    """Our method against the best of the others, in one metric on one data set.

    The rival is chosen by the very runs it is tested with, and so is flattered rather than slighted.

    Args:
        scores: The runs of each method: a sequence, or a mapping from seed to score. Runs are paired only by seeds, and
            only where ours and the rival have the same. A method without runs is left out, and named.
        ours: Which of them is ours.
        higher_is_better: Whether a higher score is a better one.
    """
    check_choice("ours", ours, scores)
    runs = {method: _values(given) for method, given in scores.items() if len(given)}
    if ours not in runs or len(runs) < 2:
        raise ValueError(f"scores: got runs of {', '.join(runs) or 'none'}, expected some of {ours} and of another")
    sign = 1 if higher_is_better else -1
    unordered = {method: _summary(_numbers(f"scores[{method!r}]", values)) for method, values in runs.items()}
    summaries = dict(sorted(unordered.items(), key=lambda item: -sign * item[1].mean))
    best, second = ranked({method: summary.mean for method, summary in summaries.items()}, higher_is_better)
    rival = next(method for method in summaries if method != ours)
    return Comparison(
        summaries=summaries,
        best=best,
        second=second,
        missing=tuple(method for method in scores if method not in runs),
        ours=ours,
        rival=rival,
        gain=sign * (summaries[ours].mean - summaries[rival].mean),
        welch=welch_of_summaries(summaries[ours], summaries[rival]),
        paired=_paired_by_seed(scores[ours], scores[rival]),
        higher_is_better=higher_is_better,
    )


# A resampled metric takes answers [runs, items], labels [items] and how many times each item was drawn
# [resamples, items], and gives [resamples, runs]. Times instead of drawn items turn the sums into one matrix product.
ResampledMetric = Callable[[Items, Items, Floats], Floats]


def mean_of_items(answers: Items, labels: Items, times: Floats) -> Floats:
    """The mean of numbers that each item has, such as the AUC of an impression; the labels are not looked at."""
    return np.asarray(times @ answers.T / times.sum(axis=1, keepdims=True))  # [resamples, runs]


def accuracy(answers: Items, labels: Items, times: Floats) -> Floats:
    """The share of items whose answer is their label."""
    return mean_of_items((answers == labels).astype(np.float64), labels, times)


def macro_f1(answers: Items, labels: Items, times: Floats) -> Floats:
    """F1 averaged over the classes that occur in a resample, as `datransformer.train.metrics` has it."""
    total = np.zeros((len(times), len(answers)))  # [resamples, runs]
    occurring = np.zeros_like(total)
    for name in np.unique(np.concatenate([answers.ravel(), labels])):
        answered, labelled = (answers == name).astype(np.float64), (labels == name).astype(np.float64)
        given = times @ answered.T + (times @ labelled)[:, None]  # [resamples, runs]
        right = times @ (answered * labelled).T
        total += np.divide(2 * right, given, out=np.zeros_like(total), where=given > 0)
        occurring += given > 0
    return total / occurring


def root_mean_squared_error(answers: Items, labels: Items, times: Floats) -> Floats:
    """The root of the mean squared difference of answer and label."""
    return np.asarray(np.sqrt(mean_of_items((answers - labels) ** 2, labels, times)))


def mean_absolute_error(answers: Items, labels: Items, times: Floats) -> Floats:
    """The mean difference of answer and label, without its sign."""
    return mean_of_items(np.abs(answers - labels), labels, times)


RESAMPLED: dict[str, ResampledMetric] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "mean": mean_of_items,
}


def bootstrap_difference(
    ours: Items,
    other: Items,
    labels: Items | None,
    metric: str | ResampledMetric,
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The percentile interval of ours less other over resampled items, the same items for both.

    Each resample is scored for every run and the runs of a method are averaged, so that the interval tells of the
    choice of items alone, not of seeds; `welch_t_test` tells of those.

    Args:
        ours: What our method answered, [items] or [runs, items].
        other: What the other answered, of as many items; it may have another number of runs.
        labels: What is right, [items]; None where the answers are already numbers to average (``metric="mean"``).
        metric: A key of `RESAMPLED`, or a function of the same kind.
        resamples: How often to draw as many items as there are.
        level: How much of the resamples the interval holds.
        seed: Seeds the draws.
    """
    check_positive_int("resamples", resamples)
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, expected a number between 0 and 1")
    if isinstance(metric, str):
        check_choice("metric", metric, RESAMPLED)
        if labels is None and metric != "mean":
            raise ValueError(f"labels: got None, expected what is right for each item, which {metric} asks for")
        metric = RESAMPLED[metric]
    ours, other = np.atleast_2d(np.asarray(ours)), np.atleast_2d(np.asarray(other))  # [runs, items]
    items = ours.shape[1]
    labels = np.zeros(items) if labels is None else np.asarray(labels)
    _check_items(ours, other, labels)

    def difference(times: Floats) -> Floats:  # [resamples]
        return np.asarray(metric(ours, labels, times).mean(axis=1) - metric(other, labels, times).mean(axis=1))

    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // items)
    blocks = [min(block, resamples - start) for start in range(0, resamples, block)]
    differences = np.concatenate([difference(_draw(generator, count, items)) for count in blocks])
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    observed = difference(np.ones((1, items)))
    return Interval(float(observed[0]), float(low), float(high), level, items, resamples)


_BLOCK = 2_000_000  # draws at a time: their counts take 16 MB


def _draw(generator: np.random.Generator, count: int, items: int) -> Floats:
    """How many times each item is drawn, ``count`` times over, [count, items]."""
    drawn = generator.integers(0, items, (count, items)) + items * np.arange(count)[:, None]
    return np.bincount(drawn.ravel(), minlength=count * items).reshape(count, items).astype(np.float64)


def _check_items(ours: Items, other: Items, labels: Items) -> None:
    items = ours.shape[-1]
    if ours.ndim != 2 or 0 in ours.shape:
        raise ValueError(f"ours: got shape {ours.shape}, expected [items] or [runs, items], not empty")
    if other.ndim != 2 or other.shape[1] != items or len(other) == 0:
        raise ValueError(f"other: got shape {other.shape}, expected {items} items as in ours")
    for name, answers in (("ours", ours), ("other", other)):
        if answers.dtype.kind == "f" and not np.isfinite(answers).all():
            raise ValueError(f"{name}: {np.count_nonzero(~np.isfinite(answers))} values are NaN or infinite")
    if labels.shape != (items,):
        raise ValueError(f"labels: got shape {labels.shape}, expected {items} items as in ours")


def _numbers(argument: str, values: Sequence[float]) -> Floats:
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or len(numbers) == 0:
        raise ValueError(f"{argument}: got shape {numbers.shape}, expected one axis that is not empty")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{argument}: {np.count_nonzero(~np.isfinite(numbers))} values are NaN or infinite")
    return numbers


def _summary(values: Floats, scale: float | None = None) -> Summary:
    """Mean, deviation and count; a spread that is rounding alone, relative to ``scale``, is none."""
    scale = float(np.abs(values).max()) if scale is None else scale
    if len(values) == 1:
        return Summary(float(values[0]), None, 1)
    if np.ptp(values) <= ROUNDING * scale:
        return Summary(float(values.mean()), 0.0, len(values))
    return Summary(float(values.mean()), float(values.std(ddof=1)), len(values))


def _values(scores: Scores) -> Sequence[float]:
    return list(scores.values()) if isinstance(scores, Mapping) else scores


def _paired_by_seed(ours: Scores, rival: Scores) -> Significance | None:
    if not isinstance(ours, Mapping) or not isinstance(rival, Mapping) or ours.keys() != rival.keys():
        return None
    return paired_t_test([ours[seed] for seed in ours], [rival[seed] for seed in ours])


def _corrected(tests: Mapping[Key, Significance]) -> dict[Key, Significance]:
    family = sum(test.p is not None for test in tests.values())
    values = holm({key: test.p for key, test in tests.items()})
    return {key: replace(test, corrected=values[key], family=family) for key, test in tests.items()}


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method (Abramowitz and Stegun 26.5.8)."""
    tiny = 1e-300  # stands in for a denominator of 0
    sum_over = 1.0
    fraction = sum_under = 1 / _away_from(1 - (a + b) * x / (a + 1), tiny)
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            sum_under = 1 / _away_from(1 + term * sum_under, tiny)
            sum_over = _away_from(1 + term / sum_over, tiny)
            factor = sum_under * sum_over
            fraction *= factor
        if abs(factor - 1) < 1e-15:
            break
    return fraction


def _away_from(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
