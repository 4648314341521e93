"""Tables of methods and metrics in Markdown, in which no star stands without the numbers that earned it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import METRICS, Printed
from datransformer.experiments.studies import LINEAR, Study
from datransformer.report.statistics import (
    SIGNIFICANT,
    TEST_NAMES,
    Comparison,
    Interval,
    Scores,
    Significance,
    Summary,
    ranked,
    summarise,
)
from datransformer.train.tasks import LOWER_IS_BETTER, RATING_METRICS

MISSING = "—"
STAR = r"\*"  # a bare one would open italics
NOT_IN_THE_PAPER = "*not in the paper*"
IN_THE_PAPER = "paper"


@dataclass(frozen=True)
class Column:
    """A metric on a data set.

    Args:
        name: What rows and comparisons know it by.
        label: What stands at its head.
        percent: Whether scores are shares, shown times 100.
        digits: How many stand behind the point.
        higher_is_better: Which way it points.
    """

    name: str
    label: str
    percent: bool = True
    digits: int = 2
    higher_is_better: bool = True

    def shown(self, value: float, sign: str = "") -> str:
        """``value`` as the column prints it; with ``sign="+"`` a gain has its sign too."""
        return f"{value * (100 if self.percent else 1):{sign}.{self.digits}f}"

    @property
    def unit(self) -> str:
        """What differences are counted in, to go behind the number."""
        return " points" if self.percent else ""


@dataclass(frozen=True)
class Row:
    """A method.

    Args:
        method: What comparisons know it by.
        label: What stands in front of it.
        scores: Its runs by column; a column without runs is shown as missing.
        paper: What the paper prints by column, in the units of the table.
        in_the_paper: Whether the paper has the method at all; the others stand below it.
    """

    method: str
    label: str
    scores: Mapping[str, Scores]
    paper: Mapping[str, Printed] = field(default_factory=dict)
    in_the_paper: bool = True


def columns_of(study: Study) -> list[Column]:
    """The metrics of a study."""
    plain = study.metrics == RATING_METRICS
    return [
        Column(name, METRICS.get(name, name.upper()), not plain, 3 if plain else 2, name not in LOWER_IS_BETTER)
        for name in study.metrics
    ]


def word_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table whose columns are all words."""
    head, _, *lines = markdown(heads, rows)
    return [head, f"| {' | '.join(['---'] * len(heads))} |", *lines]


def escaped(text: object) -> str:
    """A text that came from a file, as one line that Markdown shows as it is, in a table too."""
    return re.sub(r"([\\`*_#\[\]|~$])", r"\\\1", escape(" ".join(str(text).split()), quote=False))


def results_table(
    columns: Sequence[Column], rows: Sequence[Row], comparisons: Mapping[str, Comparison] | None = None
) -> str:
    """The table, and below it a line for each comparison and each gap.

    A cell is mean ± standard deviation over runs, or the score of a single one; the best of all rows is bold, the
    second best underlined, and what looks the same is treated the same. A column in which some row has a printed number
    is followed by one with the paper's. Our method has a star where it is better than the best of the others at
    p < 0.05, corrected where the comparisons are (`datransformer.report.statistics.correct`).

    Args:
        columns: The metrics, from left to right.
        rows: The methods, from top to bottom.
        comparisons: By column, where our method is compared; its line names the p-values, effect size and interval.
    """
    comparisons = comparisons or {}
    summaries = {column.name: _summaries(column, rows) for column in columns}
    printed = {column.name for column in columns if any(column.name in row.paper for row in rows)}
    heads, lines = ["method"], {row.method: [row.label] for row in rows}
    for column in columns:
        heads.append(column.label)
        marks = _marks(column, summaries[column.name], comparisons.get(column.name))
        for row in rows:
            found = summaries[column.name].get(row.method)
            lines[row.method].append(_cell(column, found, marks.get(row.method, "{}")))
        if column.name in printed:
            heads.append(IN_THE_PAPER)
            for row in rows:
                lines[row.method].append(_printed(column, row.paper.get(column.name)))
    inside = [lines[row.method] for row in rows if row.in_the_paper]
    outside = [lines[row.method] for row in rows if not row.in_the_paper]
    separator = [[NOT_IN_THE_PAPER, *[""] * (len(heads) - 1)]] if inside and outside else []
    notes = _footnotes(columns, rows, comparisons) + _gaps(columns, rows, summaries)
    table = markdown(heads, [*inside, *separator, *outside])
    return "\n".join(table + [line for note in notes for line in ("", note)] + _more(columns, comparisons))


def _summaries(column: Column, rows: Sequence[Row]) -> dict[str, Summary]:
    found = {}
    for row in rows:
        scores = row.scores.get(column.name, ())
        if len(scores):
            found[row.method] = summarise(list(scores.values()) if isinstance(scores, Mapping) else scores)
    return found


def _marks(column: Column, summaries: Mapping[str, Summary], comparison: Comparison | None) -> dict[str, str]:
    """By method what goes around its mean. Ranks go by what is shown: of two equal numbers neither looks better."""
    shown = {method: float(column.shown(summary.mean)) for method, summary in summaries.items()}
    best, second = ranked(shown, column.higher_is_better)
    if len(best) == len(shown):  # alone, or all the same: nothing stands out
        best, second = (), ()
    marks = {**dict.fromkeys(best, "**{}**"), **dict.fromkeys(second, "<u>{}</u>")}
    if comparison and _is_starred(comparison):
        marks[comparison.ours] = marks.get(comparison.ours, "{}") + STAR
    return marks


def _cell(column: Column, summary: Summary | None, mark: str) -> str:
    if summary is None:
        return MISSING
    mean = mark.format(column.shown(summary.mean))
    return mean if summary.deviation is None else f"{mean} ± {column.shown(summary.deviation)}"


def _printed(column: Column, printed: Printed | None) -> str:
    return f"{printed.mean:.{column.digits}f} ± {printed.deviation:.{column.digits}f}" if printed else ""


def _decisive(comparison: Comparison) -> float | None:
    """The p-value a star goes by: Welch's, which assumes least, corrected where it was."""
    return comparison.welch.p if comparison.welch.family is None else comparison.welch.corrected


def _is_starred(comparison: Comparison) -> bool:
    p = _decisive(comparison)
    return p is not None and p < SIGNIFICANT and comparison.gain > 0


def _footnotes(columns: Sequence[Column], rows: Sequence[Row], comparisons: Mapping[str, Comparison]) -> list[str]:
    labels = {row.method: row.label for row in rows}
    compared = [column for column in columns if column.name in comparisons]
    notes = [_footnote(column, comparisons[column.name], labels) for column in compared]
    if any(_is_starred(comparisons[column.name]) for column in compared):
        notes.append(
            f"{STAR} better than the method it is compared with above, at p < {SIGNIFICANT:g} "
            f"in {TEST_NAMES['welch']}, after Holm's correction where there is one."
        )
    return notes


def _footnote(column: Column, comparison: Comparison, labels: Mapping[str, str]) -> str:
    ours, rival = (labels.get(method, method) for method in (comparison.ours, comparison.rival))
    less = "" if column.higher_is_better else ", less is better"
    gap = f"{ours} − {rival} = {column.shown(comparison.welch.difference, '+')}{column.unit}{less}"
    return f"{column.label}: {gap}; {_test(comparison.welch)}."


def _more(columns: Sequence[Column], comparisons: Mapping[str, Comparison]) -> list[str]:
    """The lines of what else can be said of these runs, folded away."""
    told = []
    for column in columns:
        one = comparisons.get(column.name)
        parts = [] if one is None or one.paired is None else [_test(one.paired)]
        parts += [] if one is None or one.interval is None else [_interval(column, one.interval)]
        told += [f"- {column.label}: {'; '.join(parts)}."] if parts else []
    if not told:
        return []
    return ["", "<details><summary>By pairs of seeds, and by test items</summary>", "", *told, "", "</details>"]


def _test(test: Significance) -> str:
    name = TEST_NAMES[test.test]
    if test.p is None:
        return f"{name}: no p, {test.why_not}"
    corrected = "not corrected" if test.corrected is None else f"Holm over {test.family}: {shown_p(test.corrected)}"
    effect = "" if test.effect is None else f", {_EFFECTS[test.test]} = {test.effect:+.2f}"
    return f"{name} {shown_p(test.p)} ({corrected}){effect}"


_EFFECTS = {"welch": "d", "paired": "d_z"}


def shown_p(value: float | None) -> str:
    """A p-value as far as it says something; None where there is no test."""
    if value is None:
        return "no p"
    if value < 0.0001:
        return "p < 0.0001"
    short = f"{value:.2g}" if value < 0.001 else f"{value:.3f}"
    if float(short) == SIGNIFICANT != value:  # one at the bound's side should not look as if it were at it
        longer = f"{value:.4f}"
        return f"p = {longer}" if float(longer) != SIGNIFICANT else f"p {'<' if value < SIGNIFICANT else '>'} {short}"
    return f"p = {short}"


def _interval(column: Column, interval: Interval) -> str:
    ends = f"[{column.shown(interval.low, '+')}, {column.shown(interval.high, '+')}]"
    return f"{interval.level * 100:g} % interval over {interval.items:,} items, for these runs, {ends}"


def _gaps(columns: Sequence[Column], rows: Sequence[Row], summaries: Mapping[str, Mapping[str, Summary]]) -> list[str]:
    """What is missing, and which cells average fewer runs than the others; a linear model draws nothing at random."""
    missing, fewer = [], []
    most = max((summary.count for found in summaries.values() for summary in found.values()), default=0)
    for column in columns:
        found = summaries[column.name]
        absent = [row.label for row in rows if row.method not in found]
        short = [f"{row.label} ({found[row.method].count})" for row in rows
                 if row.method in found and found[row.method].count < most and row.method != LINEAR]  # fmt: skip
        missing += [f"{column.label}: {', '.join(absent)}"] if absent else []
        fewer += [f"{column.label}: {', '.join(short)}"] if short else []
    notes = [f"{MISSING} no runs. {'; '.join(missing)}."] if missing else []
    return notes + ([f"Fewer than {most} runs. {'; '.join(fewer)}."] if fewer else [])
