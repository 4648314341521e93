"""How the settings were found, and what changes beyond the paper came to, where files beside the records tell."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datransformer.experiments.beyond import PLAIN
from datransformer.experiments.machine import markdown
from datransformer.experiments.studies import STUDIES, VARIANTS
from datransformer.report.records import Results
from datransformer.report.statistics import SIGNIFICANT, Significance, holm, ranked, welch_t_test
from datransformer.report.tables import MISSING, Column, columns_of, escaped, shown_p

AS_THEY_WERE = "nothing changed"
ENOUGH = 3
LONG = 4  # a list with more in it is a spread over heads
Rows = Sequence[Mapping[str, Any]]


def searched(search: Mapping[str, Any]) -> list[str]:
    """The lines of the section on ``search.json``: a table a round."""
    lines = [
        escaped(search["note"]),
        "",
        "Every choice was made by the first metric on the dev set; the test set was never looked at. A cell is the "
        "mean over seeds and, in brackets, the number of runs; the best of a column is bold.",
    ]
    for name in dict.fromkeys(trial["round"] for trial in search["trials"]):
        trials = [trial for trial in search["trials"] if trial["round"] == name]
        lines += ["", f"### {escaped(name)}", "", *_round(trials)]
    if search["chosen"]:
        lines += ["", f"Chosen: {_settings(search['chosen'])}."]
    return lines


@dataclass(frozen=True)
class Tested:
    """An option against plain distance-aware attention.

    Args:
        tried: The option's scores.
        plain: Those without it.
        welch: The test between them.
    """

    tried: Sequence[float]
    plain: Sequence[float]
    welch: Significance


def beyond_the_paper(results: Results, beyond: Mapping[str, Any]) -> list[str]:
    """The lines of the section on ``beyond.json``: options against plain distance-aware attention."""
    rows: Rows = beyond["rows"]
    studies = _comparable(results, rows)
    heads = [f"{STUDIES[study].title}, {_column(study).label}, dev" for study in studies]
    cells = [
        [
            escaped(option),
            *(_gap(_column(study), difference_to_plain(results, rows, option, study)) for study in studies),
        ]
        for option in options_of(rows)
    ]
    return [
        *([escaped(beyond["note"]), ""] if beyond["note"] else []),
        f"An option that is clearly better on {ENOUGH} data sets, after Holm's correction, becomes one of the library, "
        f"off by default. On dev {clear_options(results, rows)}.",
        "",
        "A cell is the mean over seeds less that of plain DA-Transformer, p in Welch's t-test, not corrected, and the "
        "number of runs of both.",
        "",
        *markdown(["option", *heads], cells),
        *_left_out(results, rows),
        *_sharpness(results, rows),
    ]


def _comparable(results: Results, rows: Rows) -> list[str]:
    """The data sets on which options were tried that have runs to be held against."""
    tried = dict.fromkeys(row["study"] for row in rows if results.as_precise(row))
    return [
        study
        for study in tried
        if results.plain(study)
        or any((row["study"], row["option"]) == (study, PLAIN) and results.as_precise(row) for row in rows)
    ]


def _left_out(results: Results, rows: Rows) -> list[str]:
    """Which runs have nothing to be held against."""
    there = _comparable(results, rows)
    tried = [row["study"] for row in rows if row["study"] not in there or not results.as_precise(row)]
    told = ", ".join(f"{tried.count(study):,} on {STUDIES[study].title}" for study in dict.fromkeys(tried))
    why = "Held against nothing, for want of runs of the same settings and precision on this page"
    return ["", f"{why}: {told}."] if told else []


def clear_options(results: Results, rows: Rows) -> str:
    """Which options are clearly better on dev than none, and which worse, after Holm's correction over all of them."""
    tests = {
        (option, study): tested.welch
        for option in options_of(rows)
        for study in dict.fromkeys(row["study"] for row in rows)
        if (tested := difference_to_plain(results, rows, option, study)) is not None
    }
    found: dict[str, dict[str, list[str]]] = {"better": {}, "worse": {}}
    for (option, study), p in holm({key: test.p for key, test in tests.items()}).items():
        if p is not None and p < SIGNIFICANT:
            better = (tests[option, study].difference > 0) == _column(study).higher_is_better
            where = found["better" if better else "worse"]
            where.setdefault(option, []).append(STUDIES[study].title)
    told = {
        side: ", ".join(f"{escaped(option)} on {' and '.join(titles)}" for option, titles in where.items()) or "none"
        for side, where in found.items()
    }
    listed = "; ".join(f"clearly {side}: {options}" for side, options in told.items())
    count = sum(test.p is not None for test in tests.values())
    return (
        f"{listed} (p < {SIGNIFICANT} after Holm's correction over {count} test{'s' if count > 1 else ''})"
        if count
        else listed
    )


def options_of(rows: Rows) -> list[str]:
    """The options that rows are of, each once."""
    return list(dict.fromkeys(row["option"] for row in rows if row["option"] != PLAIN))


def _sharpness(results: Results, rows: Rows) -> list[str]:
    """What options do to the entropy of attention, where that was measured."""
    measured = [row for row in rows if "entropy" in row and results.as_precise(row)]
    there = _comparable(results, rows)
    studies = [study for study in there if any(row["study"] == study and row["option"] != PLAIN for row in measured)]
    if not studies:
        return []
    column = Column("entropy", "entropy", percent=False, digits=3)

    def entropies(option: str, study: str) -> dict[int, float]:
        return {row["seed"]: row["entropy"] for row in measured if (row["option"], row["study"]) == (option, study)}

    plain = {study: [*(entropies(PLAIN, study) | _plain_entropies(results, study)).values()] for study in studies}
    cells = [
        [
            escaped(option),
            *(_gap(column, _tested([*entropies(option, study).values()], plain[study])) for study in studies),
        ]
        for option in options_of(measured)
    ]
    return [
        "",
        "What they do to the entropy of attention, the mean over heads; below 0 is sharper:",
        "",
        *markdown(["option", *(STUDIES[study].title for study in studies)], cells),
    ]


def _plain_entropies(results: Results, study: str) -> dict[int, float]:
    """Of the runs of the reproduction by seed, the mean over heads."""
    return {
        record["seed"]: float(np.mean([one for level in record["heads"].values() for one in level["entropy"]]))
        for record in results.plain(study)
        if record.get("heads")
    }


def _column(study: str) -> Column:
    return columns_of(STUDIES[study])[0]


def _settings(settings: Mapping[str, Any]) -> str:
    return escaped(", ".join(f"{name} = {_value(value)}" for name, value in settings.items())) or AS_THEY_WERE


def _value(value: Any) -> str:
    """A setting; of a group of them each, and a long list by its ends."""
    if isinstance(value, dict):
        return f"({', '.join(f'{name} = {_by_its_ends(one)}' for name, one in value.items())})"
    return _by_its_ends(value)


def _by_its_ends(value: Any) -> str:
    return f"{value[0]} to {value[-1]}" if isinstance(value, list) and len(value) > LONG else str(value)


def _round(trials: Rows) -> list[str]:
    """Settings × studies, each study once for every variant that was tried."""
    scores: dict[str, dict[tuple[str, str], list[float]]] = {}
    labels: dict[str, str] = {}
    for trial in trials:
        place = trial["study"], trial["variant"]
        key = json.dumps(trial["settings"], sort_keys=True)
        labels[key] = _settings(trial["settings"])
        scores.setdefault(key, {}).setdefault(place, []).append(trial["dev"][_column(trial["study"]).name])
    places = list(dict.fromkeys((trial["study"], trial["variant"]) for trial in trials))
    lines = {settings: [labels[settings]] for settings in scores}
    heads = ["settings"]
    for study, variant in places:
        column = _column(study)
        heads.append(f"{STUDIES[study].title}, {VARIANTS[variant].label}, {column.label}")
        shown = {
            settings: column.shown(float(np.mean(cells[study, variant])))
            for settings, cells in scores.items()
            if (study, variant) in cells
        }
        best, _ = ranked({settings: float(text) for settings, text in shown.items()}, column.higher_is_better)
        for settings, cells in scores.items():
            text = f"**{shown[settings]}**" if settings in best else shown.get(settings, MISSING)
            runs = len(cells.get((study, variant), ()))
            lines[settings].append(f"{text} ({runs})" if runs else text)
    return markdown(heads, lines.values())


def difference_to_plain(results: Results, rows: Rows, option: str, study: str) -> Tested | None:
    """The runs of an option, and those without it: of the reproduction, and further seeds; None without either."""
    name = _column(study).name

    def scores(wanted: str) -> dict[int, float]:
        return {
            row["seed"]: row["dev"][name]
            for row in rows
            if (row["option"], row["study"]) == (wanted, study) and results.as_precise(row)
        }

    plain = {
        record["seed"]: record["metrics"]["dev"][name]
        for record in results.plain(study)
        if name in record["metrics"]["dev"]
    }
    return _tested([*scores(option).values()], [*(scores(PLAIN) | plain).values()])


def _tested(tried: Sequence[float], plain: Sequence[float]) -> Tested | None:
    return Tested(tried, plain, welch_t_test(tried, plain)) if tried and plain else None


def _gap(column: Column, tested: Tested | None) -> str:
    if tested is None:
        return MISSING
    counts = f"{len(tested.tried)} and {len(tested.plain)}"
    return f"{column.shown(tested.welch.difference, '+')}{column.unit} ({shown_p(tested.welch.p)}, {counts})"
