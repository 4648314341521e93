"""Why claims of the paper hold or not, as far as the records tell.

What is to win, how far w and v go, who is sharp, and whether it matters on which side of a word another is.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datransformer.experiments.beyond import FROM_ZERO, OWN_SCALE, SHUFFLED, SIGNED
from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.runs import reported
from datransformer.experiments.studies import CONTROL, STUDIES, VARIANTS
from datransformer.report.comparisons import welch_between
from datransformer.report.records import Results
from datransformer.report.searched import Rows, difference_to_plain
from datransformer.report.statistics import SIGNIFICANT, Floats, Significance, paired_t_test, ranked, welch_t_test
from datransformer.report.tables import MISSING, Column, columns_of, escaped, shown_p
from datransformer.report.verdicts import changed_in_all, changed_sides, level_name, shown_count, side_of

EXPONENT = "mapping_exponent"
APART = 5  # words, for an example
# Whose heads are held against those of attention without positions.
SHARP = ("vanilla", OURS, EXPONENT)
# Runs in which w starts at 0, and what is said of them beside the data.
FREE_RUNS = {FROM_ZERO: "", OWN_SCALE: ", own scale", SHUFFLED: ", shuffled"}
# Whose attention differs between a word before and a word behind.
SIDED = ("rpr", "xl", "adapted")


def reasons(results: Results) -> list[str]:
    """The lines of the section; none where there is nothing to tell."""
    return [
        *_to_win(results),
        *_moved(results),
        *_used(results),
        *_from_zero(results),
        *_sharp(results),
        *_sides(results),
    ]


def _to_win(results: Results) -> list[str]:
    """By how much positions help at all."""
    rows = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        known = {name: mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None}
        if OURS not in known or not results.runs(study, CONTROL):
            continue
        (best, *_), _ = ranked(known, column.higher_is_better)
        cells = []
        for name in (best, OURS):
            test = welch_between(results, study, name, CONTROL, column.name)
            assert test is not None  # both have runs
            sign = 1 if column.higher_is_better else -1
            cells.append(f"{column.shown(sign * test.difference, '+')}{column.unit} ({shown_p(test.p)})")
        rows.append([f"{STUDIES[study].title}, {column.label}", f"{METHODS[best]}: {cells[0]}", cells[1]])
    if not rows:
        return []
    return [
        "",
        "### How much is there to win?",
        "",
        f"The gain over {VARIANTS[CONTROL].label}, which sees a bag of words: what it reaches cannot be due to "
        "distance. Where both texts of a pair are one sequence it cannot tell either which text a word is in, so not "
        "all of that gain is due to distance.",
        "",
        *markdown(["data", "best method of the paper", METHODS[OURS]], rows),
    ]


def _moved(results: Results) -> list[str]:
    """How far w and v are from where they began."""
    rows = []
    for study in results.studies:
        steps = [record["steps"] for record in results.runs(study, OURS) if "steps" in record]
        weights, shifts = (results.learned(study, name) for name in ("distance_weight", "distance_shift"))
        for level, values in weights.items():
            heads = values.shape[1]
            starts = [np.array(results.started(study, name, heads)) for name in ("distance_weight", "distance_shift")]
            ways = [np.abs(now - start) for now, start in zip((values, shifts[level]), starts, strict=True)]
            changed = changed_sides(values, starts[0])
            rows.append(
                [
                    f"{STUDIES[study].title}, {escaped(level_name(level))}",
                    f"{np.mean(steps):,.0f}" if steps else MISSING,
                    *(f"{way.mean():.3f} (most {way.max():.3f})" for way in ways),
                    f"{changed.mean():.1f} of {heads}",
                ]
            )
    changed_anywhere = changed_in_all(results)
    if changed_anywhere is None:
        return []
    return [
        "",
        "### How far do w and v go?",
        "",
        "The mean over heads and runs of how far each ends from where it began, the farthest in brackets, and how many "
        f"heads change from near to far or back: {100 * changed_anywhere:.0f} % of all. Where few do, the signs of w "
        "tell of the start, not of the data. A higher rate for w and v, and other starts, are among what is tried "
        "beyond the paper.",
        "",
        *markdown(["data", "steps", "w", "v", "heads that change sides"], rows),
    ]


def _used(results: Results) -> list[str]:
    """What trained models lose without their distances."""
    rows = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        records = [one for one in results.runs(study, OURS) if column.name in one.get("without_distances", {})]
        if not records:
            continue
        scores = [reported(record)[column.name] for record in records]
        test = paired_t_test(scores, [record["without_distances"][column.name] for record in records])
        sign = 1 if column.higher_is_better else -1
        rows.append(
            [
                f"{STUDIES[study].title}, {column.label}",
                str(len(records)),
                column.shown(float(np.mean(scores))),
                column.shown(float(np.mean(scores)) - test.difference),
                f"{column.shown(sign * test.difference, '+')}{column.unit} ({shown_p(test.p)})",
            ]
        )
    if not rows:
        return []
    return [
        "",
        "### Do trained models need their distances?",
        "",
        f"The same trained {METHODS[OURS]} on the same test set with every w set to 0, so that f is 1 at any distance "
        "and nothing else changes. What it loses is what it has built on distances, which may be more than they are "
        "worth: a model that never had any might have found another way. p is that of a paired t-test over runs.",
        "",
        *markdown(["data", "runs", "as trained", "with w = 0", "lost"], rows),
    ]


def _from_zero(results: Results) -> list[str]:
    """Which way w and v go where their start does not decide."""
    rows: list[list[str]] = []
    for study, (option, more) in itertools.product(STUDIES, FREE_RUNS.items()):
        runs = results.rows_from_zero(study, option)
        shifts = results.from_zero(study, "distance_shift", option)
        devices = dict.fromkeys(row.get("device", MISSING) for row in runs)
        for level, weights in results.from_zero(study, "distance_weight", option).items():
            rows.append(
                [
                    f"{STUDIES[study].title}, {escaped(level_name(level))}{more}",
                    f"{len(weights)} on {escaped(', '.join(devices))}",
                    shown_count(weights),
                    _range(weights),
                    shown_count(shifts[level]),
                    _range(shifts[level]),
                    f"{coefficient(weights * APART, shifts[level]).mean():.2f}",
                    _mean_of([row.get("scales", {}) for row in runs], level, 2),
                    # Heads that are given another order know nothing of that in which reach is measured.
                    MISSING if option == SHUFFLED else _mean_of([row.get("attended", {}) for row in runs], level, 3),
                    *(_mean_of(results.reach(study, name), level, 3) for name in (OURS, CONTROL)),
                    _on_dev(results, study, option),
                ]
            )
    if not rows:
        return []
    scaled, shuffled = (
        any(results.from_zero(study, "distance_weight", option) for study in STUDIES)
        for option in (OWN_SCALE, SHUFFLED)
    )
    told = [
        "With w = 0 and v = 0 in every head at first and ten times the rate for both, no head starts on a side: where "
        "w ends was learned. How many heads end below 0, the mean ± standard deviation over runs, and the lowest and "
        "highest values, averaged over runs.",
    ]
    if any(results.from_zero(study, "distance_weight") for study in ("ag", "mind")):
        told.append(
            "The paper: on AG half of the heads have w < 0 and most v < 0; on MIND more words' heads have w > 0 than "
            "not, one head of the news level alone has w < 0, and no v is below 0."
        )
    meant = [
        "A head with w > 0 does not only look far. It multiplies all scores but those of the nearest by up to 1 + eᵛ, "
        "which makes its softmax sharper, as a lower temperature would; one with w < 0 makes it softer.",
        f"f at distance {APART} is what scores are multiplied by there, the mean over heads and runs, at first 1. With "
        "w = v = 0.6 it is 1 at a word itself, 1.4 at the next one, 2.6 five words away and 2.8 at most: such a head "
        "turns from a word and its neighbours more than to what is far.",
    ]
    if scaled:
        meant.append(
            "In the runs with an own scale each head has one number more, which starts at 1, learns as fast as w and "
            "v, and multiplies all of its scores: such a head need not look far to be sharp."
        )
    if shuffled:
        meant.append(
            "In the shuffled runs distances are those of a random order, another one for each text and pass: they tell "
            "nothing but which word is the word itself, and where w and v go there is the doing of the formula."
            f"{_same_side(results)}"
        )
    columns = ["data", "runs", "w below 0", "w from, to", "v below 0", "v from, to", f"f at distance {APART}"]
    columns += [
        "own scale",
        "reach",
        f"reach of {METHODS[OURS]} as usual",
        f"reach of {VARIANTS[CONTROL].label}",
        "dev",
    ]
    kept = [place for place in range(len(columns)) if any(row[place] != MISSING for row in rows)]
    if any("reach" in columns[place] for place in kept):
        meant.append(
            "Reach, distance in the tables of heads, is the mean distance to what is attended to, as a share of the "
            "mean distance to all words: 1 where attention is even. Attention that is even but leaves the word itself "
            "out has n / (n − 1), 1.05 with 20 words."
        )
    if len(columns) - 1 in kept:
        meant.append(
            "The last column is the first metric on dev, with p in Welch's t-test against the first row of each."
        )
    return [
        "",
        "### Where do w and v go by themselves?",
        "",
        " ".join(told),
        "",
        " ".join(meant),
        "",
        *markdown([columns[place] for place in kept], [[row[place] for place in kept] for row in rows]),
    ]


def _same_side(results: Results) -> str:
    """At which levels most heads end clearly on the same side of w = 0 whether distances tell something or not."""
    sides: dict[bool, list[str]] = {True: [], False: []}
    for study in STUDIES:
        texts, order = (results.from_zero(study, "distance_weight", option) for option in (FROM_ZERO, SHUFFLED))
        for level in texts:
            first, second = (side_of(weights[level]) if level in weights else 0 for weights in (texts, order))
            if first and second:
                sides[first == second].append(f"{STUDIES[study].title}, {escaped(level_name(level))}")
    told = {
        True: "Most heads end clearly on the same side of 0 there as in the order of the text, so that the side tells "
        "nothing of the texts, on",
        False: "Most heads end clearly on the other side on",
    }
    return "".join(f" {told[same]} {'; '.join(levels)}." for same, levels in sides.items() if levels)


def _on_dev(results: Results, study: str, option: str) -> str:
    """The mean of the metric that decides, and p against runs from w = 0 that have nothing else about them."""
    column = columns_of(STUDIES[study])[0]
    own, plain = (
        [row["dev"][column.name] for row in results.rows_from_zero(study, one) if column.name in row["dev"]]
        for one in (option, FROM_ZERO)
    )
    if not own:
        return MISSING
    told = f" ({shown_p(welch_t_test(own, plain).p)})" if option != FROM_ZERO and plain else ""
    return f"{column.shown(float(np.mean(own)))}{told}"


def _mean_of(runs: Sequence[Mapping[str, Any]], level: str, digits: int) -> str:
    """The mean of what some runs keep of a level, one number or one a head."""
    kept = [levels[level] for levels in runs if level in levels]
    return f"{np.mean(kept):.{digits}f}" if kept else MISSING


def coefficient(weighted: Floats, shift: Floats) -> Floats:
    """The learnable sigmoid, Eq. 5, in a form that stays finite."""
    return np.asarray(np.exp(np.logaddexp(0, shift) - np.logaddexp(0, shift - weighted)), dtype=np.float64)


def _range(values: Floats) -> str:
    """The lowest and the highest of [runs, heads], averaged over runs."""
    return f"{values.min(axis=1).mean():+.2f}, {values.max(axis=1).mean():+.2f}"


def _entropies(results: Results) -> dict[str, dict[str, Floats]]:
    """By study and method, of each run the mean over its heads; of studies that have the control, vanilla and ours."""
    found: dict[str, dict[str, Floats]] = {}
    for study in results.studies:
        measured = {name: results.measured(study, name, "entropy") for name in (CONTROL, *SHARP)}
        if all(len(measured[name]) for name in (CONTROL, "vanilla", OURS)):
            found[study] = {name: runs.mean(axis=1) for name, runs in measured.items() if len(runs)}
    return found


def _sharpness(entropies: Mapping[str, Floats], name: str) -> Significance | None:
    """A method's entropy against that of the control; None where it has no runs."""
    if name not in entropies:
        return None
    return welch_t_test(entropies[name].tolist(), entropies[CONTROL].tolist())


def sharper_than_control(results: Results) -> dict[str, tuple[int, int]]:
    """On how many studies a method's attention is clearly sharper than without positions, and of how many."""
    counts, entropies = {}, _entropies(results)
    for name in SHARP:
        tests = [_sharpness(found, name) for found in entropies.values()]
        known = [(test.p, test.difference) for test in tests if test is not None and test.p is not None]
        if known:
            counts[name] = (sum(p < SIGNIFICANT and gap < 0 for p, gap in known), len(known))
    return counts


def _sharp(results: Results) -> list[str]:
    """Whether ours is soft, or what it is held against sharp."""
    rows = []
    for study, found in _entropies(results).items():
        tests = [_sharpness(found, name) for name in SHARP]
        shown = [
            MISSING if test is None else f"{found[name].mean():.3f} ({test.difference:+.3f}, {shown_p(test.p)})"
            for name, test in zip(SHARP, tests, strict=True)
        ]
        rows.append([STUDIES[study].title, f"{found[CONTROL].mean():.3f}", *shown])
    if not rows:
        return []
    counts = sharper_than_control(results)
    sharper, _ = counts.get(EXPONENT, (0, 0))
    listed = ", ".join(f"{VARIANTS[name].label} on {below} of {count}" for name, (below, count) in counts.items())
    return [
        "",
        "### Who is sharp?",
        "",
        "The entropy of attention, 1 where all keys weigh the same, the mean over heads and runs; in brackets the "
        f"difference to {VARIANTS[CONTROL].label}, which is the Transformer without its sinusoids, and p in "
        f"Welch's t-test.{f' Clearly sharper than that: {listed}.' if listed else ''}",
        "",
        "What the learnable sigmoid can do is bounded. f lies between 0 and 1 + eᵛ, 2 at v = 0: it can double a score, "
        "or shrink it to 0, which is also what the ReLU makes of a score below 0. A key with the score 0 still "
        "counts e⁰ = 1 in the softmax; it is not taken out. The exponent is bounded at e⁵⁰ alone"
        f"{_exponent(results, sharper=sharper > 0)}.",
        "",
        *markdown(["data", *(VARIANTS[name].label for name in (CONTROL, *SHARP))], rows),
    ]


def _sides(results: Results) -> list[str]:
    """Whether ours lacks what the distance does not tell: which of two words comes first."""
    tried: Rows = [] if results.beyond is None else results.beyond["rows"]
    rows = []
    for study in dict.fromkeys(row["study"] for row in tried if row["option"] == SIGNED):
        column = columns_of(STUDIES[study])[0]
        tested = difference_to_plain(results, tried, SIGNED, study)
        means = {name: mean for name in SIDED if (mean := _dev_mean(results, study, name, column)) is not None}
        if tested is None or not means or not results.plain(study):  # whose settings the others share
            continue
        (best, *_), _ = ranked(means, column.higher_is_better)
        rows.append(
            [
                f"{STUDIES[study].title}, {column.label}",
                column.shown(float(np.mean(tested.plain))),
                f"{column.shown(float(np.mean(tested.tried)))} ({shown_p(tested.welch.p)}, "
                f"{len(tested.tried)} and {len(tested.plain)})",
                f"{METHODS[best]}: {column.shown(means[best])}",
            ]
        )
    if not rows:
        return []
    *others, last = (METHODS[name] for name in SIDED)
    return [
        "",
        "### Does the side matter?",
        "",
        f"The distance |i − j| does not tell a word before another from one behind it; {', '.join(others)} and {last} "
        f"do. {SIGNED.capitalize()}, which is not in the paper, gives each head of DA-Transformer a w for either side. "
        "Means on dev; in brackets p in Welch's t-test between the two, and how many runs there are with and without:",
        "",
        *markdown(["data", METHODS[OURS], f"with {SIGNED}", "best of those that know the side"], rows),
    ]


def _dev_mean(results: Results, study: str, variant: str, column: Column) -> float | None:
    scores = [
        record["metrics"]["dev"][column.name]
        for record in results.runs(study, variant)
        if column.name in record["metrics"].get("dev", {})
    ]
    return float(np.mean(scores)) if scores else None


def exponent_against_ours(results: Results, study: str) -> Significance | None:
    """The mapping that may be sharper against the learnable sigmoid; None where one of them has no runs."""
    return welch_between(results, study, EXPONENT, OURS, columns_of(STUDIES[study])[0].name)


def _exponent(results: Results, *, sharper: bool) -> str:
    """Whether the mapping that may be sharper is the better one."""
    told, better = [], False
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        test = exponent_against_ours(results, study)
        if test is not None:
            told.append(f"{STUDIES[study].title} {column.shown(test.difference, '+')}{column.unit} ({shown_p(test.p)})")
            gain = test.difference * (1 if column.higher_is_better else -1)
            better |= test.p is not None and test.p < SIGNIFICANT and gain > 0
    if not told:
        return ""
    worth = "" if better or not sharper else ", clearly better nowhere: to be sharp is not enough"
    return f"; it has against the learnable sigmoid {', '.join(told)}{worth}"
