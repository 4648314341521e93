"""A run in itself, as HTML: its metrics, its training curves, the w and v of its heads."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from datransformer.report.page import Series, line_chart
from datransformer.train.run import METRICS, Run, learned_distances

POINTS = 400  # of a curve: more are not seen
CHART = (520, 280)


def about_run(run: Run, name: str) -> str:
    """A section on what came out of training, and how."""
    config = run.config
    facts = [
        f"task {config.task}",
        f"attention {config.model.attention}",
        f"{config.model.layers} × {config.model.heads} heads",
        f"{run.result.get('parameters', 0):,} parameters",
        f"best at step {run.result.get('best_step', 0):,} of {run.result.get('steps', 0):,}",
    ]
    return (
        f"<h2>About {escape(name)}</h2><p>{escape(', '.join(facts))}.</p>"
        f"{_metrics(run.result.get('metrics', {}))}"
        f'<div class="charts">{_curves(run)}{_distances(run)}</div>{_table(run)}'
    )


def _metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(split)}</th><td>{escape(name)}</td><td>{value:.4g}</td></tr>'
        for split, values in metrics.items()
        for name, value in values.items()
    )
    head = '<tr><th scope="col">split</th><th scope="col">metric</th><th scope="col">value</th></tr>'
    return f"<table><caption>Metrics</caption><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""


def _curves(run: Run) -> str:
    """Loss, and each dev metric, over steps."""
    series: dict[str, tuple[list[float], list[float]]] = {"training loss": ([], [])}
    path = run.folder / METRICS
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        record = json.loads(line)
        values = {"training loss": record.get("loss")} | {
            f"dev {name}": value for name, value in record.get("dev", {}).items()
        }
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                steps, numbers = series.setdefault(name, ([], []))
                steps.append(record["step"])
                numbers.append(value)
    return "".join(_chart(name, "step", [Series("", *_thin(*points))]) for name, points in series.items() if points[0])


def _thin(steps: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    every = -(-len(steps) // POINTS)
    return steps[::every], values[::every]


def _chart(title: str, x_label: str, series: Sequence[Series]) -> str:
    values = [value for line in series for value in line.y]
    low, high = min(0.0, *values), max(0.0, *values)
    y_range = (low, high if high > low else 1.0)
    chart = line_chart(series, title=title, x_label=x_label, y_range=y_range, mark=0.0, size=CHART, heading=True)
    return f"<figure>{chart}</figure>"


def _distances(run: Run) -> str:
    """The sorted w and v of each layer, as the paper's figures have them."""
    learned = learned_distances(run.model)
    return "".join(
        _chart(
            f"{letter} of the heads, sorted",
            "rank",
            [
                Series(_place(name), range(1, len(values[key]) + 1), sorted(values[key]))
                for name, values in learned.items()
            ],
        )
        for letter, key in (("w", "distance_weight"), ("v", "distance_shift"))
        if learned
    )


def _table(run: Run) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(_place(name))}, head {head}</th><td>{w:+.3f}</td><td>{v:+.3f}</td>'
        f"<td>{'near' if w < 0 else 'far'}</td></tr>"
        for name, values in learned_distances(run.model).items()
        for head, (w, v) in enumerate(zip(values["distance_weight"], values["distance_shift"], strict=True), 1)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("head", "w", "v", "looks"))
    if not rows:
        return '<p class="soft">The heads of this attention have no w and no v.</p>'
    return (
        "<details><summary>w and v of each head</summary><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _place(name: str) -> str:
    """``text.sequence.encoder.layers.0.attention`` as a reader says it."""
    level, layer = name.split(".")[0], next(part for part in name.split(".") if part.isdigit())
    return f"{'words' if level == 'text' else level}, layer {int(layer) + 1}"
