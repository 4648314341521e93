"""What became of each claim of the paper, by what was measured here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datransformer.experiments.paper import OURS
from datransformer.experiments.studies import STUDIES, TABLES
from datransformer.report.records import Results
from datransformer.report.statistics import SIGNIFICANT, Comparison
from datransformer.train.tasks import LOWER_IS_BETTER

BASELINES = ("rpr", "xl", "adapted")  # that know of distance
HELD, FAILED, UNTESTED = "holds here", "does not hold here", "not tested"
Key = tuple[str, str]  # study, metric


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Args:
        verdict: `HELD`, `FAILED` or `UNTESTED`.
        numbers: What it rests on.
    """

    verdict: str
    numbers: str


def counted(numbers: Sequence[float]) -> str:
    """How many are below 0 and how many above."""
    return f"{sum(number < 0 for number in numbers)} / {sum(number > 0 for number in numbers)}"


def _judge(holds: bool, numbers: str) -> Verdict:
    return Verdict(HELD if holds else FAILED, numbers)


def _ours_is_first(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    if not comparisons:
        return None
    won = [key for key, one in comparisons.items() if one.gain > 0]
    return _judge(len(won) == len(comparisons), f"first in {len(won)} of {len(comparisons)} metrics")


def _is_significant(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    tested = {key: one for key, one in comparisons.items() if one.welch.corrected is not None}
    if not tested:
        return None
    clear = [key for key, one in tested.items() if one.gain > 0 and (one.welch.corrected or 0) < SIGNIFICANT]
    return _judge(len(clear) == len(tested), f"{len(clear)} of {len(tested)} metrics at p < 0.05, Welch, after Holm")


def _pairs(results: Results, firsts: Sequence[str], seconds: Sequence[str], table: str) -> list[tuple[str, bool]]:
    """Of every study with the table: whether the worst of ``firsts`` beats the best of ``seconds``."""
    found = []
    for study in results.judged:
        if table not in STUDIES[study].tables:
            continue
        name = STUDIES[study].metrics[0]
        sign = -1 if name in LOWER_IS_BETTER else 1
        means = {variant: results.mean(study, variant, name) for variant in (*firsts, *seconds)}
        if all(value is not None for value in means.values()):
            worst, best = (
                min(sign * (means[one] or 0) for one in firsts),
                max(sign * (means[one] or 0) for one in seconds),
            )
            found.append((study, worst > best))
    return found


def _beats(firsts: Sequence[str], seconds: Sequence[str], table: str = "methods") -> Callable[..., Verdict | None]:
    def judge(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
        found = _pairs(results, firsts, seconds, table)
        if not found:
            return None
        won = [study for study, better in found if better]
        where = ", ".join(won) or "nowhere"
        return _judge(len(won) == len(found), f"on {len(won)} of {len(found)} data sets by the first metric: {where}")

    return judge


def _near_and_far(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    weights = results.distances("ag", "distance_weight")
    if not weights:
        return None
    numbers = next(iter(weights.values()))
    below = sum(number < 0 for number in numbers)
    return _judge(abs(below - len(numbers) / 2) <= 1, f"{counted(numbers)} of {len(numbers)} heads below / above 0")


def _mild(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    shifts = results.distances("ag", "distance_shift")
    if not shifts:
        return None
    numbers = next(iter(shifts.values()))
    return _judge(sum(number < 0 for number in numbers) > len(numbers) / 2, f"{counted(numbers)} below / above 0")


def _one_near(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    weights = results.distances("mind", "distance_weight")
    if len(weights) < 2:
        return None
    numbers = weights[next(level for level in weights if not level.startswith("text"))]
    return _judge(sum(number < 0 for number in numbers) == 1, f"{counted(numbers)} below / above 0 at the news level")


def _positive(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    shifts = results.distances("mind", "distance_shift")
    if not shifts:
        return None
    text = "; ".join(f"{level}: {counted(numbers)} below / above 0" for level, numbers in shifts.items())
    return _judge(all(number > 0 for numbers in shifts.values() for number in numbers), text)


def _sharper(results: Results, comparisons: Mapping[Key, Comparison]) -> Verdict | None:
    rows = []
    for study in results.judged:
        means = []
        for variant in (OURS, "vanilla"):
            heads = [
                number
                for record in results.runs(study, variant)
                for level in record.get("heads", {}).values()
                for number in level["entropy"]
            ]
            means.append(float(np.mean(heads)) if heads else None)
        if means[0] is not None and means[1] is not None:
            rows.append((study, means[0], means[1]))
    if not rows:
        return None
    text = "; ".join(f"{study}: entropy {ours:.2f}, vanilla {vanilla:.2f}" for study, ours, vanilla in rows)
    return _judge(all(ours < vanilla for _, ours, vanilla in rows), text)


VERDICTS: dict[str, Callable[[Results, Mapping[Key, Comparison]], Verdict | None]] = {
    "first_everywhere": _ours_is_first,
    "significant": _is_significant,
    "distance_helps": _beats(BASELINES, ("vanilla",)),
    "rpr_weakest": _beats(("xl", "adapted", OURS), ("rpr",)),
    "learnable_sigmoid_best": _beats((OURS,), [name for name in TABLES["mappings"] if name != OURS], "mappings"),
    "early_multiply_best": _beats((OURS,), [name for name in TABLES["adjustments"] if name != OURS], "adjustments"),
    "half_near_half_far": _near_and_far,
    "mild_on_ag": _mild,
    "one_near_head": _one_near,
    "all_shifts_positive": _positive,
    "sharper_attention": _sharper,
}
