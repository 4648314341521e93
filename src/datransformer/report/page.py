"""The demo's report as one HTML page that needs nothing else: no script, no picture file, no network."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.report.figures import nearest_marker, save
from datransformer.train.run import read_json

COLOURS = 8  # as many as the style sheet has
LEVELS = 20  # shades of a heat map
TEXT_HEIGHT = 18

# The colours follow Okabe and Ito, which the colour-blind can tell apart; lines differ in their dashes too.
STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d0d7de;--card:#f6f8fa;--heat:#08519c;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b07700;--c5:#56a0d3;--c6:#6b6b6b;--c7:#7a5195}
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--soft:#9aa5b1;--rule:#30363d;--card:#161b22;
--heat:#79c0ff;--c0:#56b4e9;--c1:#ff8a3d;--c2:#2fc79a;--c3:#e59cc5;--c4:#e6b422;--c5:#8ecbff;--c6:#b0b0b0;--c7:#b79ad6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,sans-serif}
h1{font-size:1.7rem;line-height:1.2}h2{margin-top:2.5rem;font-size:1.25rem}h3{font-size:1rem;margin:1.5rem 0 .3rem}
p,figcaption{max-width:44rem}figcaption,.soft{color:var(--soft);font-size:.9rem}figure{margin:1rem 0}
.scroll{overflow-x:auto}.scroll>svg{min-width:36rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;color:var(--soft);
font-size:.9rem;padding-bottom:.3rem}th,td{padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--rule);
text-align:right;font-weight:400}th:first-child,td:first-child{text-align:left}thead th{font-weight:600}
.results tbody tr:first-child>*{font-weight:600}
.words{text-align:left}img{max-width:100%;height:auto;background:#fff}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:.6rem}
svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font:13px system-ui,sans-serif}
svg .soft{fill:var(--soft);font-size:13px}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.axis{stroke:var(--rule);fill:none}.mark{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.lead{stroke-dasharray:none}
.cells{fill:var(--heat)}.frame{fill:var(--card)}
.tokens{font:.85rem/1.9 ui-monospace,monospace;margin:.4rem 0}
.tokens span{padding:.1rem .3rem;color:var(--soft)}.tokens .query{background:var(--ink);color:var(--paper);
border-radius:.25rem}.tokens .kind0,.tokens .kind1{color:var(--ink);border-radius:.25rem;border:2px solid var(--c1)}
.tokens .kind1{border-color:var(--c0);border-style:dashed}
summary{cursor:pointer;margin:.5rem 0}footer{margin-top:3rem;color:var(--soft);font-size:.85rem}
""" + "".join(
    f".s{number}{{stroke:var(--c{number});stroke-dasharray:{dashes}}}\n"
    for number, dashes in enumerate(("none", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "none", "1 4"))
)


class Series(NamedTuple):
    """A line of a chart: its name and its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def write_demo(out: Path) -> list[Path]:
    """Turn the ``report.json`` in ``out`` into ``report.html`` and the figure ``nearest_marker``; the files."""
    report = read_json(out / "report.json")
    if not report.get("finished"):
        raise InputError(f"{out / 'report.json'}: not the report of a demo that has ended, expected one")
    write_text(out / "report.html", demo_page(report))
    return [out / "report.html", *(save(nearest_marker(report), out / "nearest_marker") if "heads" in report else [])]


def demo_page(report: Mapping[str, Any]) -> str:
    """The whole page, from what `datransformer.experiments.demo.run_demo` has left in ``report.json``."""
    sections = [_introduction(report), _results(report)]
    if "heads" in report:
        sections += [_heads(report), _markers(report), _samples(report)]
    versions = report["versions"]
    made = escape(f"datransformer {versions['datransformer']}, torch {versions['torch']}, Python {versions['python']}")
    footer = f"<footer>Made by {made}, from report.json.</footer>\n"
    return framed("Nearest marker: what distance-aware attention learns", "".join(sections), footer)


def framed(title: str, content: str, footer: str = "") -> str:
    """A whole page around its content, with our style and nothing from elsewhere."""
    policy = f"default-src 'none'; style-src {hash_of(STYLE)}; img-src data:; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{content}</main>
{footer}</body>
</html>
"""


def hash_of(content: str) -> str:
    """A style sheet or script as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _introduction(report: Mapping[str, Any]) -> str:
    task, training = report["task"], report["training"]
    return f"""<h1>Nearest marker: a task that only distance can solve</h1>
<p>Each sequence has {task["length"]} tokens: one query, {task["markers"]} markers of two kinds
({" and ".join(escape(kind) for kind in task["kinds"])}), and fillers, all at random places. The answer is the kind of
the marker nearest to the query. A model that cannot tell distances can only guess the kind that there is more of, and
is right about {_percent(task["chance"], 0)} of the time: that, and not 50&nbsp;%, is chance.</p>
<p>The models differ in their attention and in nothing else. Each was trained from scratch for {training["steps"]:,}
steps of {training["batch_size"]:,} sequences (seed {training["seed"]}), none of which it saw twice, and measured on
{task["rows"]:,} others every {training["evaluate_every"]} steps.</p>
"""


def _results(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(row["label"])}</th><td>{_percent(row["accuracy"])}</td>'
        f"<td>{_step(row['steps_to_95'])}</td><td>{row['seconds']:.1f}</td></tr>\n"
        for row in report["rows"]
    )
    series = [Series(row["label"], **_curve(report["curves"][row["attention"]])) for row in report["rows"]]
    steps = report["training"]["steps"]
    lowest = min((min(line.y) for line in series), default=0.5)
    chart = line_chart(
        series,
        title="Held-out accuracy over training steps",
        x_label="training step",
        y_range=(min(0.5, lowest), 1.0),
        x_from=0,
        mark=report["task"]["chance"],
        mark_label="chance",
        percent=True,
    )
    return f"""<h2>Who learns it, and how fast</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Results">
<table class="results"><caption>Accuracy on held-out sequences after the last of {steps:,} steps, the first evaluation
at 95&nbsp;%, and the seconds that training and evaluation took on one core.</caption>
<thead><tr><th scope="col">attention</th><th scope="col">at the end</th><th scope="col">first at 95&nbsp;%</th>
<th scope="col">seconds</th></tr></thead>
<tbody>
{rows}</tbody></table></div>
<p>“Not reached” means: not within these {steps:,} steps. Sinusoids, too, can tell distances: try
<code>datransformer demo --steps 1500</code>. Without positions no number of steps is enough.</p>
<figure><div class="scroll" tabindex="0" role="region" aria-label="Chart of accuracy">{chart}</div>
<figcaption>Held-out accuracy over training steps.</figcaption></figure>
"""


def _heads(report: Mapping[str, Any]) -> str:
    heads = report["heads"]
    rows = "".join(
        f'<tr><th scope="row">head {head["head"]}</th><td>{_signed(head["weight"])}</td>'
        f"<td>{_signed(head['shift'])}</td><td>{'near' if head['weight'] < 0 else 'far'}</td></tr>\n"
        for head in heads
    )
    top = max(max(head["coefficients"]) for head in heads)
    charts = "".join(
        line_chart(
            [Series("", report["distances"], head["coefficients"])],
            title=f"head {head['head']}: w = {_signed(head['weight'])}, v = {_signed(head['shift'])}",
            x_label="distance",
            y_range=(0.0, max(top, 1.0)),
            mark=1.0,
            size=(240, 170),
            heading=True,
        )
        for head in heads
    )
    return f"""<h2>What the heads have learned</h2>
<p>Distance-aware attention has two numbers more for each head than plain attention, w and v. They make the coefficient
f(w·d;&nbsp;v) = (1&nbsp;+&nbsp;e<sup>v</sup>)&nbsp;/&nbsp;(1&nbsp;+&nbsp;e<sup>v−w·d</sup>) by which a score at the
distance d is multiplied: with w&nbsp;&lt;&nbsp;0 a head prefers what is near, with w&nbsp;&gt;&nbsp;0 what is far.
These are the weights that were best on the held-out sequences, from step {report["looked_at_step"]:,}. Heads are in
the order of w.</p>
<figure><div class="grid">{charts}</div>
<figcaption>f(w·d; v) over the distance d, one chart for each head; the dotted line is 1, no change.</figcaption>
</figure>
<details><summary>The numbers</summary>
<table><caption>w and v of each head, in the order of w.</caption>
<thead><tr><th scope="col">head</th><th scope="col">w</th><th scope="col">v</th><th scope="col">prefers</th></tr>
</thead>
<tbody>
{rows}</tbody></table></details>
"""


def _markers(report: Mapping[str, Any]) -> str:
    chart_rows = [head["by_distance"] for head in report["heads"]]
    chart = heat_map(
        chart_rows,
        title="Mean attention from the query to a marker, by head and distance",
        rows=[_head_name(head) for head in report["heads"]],
        columns=[str(distance) for distance in report["marker_distances"]],
        x_label="distance of the marker from the query",
        cell=(36, 26),
    )
    return f"""<h2>Attention to a marker, by its distance</h2>
<figure><div class="scroll" tabindex="0" role="region" aria-label="Chart of attention by distance">{chart}</div>
<figcaption>How much of its attention the query gives to a marker at a distance, on average over held-out sequences:
one row for each head. {_darkest(chart_rows)}</figcaption></figure>
"""


def _samples(report: Mapping[str, Any]) -> str:
    samples = "".join(_sample(number, sample, report) for number, sample in enumerate(report["samples"], 1))
    return f"""<h2>Inside single sequences</h2>
<p>Held-out sequences as the model sees them. The query is filled, markers are framed. Each chart has one column for
each token and one row for each head, and shows where the query looks.</p>
{samples}"""


def _sample(number: int, sample: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    heads, kinds, query = report["heads"], report["task"]["kinds"], sample["query"]
    words = " ".join(
        f'<span class="{_token_class(place, token, query, kinds)}">{escape(token)}</span>'
        for place, token in enumerate(sample["tokens"])
    )
    chart_rows = [head_map[query] for head_map in sample["maps"]]
    strip = heat_map(
        chart_rows,
        title=f"Attention from the query to each token of sequence {number}, by head",
        rows=[_head_name(head) for head in heads],
        columns=[_initial(place, token, query, kinds) for place, token in enumerate(sample["tokens"])],
        cell=(18, 20),
    )
    maps = "".join(
        heat_map(head_map, title=_head_name(head), cell=(7, 7), heading=True)
        for head, head_map in zip(heads, sample["maps"], strict=True)
    )
    legend = escape(", ".join(["Q: query", *(f"{kind[:1].upper()}: {kind}" for kind in kinds), "·: filler"]))
    verdict = "right" if sample["prediction"] == sample["label"] else f"wrong: it is {escape(sample['label'])}"
    return f"""<section aria-label="Sequence {number}">
<h3>Sequence {number}: the model says {escape(sample["prediction"])} ({_percent(sample["probability"])}), which is
{verdict}</h3>
<p class="tokens">{words}</p>
<figure><div class="scroll" tabindex="0" role="region" aria-label="Attention in sequence {number}">{strip}</div>
<figcaption>{legend}. {_darkest(chart_rows)}</figcaption>
</figure>
<details><summary>All attention of sequence {number}, every token to every token</summary>
<div class="grid">{maps}</div>
<p class="soft">Rows are the tokens that look, columns those that are looked at. Each map has its own scale.</p>
</details>
</section>
"""


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_range: tuple[float, float],
    x_from: float | None = None,
    mark: float | None = None,
    mark_label: str = "",
    percent: bool = False,
    size: tuple[int, int] = (760, 360),
    heading: bool = False,
) -> str:
    """Lines as an SVG element, their names at their right ends, moved apart where they would overlap.

    Args:
        series: The lines; a name that is empty is not shown.
        title: Read out by screen readers, and shown if ``heading``.
        x_label: Name of the x axis.
        y_range: Lowest and highest value of the y axis.
        x_from: Where the x axis starts; None: at the first point.
        mark: A value to draw a dotted line at.
        mark_label: Its name.
        percent: Whether y values are shares.
        size: Width and height.
        heading: Whether to show the title.
    """
    width, height = size
    named = any(line.label for line in series)
    left, right = 48, width - (26 + _text_width(max((line.label for line in series), key=len)) if named else 12)
    top, bottom = (28 if heading else 12), height - 44
    first = min(line.x[0] for line in series) if x_from is None else x_from
    last = max(line.x[-1] for line in series)
    ticks = _ticks(first, last, 6 if width > 300 else 4) if last > first else [first]
    last = max(last, first + 1e-9)
    low, high = y_range

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * (x - first) / (last - first),
            bottom - (bottom - top) * (min(max(y, low), high) - low) / (high - low),
        )

    parts = []
    if heading:
        parts.append(f'<text x="0" y="16">{escape(title)}</text>')
    for tick in _ticks(low, high, 5 if height > 200 else 3):
        y = place(first, tick)[1]
        shown = _percent(tick, 0) if percent else f"{tick:g}"
        parts.append(f'<path class="axis" d="M{left} {y:.1f}H{right}"/>')
        parts.append(f'<text class="soft end" x="{left - 6}" y="{y + 4:.1f}">{shown}</text>')
    for tick in ticks:
        x = place(tick, low)[0]
        parts.append(f'<text class="soft middle" x="{x:.1f}" y="{bottom + 17}">{tick:g}</text>')
    parts.append(f'<text class="soft middle" x="{(left + right) / 2:.1f}" y="{height - 6}">{escape(x_label)}</text>')
    if mark is not None:
        y = place(first, mark)[1]
        parts.append(f'<path class="mark" d="M{left} {y:.1f}H{right}"/>')
        if mark_label:
            parts.append(f'<text class="soft" x="{left + 4}" y="{y - 5:.1f}">{escape(mark_label)}</text>')
    ends = [place(line.x[-1], line.y[-1])[1] for line in series]
    for number, (line, end, label_y) in enumerate(zip(series, ends, _spread(ends, top, bottom), strict=True)):
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in zip(line.x, line.y, strict=True))
        style = f"line s{number % COLOURS}"
        if len(line.x) == 1:  # which has no line to be seen
            x, y = place(line.x[0], line.y[0])
            parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(f'<polyline class="{style}" points="{points}"><title>{escape(line.label)}</title></polyline>')
        if line.label:
            parts.append(f'<path class="{style} lead" d="M{right} {end:.1f}L{right + 18} {label_y:.1f}"/>')
            parts.append(f'<text x="{right + 22}" y="{label_y + 4:.1f}">{escape(line.label)}</text>')
    return _svg(title, width, height, parts)


def heat_map(
    values: Sequence[Sequence[float]],
    *,
    title: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    x_label: str = "",
    cell: tuple[int, int] = (20, 20),
    heading: bool = False,
) -> str:
    """A grid of values of at least 0 as an SVG element, the more the denser.

    Cells of the same shade are one path, which keeps a page with dozens of maps small.

    Args:
        values: One sequence for each row.
        title: Read out by screen readers, and shown if ``heading``.
        rows: Names of the rows.
        columns: Names of the columns.
        x_label: What the columns are.
        cell: Width and height of a cell.
        heading: Whether to show the title.
    """
    wide, high = cell
    left = 8 + _text_width(max(rows, key=len)) if rows else 0
    top = (24 if heading else 0) + (TEXT_HEIGHT if columns else 0)
    width, height = len(values[0]) * wide, len(values) * high
    largest = max(map(max, values)) or 1.0
    shades: dict[int, list[str]] = {}
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            shade = round(LEVELS * min(max(value / largest, 0.0), 1.0))
            path = f"M{left + column * wide} {top + row * high}h{wide}v{high}h-{wide}z"
            shades.setdefault(shade, []).append(path)
    parts = [f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}"/>']
    if heading:
        parts.append(f'<text x="0" y="16">{escape(title)}</text>')
    for shade, paths in sorted(shades.items()):
        if shade:
            parts.append(f'<path class="cells" fill-opacity="{shade / LEVELS:g}" d="{"".join(paths)}"/>')
    for row, name in enumerate(rows):
        y = top + (row + 0.5) * high + 4
        parts.append(f'<text class="end" x="{left - 8}" y="{y:g}">{escape(name)}</text>')
    for column, name in enumerate(columns):
        x = left + (column + 0.5) * wide
        parts.append(f'<text class="soft middle" x="{x:g}" y="{top - 5}">{escape(name)}</text>')
    below = 22 if x_label else 0
    if x_label:
        x, y = left + width / 2, top + height + 17
        parts.append(f'<text class="soft middle" x="{x:g}" y="{y}">{escape(x_label)}</text>')
    return _svg(
        f"{title}. {_darkest(values)}",
        max(left + width, _text_width(title) if heading else 0),
        top + height + below,
        parts,
    )


def _darkest(values: Sequence[Sequence[float]]) -> str:
    return f"The strongest colour is {max(map(max, values)):.2f}."


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{name}"><title>{name}</title>'
        f"{''.join(parts)}</svg>\n"
    )


def _curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {"x": curve["steps"], "y": curve["accuracy"]}


def _ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers between two."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights near the wanted ones, at least a line of text apart, in the same order."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    lowest = top - TEXT_HEIGHT
    for index in order:
        placed[index] = lowest = max(wanted[index], lowest + TEXT_HEIGHT)
    limit = bottom
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - TEXT_HEIGHT
    return placed


def _text_width(text: str) -> int:
    """Enough room for a text of the charts' size, whatever the font."""
    return 2 + 15 * len(text) // 2


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\u00a0%"


def _step(step: int | None) -> str:
    return "not reached" if step is None else f"step {step:,}"


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def _head_name(head: Mapping[str, Any]) -> str:
    return f"head {head['head']}, w = {_signed(head['weight'])}"


def _token_class(place: int, token: str, query: int, kinds: Sequence[str]) -> str:
    if place == query:
        return "query"
    return f"kind{kinds.index(token)}" if token in kinds else "filler"


def _initial(place: int, token: str, query: int, kinds: Sequence[str]) -> str:
    if place == query:
        return "Q"
    return token[:1].upper() if token in kinds else "·"
