"""The page of a reproduction, from the small JSON files that its runs have left: tables, heads, verdicts, choices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datransformer.data.store import write_text
from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import CLAIMS, METHODS, OURS, RESULTS
from datransformer.experiments.paper import METRICS as METRIC_NAMES
from datransformer.experiments.studies import CHOICES, STUDIES, TABLES, VARIANTS, Study
from datransformer.report.records import Results, read_results
from datransformer.report.statistics import RESAMPLED, Comparison, bootstrap_difference, compare, correct
from datransformer.report.tables import Column, Row, results_table
from datransformer.report.verdicts import UNTESTED, VERDICTS, Key, Verdict, counted
from datransformer.train.tasks import LOWER_IS_BETTER, RATING_METRICS

TITLES = {
    "methods": "Methods",
    "mappings": "Ours with another mapping f (Figure 4)",
    "adjustments": "Ours with another way of adjusting (Figure 5)",
}


def write_results(folder: Path, page: Path) -> None:
    """Turn the records in ``folder`` into a page."""
    write_text(page, results_page(read_results(folder)))


def results_page(results: Results) -> str:
    """The whole page in Markdown."""
    comparisons = compare_all(results)
    lines = ["# Results", "", *_introduction(results), "", "## What holds", "", *_verdicts(results, comparisons)]
    for study in results.studies:
        lines += ["", f"## {STUDIES[study].title}", "", *_facts(results, study)]
        for table in STUDIES[study].tables:
            shown = [variant for variant in TABLES[table] if results.runs(study, variant)]
            if len(shown) > 1:
                lines += ["", f"### {TITLES[table]}", "", _table(results, study, table, comparisons)]
        lines += _heads(results, study)
    lines += ["", "## Choices", "", *_choices()]
    if results.failed:
        lines += ["", "## Runs that failed", ""]
        lines += [f"- {one['study']}/{one['variant']}-{one['seed']}: {one['failed']}" for one in results.failed]
    return "\n".join(lines) + "\n"


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


def _with_interval(results: Results, study: str, metric: str, comparison: Comparison) -> Comparison:
    """The comparison with an interval over test items, where the answers to them were kept."""
    runs = [results.runs(study, name) for name in (OURS, comparison.rival)]
    if metric not in RESAMPLED or not all("answers" in record for one in runs for record in one):
        return comparison
    ours, rival = (np.array([_digits(record["answers"]) for record in one]) for one in runs)
    interval = bootstrap_difference(ours, rival, _digits(runs[0][0]["truth"]), metric)
    return replace(comparison, interval=interval)


def _digits(text: str) -> Any:
    return np.array([int(sign) for sign in text])


def _introduction(results: Results) -> list[str]:
    variants = [runs for study in results.studies for runs in results.records[study].values()]
    records = [record for runs in variants for record in runs.values()]
    devices = sorted({record["device"] for record in records})
    seconds = sum(record["wall_seconds"] for record in records)
    seeds = max(map(len, variants), default=0)
    return [
        f"{len(records):,} runs, up to {seeds} seeds a method, on {', '.join(devices) or 'nothing'}, "
        f"{seconds / 60:,.0f} minutes of training and testing in all. `datransformer reproduce` made them; "
        "`datransformer report` turns what they left into this page. A cell is the mean over runs ± their standard "
        "deviation, on the test set; the best is bold, the second best underlined."
    ]


def _facts(results: Results, study: str) -> list[str]:
    record = next(iter(next(iter(results.records[study].values())).values()))
    sizes = " / ".join(f"{count:,}" for count in record["examples"].values())
    return [f"{' / '.join(record['examples'])}: {sizes}. Data: {record['caveat']}."]


def _columns(study: Study) -> list[Column]:
    plain = study.metrics == RATING_METRICS
    return [
        Column(name, METRIC_NAMES.get(name, name.upper()), not plain, 3 if plain else 2, name not in LOWER_IS_BETTER)
        for name in study.metrics
    ]


def _table(results: Results, study: str, table: str, comparisons: Mapping[Key, Comparison]) -> str:
    columns = _columns(STUDIES[study])
    printed = RESULTS.get(study, {}) if table == "methods" else {}
    rows = []
    for variant in TABLES[table]:
        about = VARIANTS[variant]
        label = TABLE_OURS.get(table, about.label) if variant == OURS else about.label
        scores = {column.name: results.scores(study, variant, column.name) for column in columns}
        paper = {name: methods[variant] for name, methods in printed.items() if variant in methods}
        rows.append(Row(variant, label, scores, paper, about.in_paper))
    mine = {metric: one for (of, metric), one in comparisons.items() if of == study} if table == "methods" else {}
    return results_table(columns, rows, mine)


TABLE_OURS = {"mappings": "learnable sigmoid (ours)", "adjustments": "early multiply (ours)"}


def _heads(results: Results, study: str) -> list[str]:
    """W and v as learned, and how sharp, sparse and far-sighted the heads are, ours beside vanilla."""
    weights, shifts = (results.distances(study, name) for name in ("distance_weight", "distance_shift"))
    if not weights:
        return []
    lines = [
        "",
        "### Heads",
        "",
        "w and v of ours by level, sorted, averaged over runs after sorting (Figures 6 and 7):",
        "",
    ]
    rows = [
        [f"{level}, {sign}", counted(numbers), " ".join(f"{number:+.2f}" for number in numbers)]
        for sign, levels in (("w", weights), ("v", shifts))
        for level, numbers in levels.items()
    ]
    lines += markdown(["level", "below 0 / above 0", "values"], rows)
    measured = [
        [VARIANTS[variant].label, *(_spread(results, study, variant, name) for name in ("entropy", "keys", "distance"))]
        for variant in METHODS
        if any("heads" in record for record in results.runs(study, variant))
    ]
    if measured:
        lines += [
            "",
            "How sharp (entropy of the attention as a share of the largest), how sparse (share of keys that hold 90 % "
            "of the weight) and how far-sighted (mean distance attended to, over that to all keys) the heads are: the "
            "mean over heads and runs, and the range over heads.",
            "",
            *markdown(["method", "entropy", "keys", "distance"], measured),
        ]
    return lines


def _spread(results: Results, study: str, variant: str, name: str) -> str:
    heads = [
        sorted(number for level in record["heads"].values() for number in level[name])
        for record in results.runs(study, variant)
        if "heads" in record
    ]
    by_rank = np.mean(heads, axis=0)
    return f"{by_rank.mean():.2f} ({by_rank[0]:.2f}–{by_rank[-1]:.2f})"


def _choices() -> list[str]:
    rows = [[f"`{name}`", f"{choice.value}", choice.why] for name, choice in CHOICES.items()]
    return ["The same for every method.", "", *markdown(["setting", "value", "where it comes from"], rows)]


def _verdicts(results: Results, comparisons: Mapping[Key, Comparison]) -> list[str]:
    comparisons = {key: one for key, one in comparisons.items() if key[0] in results.judged}
    lines = ["Judged by generated data alone, of which the paper knows nothing.", ""] * (results.judged == ["probe"])
    rows = []
    for name, claim in CLAIMS.items():
        verdict = VERDICTS[name](results, comparisons) if name in VERDICTS else None
        verdict = verdict or Verdict(UNTESTED, "no runs for it")
        rows.append([claim.says, verdict.verdict, verdict.numbers])
    return [*lines, *markdown(["the paper says", "verdict", "numbers"], rows)]
