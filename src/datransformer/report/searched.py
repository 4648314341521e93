"""How the settings were found, and what changes beyond the paper came to, where files beside the records tell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import OURS
from datransformer.experiments.studies import STUDIES, VARIANTS
from datransformer.report.records import Results
from datransformer.report.statistics import ranked, welch_t_test
from datransformer.report.tables import MISSING, Column, columns_of, escaped, shown_p

AS_THEY_WERE = "nothing changed"
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


def beyond_the_paper(results: Results, beyond: Mapping[str, Any]) -> list[str]:
    """The lines of the section on ``beyond.json``: options against plain distance-aware attention."""
    rows: Rows = beyond["rows"]
    columns = [
        (study, split)
        for study in dict.fromkeys(row["study"] for row in rows)
        for split in ("dev", "test")
        if any(row["study"] == study and split in row for row in rows)
    ]
    heads = [f"{STUDIES[study].title}, {_column(study).label}, {split}" for study, split in columns]
    cells = [
        [escaped(option), *(_difference(results, rows, option, study, split) for study, split in columns)]
        for option in dict.fromkeys(row["option"] for row in rows)
    ]
    return [
        escaped(beyond["note"]),
        "",
        "A cell is the mean over seeds less that of plain DA-Transformer in the tables above, p in Welch's t-test, not "
        "corrected, and the number of runs of both.",
        "",
        *markdown(["option", *heads], cells),
        *_sharpness(results, rows),
    ]


def _sharpness(results: Results, rows: Rows) -> list[str]:
    """What options do to the entropy of attention, where that was measured."""
    measured = [row for row in rows if "entropy" in row]
    studies = list(dict.fromkeys(row["study"] for row in measured))
    if not studies:
        return []
    column = Column("entropy", "entropy", percent=False, digits=3)
    plain = {study: [float(run.mean()) for run in results.measured(study, OURS, "entropy")] for study in studies}
    cells = []
    for option in dict.fromkeys(row["option"] for row in measured):
        tried = {study: [row["entropy"] for row in measured if (row["option"], row["study"]) == (option, study)]
                 for study in studies}  # fmt: skip
        cells.append([escaped(option), *(_gap(column, tried[study], plain[study]) for study in studies)])
    return [
        "",
        "What they do to the entropy of attention, the mean over heads; below 0 is sharper:",
        "",
        *markdown(["option", *(STUDIES[study].title for study in studies)], cells),
    ]


def _column(study: str) -> Column:
    return columns_of(STUDIES[study])[0]


def _settings(settings: Mapping[str, Any]) -> str:
    return escaped(", ".join(f"{name} = {value}" for name, value in settings.items())) or AS_THEY_WERE


def _round(trials: Rows) -> list[str]:
    """Settings × studies, each study once for every variant that was tried."""
    scores: dict[str, dict[tuple[str, str], list[float]]] = {}
    for trial in trials:
        place = trial["study"], trial["variant"]
        cells = scores.setdefault(_settings(trial["settings"]), {})
        cells.setdefault(place, []).append(trial["dev"][_column(trial["study"]).name])
    places = list(dict.fromkeys((trial["study"], trial["variant"]) for trial in trials))
    lines = {settings: [settings] for settings in scores}
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


def _difference(results: Results, rows: Rows, option: str, study: str, split: str) -> str:
    column = _column(study)
    tried = [
        row[split][column.name] for row in rows if (row["option"], row["study"]) == (option, study) and split in row
    ]
    plain = [
        record["metrics"][split][column.name]
        for record in results.runs(study, OURS)
        if column.name in record["metrics"].get(split, {})
    ]
    return _gap(column, tried, plain)


def _gap(column: Column, tried: Sequence[float], plain: Sequence[float]) -> str:
    if not tried or not plain:
        return MISSING
    test = welch_t_test(tried, plain)
    return f"{column.shown(test.difference, '+')}{column.unit} ({shown_p(test.p)}, {len(tried)} and {len(plain)})"
