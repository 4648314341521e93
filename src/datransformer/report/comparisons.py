"""Ours against the best of the others in every metric of every study, over runs and over test items."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from datransformer.experiments.paper import METHODS, OURS, RESULTS, Printed
from datransformer.experiments.studies import GROUPS, STUDIES
from datransformer.report.records import Results, as_numbers, items_of
from datransformer.report.statistics import (
    SIGNIFICANT,
    Comparison,
    Significance,
    bootstrap_difference,
    compare,
    correct,
    interval_of,
    ranked,
    welch_t_test,
)
from datransformer.report.tables import Column
from datransformer.train.tasks import LOWER_IS_BETTER

Key = tuple[str, str]  # study, metric
VANILLA = "vanilla"
OTHERS = tuple(name for name in METHODS if name != OURS)

RESAMPLES = 2_000  # for a page with dozens of intervals: their ends move by a few hundredths of their length


def compare_all(results: Results) -> dict[Key, Comparison]:
    """Ours against the best of the paper's other methods, corrected over all metrics of all data sets."""
    found: dict[Key, Comparison] = {}
    for study in results.studies:
        for metric in STUDIES[study].metrics:
            scores = {name: results.scores(study, name, metric) for name in METHODS}
            if scores[OURS] and sum(map(bool, scores.values())) > 1:
                comparison = compare(scores, OURS, metric not in LOWER_IS_BETTER)
                found[study, metric] = _with_interval(results, study, metric, comparison)
    return correct(found)


def welch_between(results: Results, study: str, first: str, second: str, metric: str) -> Significance | None:
    """Welch's test between the runs of two variants; None where one of them has no runs."""
    scores = [list(results.scores(study, name, metric).values()) for name in (first, second)]
    return welch_t_test(*scores) if all(scores) else None


def group_of(study: str) -> str:
    """The data set of a study, in whatever way it is used."""
    return next(name for name, studies in GROUPS.items() if study in studies)


def printed_of(study: str) -> Mapping[str, Mapping[str, Printed]]:
    """What the paper prints for the data of a study, by metric and method; it has one reading of each data set."""
    return {
        name: methods for name, methods in RESULTS.get(group_of(study), {}).items() if name in STUDIES[study].metrics
    }


def printed_lead(study: str, column: Column, rivals: Collection[str]) -> float | None:
    """By how much ours is ahead of the best of ``rivals`` in the paper, in the units of scores; more is better."""
    paper = printed_of(study).get(column.name)
    if not paper:
        return None
    sign = 1 if column.higher_is_better else -1
    lead = min(sign * (paper[OURS].mean - paper[name].mean) for name in rivals)
    return lead / (100 if column.percent else 1)


@dataclass(frozen=True)
class Lead:
    """Of ours over another method, more is better.

    Args:
        rival: The method.
        gain: Over the runs.
        interval: In which the true one lies, if there is a test.
    """

    rival: str
    gain: float
    interval: tuple[float, float] | None


def lead_over(results: Results, study: str, column: Column, rivals: Collection[str]) -> Lead | None:
    """By how much ours is better than the best of ``rivals``, and between which leads the true one lies.

    The best is picked after the runs, so the interval is one that would hold of all of them at once (Bonferroni).
    """
    means = {name: mean for name in rivals if (mean := results.mean(study, name, column.name)) is not None}
    if not means:
        return None
    (best, *_), _ = ranked(means, column.higher_is_better)
    test = welch_between(results, study, OURS, best, column.name)
    if test is None:
        return None
    sign = 1 if column.higher_is_better else -1
    ends = interval_of(test, 1 - SIGNIFICANT / len(means))
    low, high = sorted(sign * end for end in ends) if ends is not None else (None, None)
    return Lead(best, sign * test.difference, None if low is None or high is None else (low, high))


def _with_interval(results: Results, study: str, metric: str, comparison: Comparison) -> Comparison:
    """The comparison with an interval over test items, where something of each item was kept in every run."""
    ours, rival = (
        [items_of(record, metric) for record in results.runs(study, name)] for name in (OURS, comparison.rival)
    )
    if any(items is None for items in (*ours, *rival)):
        return comparison
    record = results.runs(study, OURS)[0]
    labels, resampled = (None, "mean") if "items" in record else (as_numbers(record["truth"]), metric)
    found = bootstrap_difference(np.array(ours), np.array(rival), labels, resampled, resamples=RESAMPLES)
    return replace(comparison, interval=found)
