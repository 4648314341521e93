"""The top of the page of a reproduction: what a reader comes to ask, each question with its answer, and a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from datransformer.report.provenance import older_settings, vectors_of
from datransformer.report.records import Results
from datransformer.report.searched import clear_options
from datransformer.report.statistics import SIGNIFICANT, Comparison, Significance, holm, interval_of, ranked
from datransformer.report.tables import MISSING, Column, columns_of, escaped
from datransformer.report.verdicts import CONTRADICTED, FAILED, HELD, MOVED, NOISE, UNTESTED, Verdict, changed_in_all

ABOUT = (
    "Do the claims of “DA-Transformer: Distance-aware Transformer” (Wu, Wu and Huang, NAACL 2021, arXiv:2010.06925) "
    "hold? Each of its heads has two learned numbers, w and v. The distance |i − j| between two words, times w, goes "
    "through f(x; v) = (1 + eᵛ) / (1 + eᵛ⁻ˣ), and what comes out multiplies ReLU(QKᵀ)/√d before the softmax: a head "
    "with w < 0 looks near, one with w > 0 looks far."
)
WAYS = {  # in which a data set was used, by the study that has the last of them
    "snli2_siamese": "SNLI with 3 and with 2 classes, both texts of a pair in one sequence (joint) or each by itself "
    "(siamese)",
    "sst_phrases": "SST with and without the phrases of its training trees",
    "amazon_rating": "Amazon with its stars as classes and as numbers, of which the paper prints no table",
}
SAME_FOR_ALL = (
    "All methods have the same settings. Those that the paper leaves open were searched on dev sets, in runs that had "
    "no test set, with Transformer and DA-Transformer alone: what the other methods could gain by a search of their "
    "own is not known."
)
BEST = "the best of the paper's other methods"
CONTROLS = (LINEAR, CONTROL)  # that know nothing of positions


def headline(results: Results, comparisons: Mapping[Key, Comparison], verdicts: Sequence[Verdict]) -> list[str]:
    """All of it in a few sentences."""
    failed = [one for one in verdicts if one.verdict == FAILED]
    other = sum(one.contradicted for one in failed)
    held, untested = (sum(one.verdict == kind for one in verdicts) for kind in (HELD, UNTESTED))
    told = [
        f"Of the paper's {len(verdicts)} claims {held} are {HELD}, {len(failed)} are {FAILED} ({other} {CONTRADICTED}, "
        f"{len(failed) - other} {NOISE}), and {untested} are {UNTESTED}."
        if untested < len(verdicts)
        else f"None of the paper's {len(verdicts)} claims can be tested with these runs."
    ]
    columns = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    rivals = _rivals(results, comparisons, columns)
    for whom, tests in rivals.items():
        ahead, behind = (_counted(tests, columns, sign, whom) for sign in (1, -1))
        if any(test.p is not None for test in tests.values()):
            told.append(
                f"{METHODS[OURS]} is clearly ahead of {whom} on {ahead}, and clearly behind on {behind}, of "
                f"{len(tests)} {_set_ups(len(tests))}."
            )
    if rivals and len(told) == 1:
        why_not = next(test.why_not for tests in rivals.values() for test in tests.values())
        told.append(f"No lead can be clear: {why_not}.")
    return [f"**{' '.join(told)}**", ""]


def in_short(results: Results, comparisons: Mapping[Key, Comparison]) -> list[str]:
    """What a reader in a hurry should take home."""
    first = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    answers = {
        "Does it win?": _wins(results, comparisons, first),
        "By as much as in the paper?": _held_against_paper(results, first),
        "Can these runs tell?": _could_be_seen(results, first),
        "What are positions worth here?": _against_controls(results, first) + _against_linear(results),
        "Why?": _why(results),
        "How far can this be trusted?": _trust(results),
    }
    return [_terms(results), "", *(f"- **{question}** {' '.join(told)}" for question, told in answers.items() if told)]


def _terms(results: Results) -> str:
    ways = [way for study, way in WAYS.items() if study in results.studies]
    each = f" Where the paper leaves open how, each way was run: {'; '.join(ways)}." if ways else ""
    return (
        f"A set-up is a data set used in one way.{each} Clear, on all of this page, is p < {SIGNIFICANT} in Welch's "
        "t-test over runs; unless it is said, p is not corrected for how many tests there are."
    )


def _rivals(
    results: Results, comparisons: Mapping[Key, Comparison], columns: Mapping[str, Column]
) -> dict[str, dict[str, Significance]]:
    """Tests of ours by study, against the best of the others and against the plain Transformer."""
    best = {study: comparisons[study, one.name].welch for study, one in columns.items()
            if (study, one.name) in comparisons}  # fmt: skip
    plain = {
        study: test for study, one in columns.items() if (test := welch_between(results, study, OURS, PLAIN, one.name))
    }
    found = {BEST: best, f"the plain {METHODS[PLAIN]}": plain}
    return {whom: tests for whom, tests in found.items() if tests}


def _wins(results: Results, comparisons: Mapping[Key, Comparison], columns: Mapping[str, Column]) -> list[str]:
    """Ours against the best of the others, and against the plain Transformer."""
    told = [
        f"Against {whom}: {_won(tests, columns, whom)}"
        for whom, tests in _rivals(results, comparisons, columns).items()
    ]
    known = {sum(bool(results.runs(study, name)) for name in METHODS) for study in columns}
    if told and len(known) == 1 and (count := known.pop()) > 1:
        told.insert(
            1,
            "The best is picked after the runs: were all methods equally good, chance alone would put "
            f"{METHODS[OURS]} ahead on one set-up in {count}.",
        )
    return told


def _held_against_paper(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Whether the lead over the plain Transformer that the paper prints can be the one that was measured."""
    places: dict[str, list[str]] = {"larger": [], "smaller": [], "not": []}
    for study, column in columns.items():
        lead, paper = lead_over(results, study, column, PLAIN), printed_lead(study, column, (PLAIN,))
        if lead is not None and lead.interval is not None and paper is not None:
            low, high = lead.interval
            places["larger" if paper > high else "smaller" if paper < low else "not"].append(STUDIES[study].title)
    larger, smaller, inside = map(_listed, places.values())
    count = sum(map(len, places.values()))
    if not count:
        return []
    return [
        f"Of {count} {_set_ups(count)} for which the paper prints a lead over {METHODS[PLAIN]}, the one measured here "
        f"is smaller on {larger}, larger on {smaller}, and compatible on {inside}, where the paper's is within its "
        "95 % interval."
    ]


def _could_be_seen(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """On which data a lead over all others as large as the paper's would have been seen."""
    places: dict[bool, list[str]] = {True: [], False: []}
    for study, column in columns.items():
        least, paper = lead_that_shows(results, study, column, OTHERS), printed_lead(study, column, OTHERS)
        if least is not None and paper is not None:
            places[paper >= least].append(STUDIES[study].title)
    seen, missed = map(_listed, places.values())
    count = sum(map(len, places.values()))
    if not count:
        return []
    return [
        f"Of {count} {_set_ups(count)}, they are enough to show a lead over the best of the others as large as the "
        f"paper's, with a power of {100 * POWER:.0f} %, on {seen}, and too few or too noisy on {missed}."
        + (
            " Claims that ask for a lead on all data at once can be contradicted by such runs, but hardly reproduced, "
            "even if they are true."
            if places[False]
            else ""
        )
    ]


@dataclass(frozen=True)
class Lead:
    """Of ours over another method, more is better.

    Args:
        gain: Over the runs.
        interval: In which the true one lies, if there is a test.
    """

    gain: float
    interval: tuple[float, float] | None


def lead_over(results: Results, study: str, column: Column, rival: str) -> Lead | None:
    """By how much ours is better than ``rival``, and between which leads the true one lies."""
    test = welch_between(results, study, OURS, rival, column.name)
    if test is None:
        return None
    sign, ends = (1 if column.higher_is_better else -1), interval_of(test)
    low, high = sorted(sign * end for end in ends) if ends is not None else (None, None)
    return Lead(sign * test.difference, None if low is None or high is None else (low, high))


def _against_controls(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Ours and the plain Transformer against attention that knows nothing of places."""
    told = []
    for name in (OURS, PLAIN):
        tests = {
            study: test
            for study, one in columns.items()
            if (test := welch_between(results, study, name, CONTROL, one.name)) is not None
        }
        if tests:
            told.append(f"{METHODS[name]} against {VARIANTS[CONTROL].label}: {_won(tests, columns)}")
    return told


def _against_linear(results: Results) -> list[str]:
    """On which data all, some or none of the paper's methods are ahead of a linear model."""
    places: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        linear = results.mean(study, LINEAR, column.name)
        means = [mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None]
        if linear is None or len(means) < len(METHODS):
            continue
        ahead = [(mean > linear) == column.higher_is_better for mean in means]
        places["all" if all(ahead) else "some" if any(ahead) else "none"].append(STUDIES[study].title)
    if not any(places.values()):
        return []
    told = "; ".join(f"{many} on {_listed(titles)}" for many, titles in places.items() if titles)
    return [f"Of the paper's five methods ahead of {VARIANTS[LINEAR].label}: {told}."]


def _why(results: Results) -> list[str]:
    """What is known of the reasons, with the section that has more."""
    told = []
    if (changed := changed_in_all(results)) is not None:
        far = "" if changed >= MOVED else ": the signs of w are mostly those of the start"
        told.append(f"{100 * changed:.0f} % of all heads end with w on another side of 0 than they began on{far}.")
    if results.beyond is not None:
        told.append(f"Tried beyond the paper, on dev: {clear_options(results, results.beyond['rows'])}.")
    return [*told, "More is below, under What may explain it."] if told else []


def _trust(results: Results) -> list[str]:
    """What to bear in mind."""
    told = [f"What the data are is said below. {SAME_FOR_ALL}"]
    if older := older_settings(results):
        titles = "; ".join(STUDIES[study].title for study in older)
        told.append(f"The runs on {titles} had other settings than `reproduce` has now: see the end of Choices.")
    return told


def _won(tests: Mapping[str, Significance], columns: Mapping[str, Column], whom: str = "") -> str:
    """On how many set-ups ours is ahead by the first metric, and on which clearly."""
    gains = {study: test.difference * (1 if columns[study].higher_is_better else -1) for study, test in tests.items()}
    ahead, behind = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
    parts = [f"of {len(gains)} {_set_ups(len(gains))} ahead on {ahead}, behind on {behind}"]
    for word, sign in (("ahead", 1), ("behind", -1)):
        titles = "; ".join(STUDIES[one].title for one in _clear(tests, columns, sign))
        parts.append(f"clearly {word} on {_counted(tests, columns, sign, whom)}{f': {titles}' if titles else ''}")
    return f"{'; '.join(parts)}."


def _clear(tests: Mapping[str, Significance], columns: Mapping[str, Column], sign: int) -> list[str]:
    """Where the first of two is clearly better, ``sign`` 1, or worse, −1."""
    return [
        study
        for study, test in tests.items()
        if test.p is not None
        and test.p < SIGNIFICANT
        and sign * test.difference * (1 if columns[study].higher_is_better else -1) > 0
    ]


def _counted(tests: Mapping[str, Significance], columns: Mapping[str, Column], sign: int, whom: str) -> str:
    """On how many the first of two is clearly better, or worse, and on how many after Holm's correction over all.

    The best of several is picked after the runs, which makes it easier to be behind: p counts as often.
    """
    times = len(METHODS) - 1 if whom == BEST and sign < 0 else 1
    corrected = holm({study: None if test.p is None else min(times * test.p, 1.0) for study, test in tests.items()})
    left = {study: replace(test, p=corrected[study]) for study, test in tests.items()}
    count = len(_clear(tests, columns, sign))
    return (
        f"{count} ({len(_clear(left, columns, sign))} after Holm's correction)"
        if count and len(tests) > 1
        else str(count)
    )


def _listed(titles: Sequence[str]) -> str:
    """How many, and which."""
    which = "; ".join(titles)
    return f"{len(titles)} ({which})" if titles else "0"


def _set_ups(count: int) -> str:
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
        rows.append(
            [
                f"{STUDIES[study].title}, {column.label}{'' if column.higher_is_better else ' (less is better)'}",
                column.shown(means[OURS]),
                f"{place} of {len(means)}",
                f"{column.shown(others[best])} ({METHODS[best]})",
                *_leads(results, study, column, best, OTHERS),
                *_leads(results, study, column, PLAIN, (PLAIN,)),
                *(_shown_mean(results, study, name, column) for name in controls),
            ]
        )
    heads = [
        "data",
        METHODS[OURS],
        "place",
        "best of the others",
        "lead over that",
        "in the paper",
        f"lead over {METHODS[PLAIN]}",
        "in the paper",
        *(VARIANTS[name].label for name in controls),
    ]
    if not rows:
        return []
    last = " What stands in the last columns knows nothing of positions, and is not in the paper." if controls else ""
    has_intervals = any("[" in cell for row in rows for cell in row)
    intervals = "with their 95 % intervals (Welch's, over runs)" if has_intervals else "here without intervals"
    return [
        *markdown(heads, rows),
        "",
        "Means over runs on the test set, by the first metric of each set-up. Leads are in points, of RMSE by how much "
        f"it is lower, {intervals}; beside each is that which the paper prints for its own data.{last}",
        "",
        *_levels(results),
    ]


def data_of(results: Results) -> list[str]:
    """What the rows and the word vectors are."""
    caveats: dict[str, list[str]] = {}
    for study in results.studies:
        caveats.setdefault(escaped(results.any_run(study)["caveat"]), []).append(STUDIES[study].title)
    vectors = vectors_of(results)
    return [
        "The data:",
        "",
        *(f"- {'; '.join(titles)}: {caveat}." for caveat, titles in caveats.items()),
        *([f"- Word vectors: {vectors}; the paper has 300-d ones."] if vectors else []),
    ]


def _levels(results: Results) -> list[str]:
    """How far the plain Transformer is from where the paper has it."""
    gaps = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        paper, here = printed_of(study).get(column.name), results.mean(study, PLAIN, column.name)
        if paper and here is not None:
            gaps.append(f"{STUDIES[study].title} {column.shown(here - paper[PLAIN].mean / 100, '+')}")
    far = "; ".join(gaps)
    told = f"Compare leads, not levels. The {METHODS[PLAIN]} here less that of the paper, in points: {far}."
    return [told, ""] if gaps else []


def _leads(results: Results, study: str, column: Column, rival: str, rivals: Sequence[str]) -> list[str]:
    """The lead over ``rival`` with its interval, and the paper's over the best of ``rivals``."""
    lead, paper = lead_over(results, study, column, rival), printed_lead(study, column, rivals)
    ends = "" if lead is None or lead.interval is None else ", ".join(column.shown(end, "+") for end in lead.interval)
    return [
        MISSING if lead is None else f"{column.shown(lead.gain, '+')}{f' [{ends}]' if ends else ''}",
        MISSING if paper is None else column.shown(paper, "+"),
    ]


def _shown_mean(results: Results, study: str, name: str, column: Column) -> str:
    mean = results.mean(study, name, column.name)
    return MISSING if mean is None else column.shown(mean)
