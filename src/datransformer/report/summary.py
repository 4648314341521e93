"""The top of the page of a reproduction: what to take home, in a few lines and one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.studies import CONTROL, LINEAR, STUDIES, VARIANTS
from datransformer.report.comparisons import (
    OTHERS,
    PLAIN,
    POWER,
    Key,
    lead_that_shows,
    printed_lead,
    printed_of,
    welch_between,
)
from datransformer.report.provenance import provenance, vectors_of
from datransformer.report.records import Results
from datransformer.report.searched import clear_options
from datransformer.report.statistics import SIGNIFICANT, Comparison, Significance, interval_of, ranked
from datransformer.report.tables import MISSING, Column, columns_of, escaped
from datransformer.report.verdicts import CONTRADICTED, FAILED, HELD, NOISE, UNTESTED, Verdict

ABOUT = (
    "What was measured here, beside what the paper prints: DA-Transformer: Distance-aware Transformer (Wu, Wu and "
    "Huang, NAACL 2021, arXiv:2010.06925). Each head of DA-Transformer, ours on this page, has two learned numbers, w "
    "and v: the distance |i − j| between two words, times w, goes through f(x; v) = (1 + eᵛ) / (1 + eᵛ⁻ˣ), and what "
    "comes out multiplies ReLU(QKᵀ)/√d before the softmax. A head with w < 0 looks near, one with w > 0 looks far. Two "
    "texts are read jointly, as one sequence with a separator between them, or siamese, each by itself."
)
SAME_FOR_ALL = (
    "All methods have the same settings. Those that the paper leaves open were searched on dev sets, in runs that had "
    "no test set, with the Transformer and DA-Transformer alone: what the other methods could gain by a search of "
    "their own is not known. They are listed below, under Choices."
)
WRITTEN_DOWN = (
    "That the attention is what the paper writes down is held by tests (`tests/ops/test_attention.py`): against Eq. 5 "
    "and 6 in float64, its gradients against finite differences. `datransformer demo` trains it on a task that "
    "distance alone can solve."
)
CONTROLS = (LINEAR, CONTROL)  # that know nothing of positions


def in_short(results: Results, comparisons: Mapping[Key, Comparison], verdicts: Sequence[Verdict]) -> list[str]:
    """What a reader in a hurry should take home."""
    first = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    rivals = {study: comparisons[study, one.name].welch for study, one in first.items()
              if (study, one.name) in comparisons}  # fmt: skip
    plain = {
        study: test for study, one in first.items() if (test := welch_between(results, study, OURS, PLAIN, one.name))
    }
    lines = [f"- {_counted(verdicts)}", *_held_against_paper(results, first)]
    chance = f" Were all {len(METHODS)} equally good, it would be ahead on one of {len(METHODS)}."
    lines += [
        f"- {METHODS[OURS]} against {whom}: {_won(tests, first)}{note}"
        for whom, tests, note in (
            ("the best of the paper's other methods, picked by the same runs", rivals, chance),
            (f"the plain {METHODS[PLAIN]}", plain, ""),
        )
        if tests
    ]
    lines += _could_be_seen(results, first)
    lines += _against_control(results, first)
    lines += _against_linear(results)
    if results.beyond is not None:
        lines.append(f"- Of what was tried beyond the paper, on dev: {clear_options(results, results.beyond['rows'])}.")
    lines += [f"- {line}" for line in (SAME_FOR_ALL, WRITTEN_DOWN, provenance(results))]
    return [*lines, ""]


def _counted(verdicts: Sequence[Verdict]) -> str:
    """On how many claims there is which verdict."""
    failed = [one for one in verdicts if one.verdict == FAILED]
    other = sum(one.contradicted for one in failed)
    parts = [f"{sum(one.verdict == kind for one in verdicts)} {kind}" for kind in (HELD, FAILED, UNTESTED)]
    parts[1] += f" ({other} {CONTRADICTED}, {len(failed) - other} {NOISE})" if failed else ""
    return f"**Of {len(verdicts)} claims of the paper: {', '.join(parts)}.**"


INSIDE, ABOVE, BELOW = "within that interval", "above it", "below it"


def _held_against_paper(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Whether the lead over the plain Transformer that the paper prints can be the one that was measured."""
    places: dict[str, list[str]] = {place: [] for place in (INSIDE, ABOVE, BELOW)}
    for study, column in columns.items():
        lead, paper = _lead(results, study, column), printed_lead(study, column, (PLAIN,))
        if lead is not None and lead.interval is not None and paper is not None:
            low, high = lead.interval
            places[ABOVE if paper > high else BELOW if paper < low else INSIDE].append(STUDIES[study].title)
    count = sum(map(len, places.values()))
    if not count:
        return []
    told = "; ".join(f"{place} on {len(titles)} ({'; '.join(titles)})" for place, titles in places.items() if titles)
    return [
        f"- The lead over the plain {METHODS[PLAIN]} that the paper prints, and the 95 % interval of the one measured "
        f"here: of {count} {_set_ups(count)} it lies {told}."
    ]


def _could_be_seen(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """On which data a lead over all others as large as the paper's would have been seen."""
    seen: list[str] = []
    unseen: list[str] = []
    for study, column in columns.items():
        least, paper = lead_that_shows(results, study, column, OTHERS), printed_lead(study, column, OTHERS)
        if least is not None and paper is not None:
            (seen if paper >= least else unseen).append(STUDIES[study].title)
    count = len(seen) + len(unseen)
    if not count:
        return []
    told = [
        f"{would} on {len(titles)} ({'; '.join(titles)})"
        for would, titles in (("would mostly have been seen", seen), ("would not", unseen))
        if titles
    ]
    return [
        f"- A lead over the best of the others as large as the paper's, in as many runs with the spread of these: of "
        f"{count} {_set_ups(count)} it {'; it '.join(told)}. Mostly is in {100 * POWER:.0f} % of repeats."
    ]


@dataclass(frozen=True)
class Lead:
    """Of ours over the plain Transformer, more is better.

    Args:
        gain: Over the runs.
        interval: In which the true one lies, if there is a test.
    """

    gain: float
    interval: tuple[float, float] | None


def _lead(results: Results, study: str, column: Column) -> Lead | None:
    test = welch_between(results, study, OURS, PLAIN, column.name)
    if test is None:
        return None
    sign, ends = (1 if column.higher_is_better else -1), interval_of(test)
    low, high = sorted(sign * end for end in ends) if ends is not None else (None, None)
    return Lead(sign * test.difference, None if low is None or high is None else (low, high))


def _against_control(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Ours and the plain Transformer against attention that knows nothing of places."""
    told = []
    for name in (OURS, PLAIN):
        tests = {
            study: test
            for study, one in columns.items()
            if (test := welch_between(results, study, name, CONTROL, one.name)) is not None
        }
        if tests:
            told.append(f"- {METHODS[name]} against {VARIANTS[CONTROL].label}: {_won(tests, columns)}")
    return told


def _against_linear(results: Results) -> list[str]:
    """On which data all, some or none of the paper's methods are ahead of a linear model."""
    places: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        linear = results.mean(study, LINEAR, column.name)
        means = [mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None]
        if linear is None or not means:
            continue
        ahead = [(mean > linear) == column.higher_is_better for mean in means]
        places["all" if all(ahead) else "some" if any(ahead) else "none"].append(STUDIES[study].title)
    if not any(places.values()):
        return []
    told = "; ".join(f"{many} on {len(titles)} ({'; '.join(titles)})" for many, titles in places.items() if titles)
    return [f"- Of the paper's methods ahead of {VARIANTS[LINEAR].label}, which is not in the paper: {told}."]


def _won(tests: Mapping[str, Significance], columns: Mapping[str, Column]) -> str:
    """On how many set-ups ours is ahead by the first metric, and on which clearly."""
    gains = {study: test.difference * (1 if columns[study].higher_is_better else -1) for study, test in tests.items()}
    clear = [study for study, test in tests.items() if test.p is not None and test.p < SIGNIFICANT]
    ahead, behind = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
    parts = [f"of {len(gains)} {_set_ups(len(gains))} ahead on {ahead}, behind on {behind}"]
    for word, sign in (("ahead", 1), ("behind", -1)):
        titles = [STUDIES[study].title for study in clear if sign * gains[study] > 0]
        listed = f" ({'; '.join(titles)})" if titles else ""
        parts.append(f"clearly {word} on {len(titles)}{listed}")
    return f"{'; '.join(parts)}."


def _set_ups(count: int) -> str:
    """Data sets, each in one reading."""
    return "set-up" if count == 1 else "set-ups"


def at_a_glance(results: Results) -> list[str]:
    """Where ours stands among the paper's methods on each data set, by means alone."""
    controls = [name for name in CONTROLS if any(results.runs(study, name) for study in results.studies)]
    rows = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        means = {name: mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None}
        if OURS not in means or len(means) < 2:
            continue
        others = {name: mean for name, mean in means.items() if name != OURS}
        (best, *_), _ = ranked(others, column.higher_is_better)
        sign = 1 if column.higher_is_better else -1
        place = 1 + sum(sign * mean > sign * means[OURS] for mean in others.values())
        paper = printed_of(study).get(column.name, {})
        rows.append(
            [
                f"{STUDIES[study].title}, {column.label}{'' if column.higher_is_better else ' (less is better)'}",
                column.shown(means[OURS]),
                f"{paper[OURS].mean:.{column.digits}f}" if paper else MISSING,
                f"{column.shown(others[best])} ({METHODS[best]})",
                f"{place} of {len(means)}",
                _over_plain(results, study, column),
                MISSING if (lead := printed_lead(study, column, (PLAIN,))) is None else column.shown(lead, "+"),
                *(_shown_mean(results, study, name, column) for name in controls),
            ]
        )
    heads = [
        "data",
        METHODS[OURS],
        "the same in the paper, on its data",
        "best of the other methods, here",
        "place",
        f"gain of {METHODS[OURS]} over {METHODS[PLAIN]}, 95 % interval",
        "that gain in the paper",
        *(VARIANTS[name].label for name in controls),
    ]
    if not rows:
        return []
    caveats: dict[str, str] = {}  # each once, by the first study that has it
    for study in results.studies:
        caveats.setdefault(escaped(results.any_run(study)["caveat"]), STUDIES[study].title)
    vectors = vectors_of(results)
    return [
        *markdown(heads, rows),
        "",
        "A set-up is a data set in one reading, by the first of its metrics. Means over runs on the test set; of gains "
        "more is better. Intervals are Welch's, over runs. Clear, here and above, is "
        f"p < {SIGNIFICANT} in Welch's t-test, not corrected for how many there are.",
        "",
        "The data are not the paper's, so its numbers are for orientation:",
        "",
        *(f"- {title}: {caveat}." for caveat, title in caveats.items()),
        *([f"- Word vectors: {vectors}; the paper has 300-d ones."] if vectors else []),
    ]


def _over_plain(results: Results, study: str, column: Column) -> str:
    """By how much ours is better than the plain Transformer, and between which gains the true one lies."""
    lead = _lead(results, study, column)
    if lead is None:
        return MISSING
    ends = "" if lead.interval is None else f" [{', '.join(column.shown(end, '+') for end in lead.interval)}]"
    return f"{column.shown(lead.gain, '+')}{ends}"


def _shown_mean(results: Results, study: str, name: str, column: Column) -> str:
    mean = results.mean(study, name, column.name)
    return MISSING if mean is None else column.shown(mean)
