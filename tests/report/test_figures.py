from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from datransformer.report.figures import (
    FIGURES,
    coefficient_matrices,
    coefficients_by_distance,
    draw_all,
    learnable_sigmoid_curves,
    save,
    save_small,
)


def test_curves_show_the_function() -> None:
    axes = learnable_sigmoid_curves(shifts=(-1.0, 2.0)).axes[0]
    for line, shift in zip(axes.lines, (-1.0, 2.0), strict=False):
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        np.testing.assert_allclose(y, (1 + np.exp(shift)) / (1 + np.exp(shift - x)), rtol=1e-5)
        assert y[np.argmin(np.abs(x))] == pytest.approx(1.0)


def test_curves_over_the_distance_show_the_function() -> None:
    for axes in coefficients_by_distance(length=6).axes:
        curves = [line for line in axes.lines if str(line.get_label()).startswith("w")]
        assert len(curves) == 9
        for line in curves:
            w, v = (float(part.split("=")[1]) for part in str(line.get_label()).split(","))
            x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
            assert x.tolist() == list(range(7))
            np.testing.assert_allclose(y, (1 + np.exp(v)) / (1 + np.exp(v - w * x)), rtol=1e-5)


def test_matrices_show_the_function_of_the_distance() -> None:
    figure = coefficient_matrices(length=5)
    images = [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.get_xlabel() == "key position"]
    distances = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    for image, (w, v) in zip(images, [(1, -1), (-1, -1), (1, 1), (-1, 1)], strict=True):
        np.testing.assert_allclose(image, (1 + np.exp(v)) / (1 + np.exp(v - w * distances)), rtol=1e-5)


def test_a_dot_in_the_name_stays(tmp_path: Path) -> None:
    assert [path.name for path in save(learnable_sigmoid_curves(), str(tmp_path / "v0.5"))] == ["v0.5.png", "v0.5.svg"]


def test_files_are_written_and_reproducible(tmp_path: Path) -> None:
    first, second = draw_all(tmp_path / "a" / "b"), draw_all(tmp_path / "c")
    assert [path.name for path in first] == [name + suffix for name in FIGURES for suffix in (".png", ".svg")]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        if one.suffix == ".svg":
            assert ElementTree.parse(one).getroot().tag.endswith("svg")
        else:
            assert one.read_bytes().startswith(b"\x89PNG")


def test_a_small_file_shows_the_same(tmp_path: Path) -> None:
    png, _ = save(coefficient_matrices(), tmp_path / "large")
    small = save_small(coefficient_matrices(), tmp_path / "v0.5")
    assert small.name == "v0.5.png"
    assert small.stat().st_size < png.stat().st_size / 2
    first, second = (np.asarray(Image.open(path).convert("RGB"), dtype=float) for path in (png, small))
    assert first.shape == second.shape
    assert np.abs(first - second).mean() < 1
    assert small.read_bytes() == save_small(coefficient_matrices(), tmp_path / "again").read_bytes()
