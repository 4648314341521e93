"""The top of the page of a reproduction: what a reader comes to ask, each question with its answer, and a table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.studies import CONTROL, LINEAR, PAIR, PUBLISHED, STUDIES, VARIANTS
from datransformer.report.comparisons import (
    OTHERS,
    VANILLA,
    Key,
    Lead,
    group_of,
    lead_over,
    printed_lead,
    printed_of,
    welch_between,
)
from datransformer.report.provenance import stale, vectors_of
from datransformer.report.reasons import EXPONENT, SIDED, exponent_against_ours, sharper_than_control
from datransformer.report.records import Results
from datransformer.report.searched import clear_options
from datransformer.report.statistics import SIGNIFICANT, Comparison, Significance, holm, welch_t_test
from datransformer.report.tables import MISSING, Column, columns_of, escaped, shown_p
from datransformer.report.verdicts import (
    CONTRADICTED,
    FAILED,
    HELD,
    PARTLY,
    UNDECIDED,
    UNTESTED,
    Verdict,
)

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
    "no test set, with Transformer and DA-Transformer alone, but for k of Transformer-RPR: what the other methods "
    "could gain by a search of their own is not known."
)
BEST = "the best of the paper's other methods"
CONTROLS = (LINEAR, CONTROL)  # that know nothing of positions
STALE = "†"
SCALE = "model.embed_scale"
WHOLE = (PUBLISHED, "complete")  # how it begins what is said of data of which nothing is missing


def headline(results: Results, comparisons: Mapping[Key, Comparison], verdicts: Sequence[Verdict]) -> list[str]:
    """All of it in a few sentences."""
    claims = _counted_claims(verdicts)
    columns = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    rivals = _rivals(results, comparisons, columns)
    told: list[str] = []
    for whom, tests in rivals.items():
        ahead, behind = (_counted(tests, columns, sign) for sign in (1, -1))
        if any(test.p is not None for test in tests.values()):
            count = len(set(map(group_of, tests)))
            where = f" ({count} data sets, some used in several ways)" if not told and count < len(tests) else ""
            told.append(
                f"{METHODS[OURS]} is clearly ahead of {whom} on {ahead} of {len(tests)} {_set_ups(len(tests))}{where}, "
                f"and clearly behind on {behind}."
            )
    if rivals and not told:
        why_not = next(test.why_not for tests in rivals.values() for test in tests.values())
        told.append(f"No lead can be clear: {why_not}.")
    told.append(claims)
    studies = [study for study in results.studies if STUDIES[study].data != "probe"]
    parts = {group_of(study) for study in studies if not results.any_run(study)["caveat"].startswith(WHOLE)}
    if parts:
        count = len(set(map(group_of, studies)))
        told.append(f"Not the paper's data sets, but parts of them or stand-ins: {len(parts)} of {count}, see below.")
    return [f"**{' '.join(told)}**", ""]


def _counted_claims(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out how, and which."""
    found: dict[str, list[str]] = {}
    for number, one in enumerate(verdicts, 1):
        found.setdefault(one.how if one.verdict == FAILED else one.verdict, []).append(str(number))
    if len(found.get(UNTESTED, ())) == len(verdicts):
        return f"None of the paper's {len(verdicts)} claims can be tested with these runs."
    ways = {way: found.get(way, []) for way in (HELD, CONTRADICTED, PARTLY, UNDECIDED, UNTESTED)}
    listed = [f"{len(which)} {way} ({', '.join(which)})" if which else f"0 {way}" for way, which in ways.items()]
    beyond = [str(number) for number, one in enumerate(verdicts, 1) if one.beyond]
    told = f" Runs beyond the paper, in which w starts at 0, decide on {', '.join(beyond)}." if beyond else ""
    return f"Of the paper's {len(verdicts)} claims, by their numbers below: {'; '.join(listed)}.{told}"


def in_short(results: Results, comparisons: Mapping[Key, Comparison]) -> list[str]:
    """What a reader in a hurry should take home."""
    first = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    answers = {
        "Does it win?": _wins(results, comparisons, first),
        "By as much as in the paper?": _held_against_paper(results, first),
        "What are positions worth here?": _against_controls(results, first) + _against_linear(results),
        "Why?": _why(results),
        "How far can this be trusted?": _trust(results),
    }
    return [_terms(results), "", *(f"- **{question}** {' '.join(told)}" for question, told in answers.items() if told)]


def _terms(results: Results) -> str:
    ways = [way for study, way in WAYS.items() if study in results.studies]
    each = f" Where the paper leaves open how, each way was run: {'; '.join(ways)}." if ways else ""
    return (
        f"A set-up is a data set used in one way.{each} Clear is p < {SIGNIFICANT} in Welch's t-test over runs, or in "
        "the test that is named, not corrected for how many tests there are unless it is said. Above the first heading "
        f"alone p against the best of the others counts {len(OTHERS)} times where that is ahead, since it was picked "
        "after the runs, and Holm's correction is over the set-ups."
    )


def _rivals(
    results: Results, comparisons: Mapping[Key, Comparison], columns: Mapping[str, Column]
) -> dict[str, dict[str, Significance]]:
    """Tests of ours by study, against the best of the others and against the plain Transformer.

    The best is picked after the runs, which makes it easier to be behind: there p counts as often as there are others.
    """
    best = {}
    for study, column in columns.items():
        one = comparisons.get((study, column.name))
        if one is not None:
            p, times = one.welch.p, len(one.summaries) - 1 if one.gain < 0 else 1
            best[study] = replace(one.welch, p=None if p is None else min(times * p, 1.0))
    plain = {
        study: test
        for study, one in columns.items()
        if (test := welch_between(results, study, OURS, VANILLA, one.name)) is not None
    }
    found = {BEST: best, f"the plain {METHODS[VANILLA]}": plain}
    return {whom: tests for whom, tests in found.items() if tests}


def _wins(results: Results, comparisons: Mapping[Key, Comparison], columns: Mapping[str, Column]) -> list[str]:
    """Ours against the best of the others, and against the plain Transformer."""
    told = [f"Against {whom}: {_won(tests, columns)}" for whom, tests in _rivals(results, comparisons, columns).items()]
    known = {sum(bool(results.runs(study, name)) for name in METHODS) for study in columns}
    if told and len(known) == 1 and (count := known.pop()) > 1:
        told.insert(
            1,
            "The best is picked after the runs: were all methods equally good, chance alone would put "
            f"{METHODS[OURS]} ahead on one set-up in {count}.",
        )
    return told


def _held_against_paper(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Whether the leads that the paper prints can be those that were measured."""
    told = []
    for whom, rivals in ((f"the plain {METHODS[VANILLA]}", (VANILLA,)), (BEST, OTHERS)):
        places: dict[str, list[str]] = {"larger": [], "smaller": [], "not": [], "hardly": []}
        for study, column in columns.items():
            lead, paper = lead_over(results, study, column, rivals), printed_lead(study, column, rivals)
            if lead is not None and lead.interval is not None and paper is not None:
                low, high = lead.interval
                places["larger" if paper > high else "smaller" if paper < low else "not"].append(study)
                places["hardly"] += [study] if low <= paper <= high and paper < (high - low) / 2 else []
        larger, smaller, inside, hardly = map(_listed, places.values())
        if count := len(places["larger"] + places["smaller"] + places["not"]):
            told.append(
                f"The paper's lead over {whom} is too large for the one measured here, ruled out by its interval, on "
                f"{larger} of {count} {_set_ups(count)}; too small on {smaller}; and within the interval on {inside}."
            )
            if places["hardly"]:
                told.append(
                    f"On {hardly} of these the interval is so wide that so large a lead could hardly have been clear: "
                    "there it speaks neither for the paper nor against it."
                )
    return told


def _against_controls(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Ours and the plain Transformer against attention that knows nothing of places."""
    told = []
    clear = {}
    for name in (OURS, VANILLA):
        tests = {
            study: test
            for study, one in columns.items()
            if (test := welch_between(results, study, name, CONTROL, one.name)) is not None
        }
        clear[name] = set(_clear(tests, columns, 1))
        if tests:
            told.append(f"{METHODS[name]} against {VARIANTS[CONTROL].label}: {_won(tests, columns)}")
    plain = {
        study: test
        for study, one in columns.items()
        if results.runs(study, CONTROL) and (test := welch_between(results, study, OURS, VANILLA, one.name)) is not None
    }
    ahead = _clear(plain, columns, 1)
    if ahead:
        both = [study for study in ahead if study in clear[OURS]]
        told.append(
            f"Of {len(ahead)} {_set_ups(len(ahead))} on which {METHODS[OURS]} is clearly ahead of the plain "
            f"{METHODS[VANILLA]} it is clearly ahead of {VARIANTS[CONTROL].label} on {_listed(both)}."
        )
    joint = [study for study in columns if STUDIES[study].settings == PAIR and results.runs(study, CONTROL)]
    if joint:
        told.append("Where both texts of a pair are one sequence, positions also tell which of the two a word is in.")
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
        places["all" if all(ahead) else "some" if any(ahead) else "none"].append(study)
    if not any(places.values()):
        return []
    told = "; ".join(f"{many} on {_listed(studies)}" for many, studies in places.items() if studies)
    return [f"Of the paper's five methods ahead of {VARIANTS[LINEAR].label}: {told}."]


def _why(results: Results) -> list[str]:
    """What is known of the reasons, with the section that has more."""
    told = []
    if results.beyond is not None:
        *others, last = (METHODS[name] for name in SIDED)
        told.append(
            "One suspect is the side: |i − j| does not tell a word before from one behind, as the distances of "
            f"{', '.join(others)} and {last} do. Tried beyond the paper, on dev: "
            f"{clear_options(results, results.beyond['rows'])}."
        )
    if counts := sharper_than_control(results):
        listed = ", ".join(f"{VARIANTS[name].label} on {below} of {count}" for name, (below, count) in counts.items())
        told.append(
            f"{'Another' if told else 'A suspect'} is that its heads can hardly be sharp: f is at most 1 + eᵛ, 2 at "
            "the start, and a key whose score it shrinks to 0 still counts e⁰ = 1 in the softmax. Attention clearly "
            f"sharper than without positions: {listed}."
        )
        tests = {study: test for study in results.studies if (test := exponent_against_ours(results, study))}
        if tests:
            better = _clear(tests, {study: columns_of(STUDIES[study])[0] for study in tests}, 1)
            told.append(
                f"But {VARIANTS[EXPONENT].label}, another mapping, which has no such bound, is clearly better than the "
                f"learnable sigmoid on {len(better)} of {len(tests)}."
            )
    return [*told, "What else there is to it is not known. More is below, under What may explain it."] if told else []


def _trust(results: Results) -> list[str]:
    """What to bear in mind."""
    told = [f"What the data are is said below. {SAME_FOR_ALL}", *_scaled(results)]
    if older := stale(results):
        titles = "; ".join(STUDIES[study].title for study in older)
        told.append(f"The runs on {titles} ({STALE}) had other settings or data than `reproduce` takes now.")
    return told


def _scaled(results: Results) -> list[str]:
    """What larger word vectors did to the lead over the plain Transformer, where that was searched."""
    found: dict[tuple[str, str, str], dict[str, dict[float, list[float]]]] = {}
    for trial in results.search["trials"] if results.search is not None else ():
        rest = {name: value for name, value in trial["settings"].items() if name != SCALE}
        if (scale := trial["settings"].get(SCALE)) is not None:
            methods = found.setdefault((trial["round"], trial["study"], json.dumps(rest, sort_keys=True)), {})
            score = trial["dev"][columns_of(STUDIES[trial["study"]])[0].name]
            methods.setdefault(trial["variant"], {}).setdefault(scale, []).append(score)
    told = []
    for (_, study, _), methods in found.items():
        ours, plain = methods.get(OURS, {}), methods.get(VANILLA, {})
        if len(ours) < 2 or ours.keys() != plain.keys():
            continue
        column = columns_of(STUDIES[study])[0]
        leads = []
        for scale in sorted(ours):
            test = welch_t_test(ours[scale], plain[scale])
            gain = test.difference * (1 if column.higher_is_better else -1)
            leads.append(f"{column.shown(gain, '+')} (× {scale:g}, {shown_p(test.p)})")
        told.append(
            f"How large word vectors are may matter to the lead over {METHODS[VANILLA]}, whose sinusoids are added to "
            f"them. On {STUDIES[study].title}, on dev, it is {', '.join(leads)} with vectors so many times as large."
        )
    return told


def _won(tests: Mapping[str, Significance], columns: Mapping[str, Column]) -> str:
    """On how many set-ups ours is ahead by the first metric, and on which clearly."""
    gains = {study: test.difference * (1 if columns[study].higher_is_better else -1) for study, test in tests.items()}
    ahead, behind = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
    parts = [f"of {len(gains)} {_set_ups(len(gains))} ahead on {ahead}, behind on {behind}"]
    for word, sign in (("ahead", 1), ("behind", -1)):
        titles = "; ".join(STUDIES[one].title for one in _clear(tests, columns, sign))
        left = "; ".join(STUDIES[one].title for one in _clear(_after_holm(tests), columns, sign))
        told = f": {titles}" if titles else ""
        told += f" (after Holm's correction: {left or 'none'})" if titles and len(tests) > 1 else ""
        parts.append(f"clearly {word} on {len(_clear(tests, columns, sign))}{told}")
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


def _after_holm(tests: Mapping[str, Significance]) -> dict[str, Significance]:
    """With the p that Holm's correction leaves to each."""
    corrected = holm({study: test.p for study, test in tests.items()})
    return {study: replace(test, p=corrected[study]) for study, test in tests.items()}


def _counted(tests: Mapping[str, Significance], columns: Mapping[str, Column], sign: int) -> str:
    """On how many the first of two is clearly better, or worse, and on how many after Holm's correction over all."""
    count, left = (len(_clear(some, columns, sign)) for some in (tests, _after_holm(tests)))
    return f"{count} ({left} after Holm's correction)" if count and len(tests) > 1 else str(count)


def _listed(studies: Sequence[str]) -> str:
    """How many, and which."""
    return f"{len(studies)} ({'; '.join(STUDIES[study].title for study in studies)})" if studies else "0"


def _set_ups(count: int) -> str:
    return "set-up" if count == 1 else "set-ups"


def at_a_glance(results: Results) -> list[str]:
    """Where ours stands among the paper's methods on each data set, by means alone."""
    controls = [name for name in CONTROLS if any(results.runs(study, name) for study in results.studies)]
    older = stale(results)
    rows = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        means = {name: mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None}
        lead = lead_over(results, study, column, OTHERS)
        if OURS not in means or lead is None:
            continue
        others = {name: mean for name, mean in means.items() if name != OURS}
        sign = 1 if column.higher_is_better else -1
        place = 1 + sum(sign * mean > sign * means[OURS] for mean in others.values())
        rows.append(
            [
                f"{STUDIES[study].title}{f' {STALE}' if study in older else ''}, {column.label}"
                f"{'' if column.higher_is_better else ' (less is better)'}",
                column.shown(means[OURS]),
                f"{place} of {len(means)}",
                f"{column.shown(others[lead.rival])} ({METHODS[lead.rival]})",
                *_leads(column, lead, printed_lead(study, column, OTHERS)),
                *_leads(column, lead_over(results, study, column, (VANILLA,)), printed_lead(study, column, (VANILLA,))),
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
        f"lead over {METHODS[VANILLA]}",
        "in the paper",
        *(VARIANTS[name].label for name in controls),
    ]
    if not rows:
        return []
    last = (
        f" What stands in the last columns knows nothing of positions, and is not in the paper; "
        f"{VARIANTS[CONTROL].label} is the Transformer without its sinusoids."
        if controls
        else ""
    )
    has_intervals = any("[" in cell for row in rows for cell in row)
    intervals = (
        "with their 95 % intervals (Welch's, over runs; wider over the best, which is picked after the runs)"
        if has_intervals
        else "here without intervals"
    )
    dagger = f" {STALE} Made with settings or data that `reproduce` no longer takes." if older else ""
    return [
        *markdown(heads, rows),
        "",
        "Means over runs on the test set, by the first metric of each set-up. Leads are in points, of RMSE by how much "
        f"it is lower, {intervals}; beside each is that which the paper prints for its own data.{last}{dagger}",
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
        *([f"- Word vectors: {vectors}; the paper has GloVe's of 300-d."] if vectors else []),
    ]


def _levels(results: Results) -> list[str]:
    """How far the plain Transformer is from where the paper has it."""
    gaps = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        paper, here = printed_of(study).get(column.name), results.mean(study, VANILLA, column.name)
        if paper and here is not None:
            gaps.append(f"{STUDIES[study].title} {column.shown(here - paper[VANILLA].mean / 100, '+')}")
    far = "; ".join(gaps)
    told = (
        f"Compare leads, not levels. {METHODS[VANILLA]} here minus {METHODS[VANILLA]} in the paper, in points: {far}."
    )
    return [told, ""] if gaps else []


def _leads(column: Column, lead: Lead | None, paper: float | None) -> list[str]:
    """A lead with its interval, and the paper's."""
    ends = "" if lead is None or lead.interval is None else ", ".join(column.shown(end, "+") for end in lead.interval)
    return [
        MISSING if lead is None else f"{column.shown(lead.gain, '+')}{f' [{ends}]' if ends else ''}",
        MISSING if paper is None else column.shown(paper, "+"),
    ]


def _shown_mean(results: Results, study: str, name: str, column: Column) -> str:
    mean = results.mean(study, name, column.name)
    return MISSING if mean is None else column.shown(mean)
