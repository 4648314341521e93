"""The paper's illustrations of the mapping, drawn from the code that the models run, and the demo's figure.

``python -m datransformer.report.figures DIRECTORY`` writes the illustrations as PNG and SVG.
"""

import argparse
import io
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from PIL import Image

from datransformer.ops.mapping import distance_coefficients
from datransformer.ops.relative import relative_positions, toeplitz


def learnable_sigmoid_curves(shifts: Iterable[float] = (-2.0, -1.0, 0.0, 1.0, 2.0)) -> Figure:
    """Fig. 1: f(x; v) over the weighted distance x for several v."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shifts = list(shifts)
    weighted = torch.linspace(-8, 8, 321)
    curves = distance_coefficients(weighted, torch.ones(len(shifts)), torch.tensor(shifts), "learnable_sigmoid")
    colours = matplotlib.colormaps["viridis"].resampled(len(shifts) + 1)
    for index, (shift, curve) in enumerate(zip(shifts, curves, strict=True)):
        axes.plot(weighted.tolist(), curve.tolist(), color=colours(index), label=f"v = {shift:g}")
    axes.axhline(1, color="grey", linewidth=0.5)
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_xlabel("weighted distance  w·|i−j|")
    axes.set_ylabel("re-scaled coefficient  f")
    axes.set_title("Looks near  ←  w < 0 │ w > 0  →  looks far", fontsize=10)
    axes.legend(frameon=False)
    return figure


def coefficients_by_distance(length: int = 40) -> Figure:
    """The learnable sigmoid over the distance itself, for heads that look near and heads that look far."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    distances, shifts = torch.arange(length + 1.0), (-1.0, 0.0, 1.0)
    for axes, weights in zip(figure.subplots(1, 2), ((-0.05, -0.2, -1.0), (0.05, 0.2, 1.0)), strict=True):
        for (weight, colour), (shift, style) in itertools.product(
            zip(weights, OKABE_ITO, strict=False), zip(shifts, ("--", "-", ":"), strict=True)
        ):
            (curve,) = distance_coefficients(
                distances, torch.tensor([weight]), torch.tensor([shift]), "learnable_sigmoid"
            )
            label = f"w = {weight:g}, v = {shift:g}"
            axes.plot(distances.tolist(), curve.tolist(), color=colour, linestyle=style, label=label)
        axes.axhline(1, color="grey", linewidth=0.5)
        axes.set_xlabel("distance  |i−j|")
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.24))
    figure.axes[0].set_ylabel("re-scaled coefficient  f")
    return figure


def coefficient_matrices(length: int = 16) -> Figure:
    """Fig. 2: the re-scaled coefficients of every pair of positions for w = ±1 and v = ±1. Dark is promoted."""
    settings = [(1.0, -1.0), (-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
    weight, shift = torch.tensor(settings).unbind(-1)
    distances = relative_positions(length, length, like=weight).abs().float()
    matrices = toeplitz(distance_coefficients(distances, weight, shift, "learnable_sigmoid"), length, length)
    figure = Figure(figsize=(10, 2.8), layout="constrained")
    for axes, matrix, (w, v) in zip(figure.subplots(1, len(settings)), matrices, settings, strict=True):
        image = axes.imshow(matrix.tolist(), cmap="Blues", vmin=0)
        axes.set_title(f"w = {w:g}, v = {v:g}", fontsize=10)
        axes.set_xlabel("key position")
        figure.colorbar(image, ax=axes, shrink=0.7)
    figure.axes[0].set_ylabel("query position")
    return figure


def nearest_marker(report: Mapping[str, Any]) -> Figure:
    """The demo: accuracy over steps, and the heads' attention from the query to a marker, nearest-sighted first."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    curves, heads = figure.subplots(1, 2)
    for row in report["rows"]:
        curve = report["curves"][row["attention"]]
        curves.plot(curve["steps"], curve["accuracy"], label=row["label"])
    curves.axhline(report["task"]["chance"], color="grey", linewidth=0.5)
    curves.set_xlabel("training step")
    curves.set_ylabel("held-out accuracy")
    curves.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    distances = report["marker_distances"]
    image = heads.imshow([head["by_distance"] for head in report["heads"]], aspect="auto", cmap="Blues", vmin=0)
    heads.set_yticks(range(len(report["heads"])), [f"w = {head['weight']:+.2f}" for head in report["heads"]])
    heads.set_xticks(range(0, len(distances), 2), [str(distance) for distance in distances[::2]])
    heads.set_xlabel("distance of the marker from the query")
    heads.set_title("attention to a marker, one row a head", fontsize=10)
    figure.colorbar(image, ax=heads)
    return figure


# Okabe and Ito's colours, which the colour-blind can tell apart; the markers tell them apart in grey too.
OKABE_ITO = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#000000", "#F0E442")
MARKERS = "osD^vPX*"
COLOURS = 256  # as many as a small file can have: enough for the shades of a heat map and of the edges of letters


def attention_growth(result: Mapping[str, Any]) -> Figure:
    """`bench attention`: time and memory of forward and backward over the length, in the series with most lengths."""
    series: dict[str, list[Mapping[str, Any]]] = {}
    for case in result["cases"]:
        series.setdefault(case["series"], []).append(case)
    title, cases = max(series.items(), key=lambda item: len(item[1]))
    cases = sorted(cases, key=lambda case: case["shape"][2])
    lengths = [case["shape"][2] for case in cases]
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = {"ms": "forward and backward, ms", "peak_mib": "peak memory beyond the inputs, MiB"}
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        names = {name: row["label"] for case in cases for name, row in case["rows"].items() if key in row["both"]}
        for name, colour, marker in zip(names, itertools.cycle(OKABE_ITO), itertools.cycle(MARKERS)):
            rows = [(case["shape"][2], case["rows"].get(name, {}).get("both", {}).get(key)) for case in cases]
            points = [(length, value) for length, value in rows if value is not None]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=names[name])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.set_xlabel("length N")
        axes.set_ylabel(label)
        axes.grid(color="lightgrey", linewidth=0.5)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{title} on {result['machine']['device']}", fontsize=10)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "learnable_sigmoid": learnable_sigmoid_curves,
    "coefficients_by_distance": coefficients_by_distance,
    "coefficient_matrices": coefficient_matrices,
}


def save(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``figure`` as ``path`` + .png and .svg; the same figure gives the same bytes every time."""
    path = Path(path)
    png, svg = (path.with_name(path.name + suffix) for suffix in (".png", ".svg"))
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def save_small(figure: Figure, path: Path | str) -> Path:
    """Write ``figure`` as ``path`` + .png of few colours, a third of the bytes; the same each time, as in `save`."""
    path = Path(path)
    file = path.with_name(path.name + ".png")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    return file


def draw_all(directory: Path | str) -> list[Path]:
    """Write every entry of `FIGURES` into ``directory``, which is made if need be; return the files."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    return [path for name, draw in FIGURES.items() for path in save(draw(), directory / name)]


def main() -> None:
    """Draw all figures into the directory named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m datransformer.report.figures", description=__doc__)
    parser.add_argument("directory", type=Path)
    for path in draw_all(parser.parse_args().directory):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
