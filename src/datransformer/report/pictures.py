"""The pictures of the page of a reproduction: Figures 3 to 8 of the paper, from the runs here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.runs import Record
from datransformer.experiments.studies import STUDIES, TABLES, VARIANTS
from datransformer.report.comparisons import OTHERS, VANILLA, lead_over, printed_lead
from datransformer.report.figures import OKABE_ITO, save_small
from datransformer.report.records import Results
from datransformer.report.statistics import Floats, Summary, summarise
from datransformer.report.tables import Column, columns_of
from datransformer.report.verdicts import level_name

OURS_COLOUR, OTHERS_COLOUR = OKABE_ITO[0], OKABE_ITO[3]
TABLE_OURS = {"mappings": "learnable sigmoid (DA-Transformer)", "adjustments": "early multiply (DA-Transformer)"}
DEVIATION = "standard deviation over runs"
PANELS = 4  # heat maps in a row
TitledMap = tuple[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Picture:
    """A picture, and what a page says of it, which takes no drawing.

    Args:
        name: The file without its ending.
        alt: What it shows, for who cannot see it.
        caption: What stands below it.
        draw: Draws it.
    """

    name: str
    alt: str
    caption: str
    draw: Callable[[], Figure]


def label_of(variant: str, table: str) -> str:
    """What a table calls a variant; ours by the part that the others exchange."""
    return TABLE_OURS.get(table, VARIANTS[variant].label) if variant == OURS else VARIANTS[variant].label


# By table, the figure and its studies.
BARS = {
    "methods": (3, ("amazon_rating",)),
    "mappings": (4, ("ag", "amazon", "mind")),
    "adjustments": (5, ("ag", "amazon", "mind")),
}
HEADS = {"ag": 6, "mind": 7}
MAPPED = "ag"


def write_pictures(results: Results, folder: Path) -> list[Path]:
    """Write the pictures of all studies into a folder, which is made where there are any; the files."""
    files = []
    for picture in lead_pictures(results):
        folder.mkdir(parents=True, exist_ok=True)
        files.append(save_small(picture.draw(), folder / picture.name))
    for study in results.studies:
        bars = (picture for table in BARS for picture in bar_pictures(results, study, table))
        for picture in (*bars, *head_pictures(results, study)):
            folder.mkdir(parents=True, exist_ok=True)
            files.append(save_small(picture.draw(), folder / picture.name))
    return files


@dataclass(frozen=True)
class Mark:
    """A lead in points, where its interval ends, and the paper's, as far as there are any."""

    gain: float
    interval: tuple[float, float] | None
    paper: float | None


def lead_pictures(results: Results) -> list[Picture]:
    """Ours against the best of the others, and against the plain Transformer, on all data whose scores are shares."""
    panels: dict[str, dict[str, Mark]] = {}
    for title, rivals in (("the best of the paper's other methods", OTHERS), (METHODS[VANILLA], (VANILLA,))):
        marks = {}
        for study in results.studies:
            column = columns_of(STUDIES[study])[0]
            lead = lead_over(results, study, column, rivals)
            if column.percent and study != "probe" and lead is not None:
                ends = None if lead.interval is None else (100 * lead.interval[0], 100 * lead.interval[1])
                paper = printed_lead(study, column, rivals)
                marks[STUDIES[study].title] = Mark(100 * lead.gain, ends, None if paper is None else 100 * paper)
        panels[title] = marks
    tested = any(mark.interval is not None for marks in panels.values() for mark in marks.values())
    if len(set(map(len, panels.values()))) > 1 or not tested:
        return []
    told = "; ".join(
        f"over {title}: {', '.join(f'{name} {mark.gain:+.2f}' for name, mark in marks.items())}"
        for title, marks in panels.items()
    )
    return [
        Picture(
            "leads",
            f"Leads of DA-Transformer in points, {told}",
            "Leads of DA-Transformer in points of the first metric, and their 95 % intervals; right of 0 it is ahead. "
            "Left they are wider, since the best is picked after the runs. Diamonds are the leads that the paper "
            "prints for its own data."
            + (" What is not measured in points is in the table alone." if len(marks) < len(results.studies) else ""),
            partial(draw_leads, panels),
        )
    ]


def draw_leads(panels: Mapping[str, Mapping[str, Mark]]) -> Figure:
    """A panel a rival, a row a data set: the lead with its interval, and the paper's."""
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(9, 1.2 + 0.32 * rows), layout="constrained")
    for axes, (title, marks) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for row, mark in enumerate(marks.values()):
            if mark.interval is not None:
                axes.plot(mark.interval, [row, row], color=OURS_COLOUR, linewidth=2)
        axes.scatter([mark.gain for mark in marks.values()], range(rows), color=OURS_COLOUR, zorder=3, label="here")
        papers = [(row, mark.paper) for row, mark in enumerate(marks.values()) if mark.paper is not None]
        axes.scatter(
            [paper for _, paper in papers], [row for row, _ in papers],
            marker="D", facecolors="white", edgecolors="black", zorder=4, label="in the paper",
        )  # fmt: skip
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(rows), list(marks))
        axes.set_title(f"lead over {title}", fontsize=10, parse_math=False)
        axes.set_xlabel("points")
        axes.grid(axis="x", color="lightgrey", linewidth=0.5)
        axes.set_axisbelow(True)
    figure.axes[0].invert_yaxis()  # the first on top; the other panels share the axis
    figure.axes[-1].legend(frameon=False, fontsize=8)
    return figure


def head_pictures(results: Results, study: str) -> list[Picture]:
    """Figures 6, 7 and 8, where they are of this study and it has the runs."""
    learned = [_learned(results, study)] if study in HEADS and results.learned(study, "distance_weight") else []
    return learned + (_maps(results, study) if study == MAPPED else [])


def bar_pictures(results: Results, study: str, table: str) -> list[Picture]:
    """Figure 3, 4 or 5, where it is of this study and it has the runs."""
    number, studies = BARS[table]
    columns = columns_of(STUDIES[study])
    shown = [name for name in TABLES[table] if VARIANTS[name].in_paper and results.runs(study, name)]
    if study not in studies or OURS not in shown or len(shown) < 2:
        return []
    bars = {
        column: {
            label_of(name, table): summarise(list(results.scores(study, name, column.name).values())) for name in shown
        }
        for column in columns
    }
    names = ", ".join(column.label for column in columns)
    better = "more" if columns[0].higher_is_better else "less"
    means = "; ".join(
        f"{column.label}: " + ", ".join(f"{label} {column.shown(one.mean)}" for label, one in summaries.items())
        for column, summaries in bars.items()
    )
    picture = Picture(
        f"figure_{number}_{study}",
        f"Bars of {STUDIES[study].title}. {means}",
        f"Figure {number}, {STUDIES[study].title}: {names}, {better} is better. Bars are means over runs, error bars "
        f"± one {DEVIATION}. Where an axis does not start at 0, it says so.",
        partial(draw_bars, bars, label_of(OURS, table)),
    )
    return [picture]


def draw_bars(bars: Mapping[Column, Mapping[str, Summary]], ours: str) -> Figure:
    """A panel a metric, a bar a method, ours in another colour."""
    rows = max(map(len, bars.values()))
    across = min(len(bars), 2)
    down = math.ceil(len(bars) / across)
    figure = Figure(figsize=(9, down * (0.9 + 0.3 * rows)), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False).flat
    for axes, (column, summaries) in zip(panels, bars.items(), strict=True):
        scale = 100 if column.percent else 1
        means = [summary.mean * scale for summary in summaries.values()]
        errors = [(summary.deviation or 0) * scale for summary in summaries.values()]
        colours = [OURS_COLOUR if label == ours else OTHERS_COLOUR for label in summaries]
        axes.barh(list(summaries), means, xerr=errors, color=colours, ecolor="black", capsize=3)
        start, end = axis_ends(means, errors)
        axes.set_xlim(start, end)
        unit = ", %" if column.percent else ""
        told = f" (axis starts at {start:g}, not at 0)" if start else ""
        axes.set_xlabel(f"{column.label}{unit}{told}")
        axes.grid(axis="x", color="lightgrey", linewidth=0.5)
        axes.set_axisbelow(True)
    figure.axes[0].invert_yaxis()  # the first on top; the other panels share the axis
    return figure


def axis_ends(means: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Where an axis starts so that differences can be seen, at 0 if they are large anyway or at a round number."""
    lowest = min(mean - error for mean, error in zip(means, errors, strict=True))
    highest = max(mean + error for mean, error in zip(means, errors, strict=True))
    spread = highest - lowest
    start = 0.0
    if 0 < spread < 0.3 * highest:
        step = float(10 ** math.floor(math.log10(spread)))
        start = max(0.0, round(math.floor((lowest - 0.3 * spread) / step) * step, 6))
    return start, highest + 0.04 * (highest - start)


def _learned(results: Results, study: str) -> Picture:
    weights, shifts = (results.learned(study, name) for name in ("distance_weight", "distance_shift"))
    panels = {}
    for level in weights:
        for sign, name, values in (("w", "distance_weight", weights), ("v", "distance_shift", shifts)):
            start = sorted(results.started(study, name, values[level].shape[1]))
            panels[f"{sign}, {level_name(level)}"] = (np.sort(values[level], axis=1), start)
    text = "; ".join(
        f"{title} from {values.mean(axis=0)[0]:+.2f} to {values.mean(axis=0)[-1]:+.2f}"
        for title, (values, _) in panels.items()
    )
    runs = len(next(iter(weights.values())))
    return Picture(
        f"figure_{HEADS[study]}_{study}",
        f"Learned w and v of {STUDIES[study].title}, heads sorted. {text}",
        f"Figure {HEADS[study]}, {STUDIES[study].title}: w and v of the heads, sorted in each run, then averaged over "
        f"runs ({runs}); blue is below 0. The band is ± one {DEVIATION}; the dotted line is where training starts.",
        partial(draw_heads, panels),
    )


def draw_heads(panels: Mapping[str, tuple[Floats, Sequence[float]]]) -> Figure:
    """A panel for w and one for v at each level: values [runs, heads], sorted, and where they start."""
    figure = Figure(figsize=(9, 1.4 * len(panels)), layout="constrained")
    for axes, (title, (values, start)) in zip(
        figure.subplots(len(panels) // 2, 2, squeeze=False).flat, panels.items(), strict=True
    ):
        heads = np.arange(1, values.shape[1] + 1)
        mean = values.mean(axis=0)
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
        colours = [OKABE_ITO[2] if number < 0 else OURS_COLOUR for number in mean]
        axes.fill_between(heads, mean - spread, mean + spread, color="lightgrey")
        axes.plot(heads, start, color="black", linestyle=":", linewidth=1)
        axes.scatter(heads, mean, c=colours, s=16, zorder=3)
        axes.axhline(0, color="grey", linewidth=0.5)
        axes.set_xlabel("head, sorted")
        axes.set_title(title, fontsize=10, parse_math=False)
    return figure


def _maps(results: Results, study: str) -> list[Picture]:
    """The same sentence under vanilla and ours, where both were kept, with one scale of colours."""
    records = {
        variant: record
        for variant in ("vanilla", OURS)
        for record in results.runs(study, variant)[:1]
        if record.get("maps", {}).get("levels")
    }
    if len(records) < 2 or records["vanilla"]["maps"]["tokens"] != records[OURS]["maps"]["tokens"]:
        return []
    words = records[OURS]["maps"]["tokens"]
    maps = {variant: _titled_maps(record) for variant, record in records.items()}
    top = max(0.0, *(float(np.max(weights)) for heads in maps.values() for _, weights in heads))
    return [
        Picture(
            f"figure_8_{study}_{variant}",
            f"Heat maps of the attention of {VARIANTS[variant].label}, {len(heads)} heads, in: {' '.join(words)}",
            f"Figure 8, {VARIANTS[variant].label}: the attention of every head in a test sentence, a row a query, a "
            f"column a key, in the run with seed {records[variant]['seed']}. Dark is much, on one scale for both "
            "methods, on which colour goes with the root of the weight."
            + (" Heads are sorted by w." if variant == OURS else ""),
            partial(draw_maps, heads, words, top),
        )
        for variant, heads in maps.items()
    ]


def _titled_maps(record: Record) -> list[TitledMap]:
    """The maps of the first level, words, by w where the heads have one."""
    level, heads = next(iter(record["maps"]["levels"].items()))
    distances = record.get("distances", {}).get(level)
    if distances is None:
        return [(f"head {number}", weights) for number, weights in enumerate(heads, 1)]
    known = sorted(zip(distances["distance_weight"], distances["distance_shift"], heads, strict=True))
    return [(f"w = {w:+.2f}, v = {v:+.2f}", weights) for w, v, weights in known]


def draw_maps(maps: Sequence[TitledMap], words: Sequence[str], top: float) -> Figure:
    """Heat maps with their titles, `PANELS` in a row; words stand at the left and at the bottom."""
    across = min(PANELS, len(maps))
    down = math.ceil(len(maps) / across)
    figure = Figure(figsize=(2.1 * across + 1, 2.1 * down + 0.8), layout="constrained")
    panels: list[Axes] = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    norm = PowerNorm(0.5, vmin=0, vmax=top)
    for axes, (title, weights) in zip(panels, maps, strict=False):
        image = axes.imshow(weights, cmap="Blues", norm=norm)
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set_xticks(range(len(words)), words, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(words)), words, fontsize=7, parse_math=False)
        axes.tick_params(length=0)
    for axes in panels[len(maps) :]:
        axes.remove()
    figure.colorbar(image, ax=panels[: len(maps)], shrink=0.4, label="weight")
    return figure
