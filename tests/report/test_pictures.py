"""The pictures of the page, by what they show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.studies import LINEAR, STUDIES, TABLES
from datransformer.report.figures import save_small
from datransformer.report.pictures import (
    axis_ends,
    bar_pictures,
    draw_maps,
    head_pictures,
    lead_pictures,
    write_pictures,
)
from datransformer.report.records import Results

LEVEL = "text.sequence.encoder.layers.0.attention"
NEWS = "user.encoder.layers.0.attention"


def make_record(study: str, variant: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    metrics = dict.fromkeys(STUDIES[study].metrics, score)
    return {"study": study, "variant": variant, "seed": seed, "metrics": {"dev": metrics, "test": metrics}, **more}


def make_results(study: str, variants: tuple[str, ...]) -> Results:
    """Means of 0.80, 0.81, …, each with a standard deviation of 0.01."""
    return Results(
        make_record(study, variant, seed, 0.8 + 0.01 * place + 0.01 * (seed - 1))
        for place, variant in enumerate(variants) for seed in range(3)
    )  # fmt: skip


def bars_of(figure: Figure) -> Iterator[dict[str, float]]:
    for axes in figure.axes:
        widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        yield dict(zip(axes_labels(figure), widths, strict=True))


def axes_labels(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


@pytest.mark.parametrize(
    ("study", "table", "name", "ours", "scale"),
    [
        ("amazon_rating", "methods", "figure_3_amazon_rating", METHODS[OURS], 1),
        ("ag", "mappings", "figure_4_ag", "learnable sigmoid (DA-Transformer)", 100),
        ("mind", "adjustments", "figure_5_mind", "early multiply (DA-Transformer)", 100),
    ],
)
def test_bars_are_means_with_their_deviations(study: str, table: str, name: str, ours: str, scale: int) -> None:
    variants = tuple(variant for variant in TABLES[table] if variant != LINEAR)
    (picture,) = bar_pictures(make_results(study, variants), study, table)
    shown = [variant for variant in variants if table != "methods" or variant in METHODS]
    assert picture.name == name
    assert "± one standard deviation over runs" in picture.caption
    assert f"{ours} {(0.8 + 0.01 * shown.index(OURS)) * scale:.{3 if scale == 1 else 2}f}" in picture.alt
    figure = picture.draw()
    assert len(figure.axes) == len(STUDIES[study].metrics)
    for axes, bars in zip(figure.axes, bars_of(figure), strict=True):
        assert list(bars) == list(dict.fromkeys(bars))
        assert list(bars.values()) == pytest.approx([(0.8 + 0.01 * place) * scale for place in range(len(shown))])
        (errors,) = (np.asarray(one.get_segments()) for one in axes.collections if isinstance(one, LineCollection))
        assert (errors[:, 1, 0] - errors[:, 0, 0]).tolist() == pytest.approx([0.02 * scale] * len(shown))
        start = axes.get_xlim()[0]
        assert f"(axis starts at {start:g}, not at 0)" in axes.get_xlabel()
        colours = {bar.get_facecolor() for bar in axes.patches}
        assert len(colours) == 2
        assert [bar.get_facecolor() for bar in axes.patches].count(axes.patches[shown.index(OURS)].get_facecolor()) == 1


def test_bars_only_where_the_paper_has_them_and_the_runs_are_there() -> None:
    assert not bar_pictures(make_results("ag", tuple(METHODS)), "ag", "methods")
    assert not bar_pictures(make_results("probe", TABLES["mappings"]), "probe", "mappings")
    assert not bar_pictures(make_results("ag", (OURS,)), "ag", "mappings")
    assert not bar_pictures(make_results("ag", TABLES["mappings"][:-1]), "ag", "mappings")


@pytest.mark.parametrize(
    ("means", "errors", "start"),
    [([93.0, 93.5], [0.1, 0.1], 92.6), ([20.0, 90.0], [0, 0], 0), ([5.0, 5.0], [0, 0], 0), ([0.91, 0.95], [0, 0], 0.89)]
)  # fmt: skip
def test_an_axis_starts_at_0_unless_differences_would_be_lost(
    means: list[float], errors: list[float], start: float
) -> None:
    found, end = axis_ends(means, errors)
    assert found == pytest.approx(start)
    assert found < min(means)
    assert end > max(means) + max(errors)


def test_an_axis_that_starts_at_0_says_nothing() -> None:
    results = Results(make_record("ag", name, 0, score) for name, score in ((OURS, 0.9), ("mapping_clip", 0.2)))
    (picture,) = bar_pictures(results, "ag", "mappings")
    assert [axes.get_xlabel() for axes in picture.draw().axes] == ["Accuracy, %", "Macro-F, %"]


def test_heads_are_sorted_in_each_run_and_then_averaged() -> None:
    runs = [{"distance_weight": [0.5, -1.0, 0.1], "distance_shift": [3.0, 1.0, 2.0]},
            {"distance_weight": [-2.0, 0.7, 0.2], "distance_shift": [1.0, 2.0, 3.0]}]  # fmt: skip
    results = Results(
        make_record("mind", OURS, seed, 0.5, distances={LEVEL: numbers, NEWS: numbers})
        for seed, numbers in enumerate(runs)
    )
    (picture,) = head_pictures(results, "mind")
    assert picture.name == "figure_7_mind"
    assert "± one standard deviation over runs" in picture.caption
    assert "w, words from -1.50 to +0.60" in picture.alt
    figure = picture.draw()
    assert [axes.get_title() for axes in figure.axes] == ["w, words", "v, words", "w, news", "v, news"]
    band, dots = figure.axes[0].collections
    np.testing.assert_allclose(np.asarray(dots.get_offsets()), [[1, -1.5], [2, 0.15], [3, 0.6]])
    corners = np.asarray(band.get_paths()[0].vertices)
    edges = {round(y, 3) for x, y in corners.tolist() if x == 1}
    assert edges == {round(-1.5 - 0.5**0.5, 3), round(-1.5 + 0.5**0.5, 3)}
    assert np.asarray(figure.axes[0].lines[0].get_ydata()).tolist() == [-0.5, 0, 0.5]
    assert not head_pictures(make_results("mind", (OURS,)), "mind")


def maps_of(*heads: list[list[float]], words: list[str]) -> dict[str, Any]:
    return {"tokens": words, "levels": {LEVEL: list(heads)}}


def heat_maps() -> Results:
    first, second = [[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.6, 0.4]]
    distances = {LEVEL: {"distance_weight": [0.5, -0.25], "distance_shift": [0.1, 0.2]}}
    maps = maps_of(first, second, words=["$a", "_b_"])
    return Results([
        make_record("ag", "vanilla", 0, 0.5, maps=maps),
        make_record("ag", OURS, 0, 0.5, maps=maps, distances=distances),
    ])  # fmt: skip


def test_heat_maps_are_sorted_by_w_on_one_scale() -> None:
    vanilla, ours = head_pictures(heat_maps(), "ag")[-2:]
    assert [vanilla.name, ours.name] == ["figure_8_ag_vanilla", "figure_8_ag_distance_aware"]
    assert "sorted by w" in ours.caption
    assert "sorted by w" not in vanilla.caption
    panels = [axes for axes in ours.draw().axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["w = -0.25, v = +0.20", "w = +0.50, v = +0.10"]
    np.testing.assert_allclose(np.asarray(panels[0].images[0].get_array()), [[0.3, 0.7], [0.6, 0.4]])
    others = [axes for axes in vanilla.draw().axes if axes.images]
    assert [axes.get_title() for axes in others] == ["head 1", "head 2"]
    limits = {axes.images[0].get_clim() for axes in (*panels, *others)}
    assert limits == {(0, 0.9)}
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["$a", "_b_"]


def test_heat_maps_without_any_weight_and_of_odd_words_can_be_drawn(tmp_path: Path) -> None:
    records = [
        make_record("ag", name, 0, 0.5, maps=maps_of([[-0.1]], words=[r"$\frac$"])) for name in ("vanilla", OURS)
    ]
    assert len(write_pictures(Results(records), tmp_path)) == 2


def test_no_heat_maps_of_two_sentences_or_of_one_method() -> None:
    results = heat_maps()
    results.runs("ag", OURS)[0]["maps"]["levels"] = {}
    assert [picture.name for picture in head_pictures(results, "ag")] == ["figure_6_ag"]
    results = heat_maps()
    results.runs("ag", OURS)[0]["maps"] = {**results.runs("ag", OURS)[0]["maps"], "tokens": ["other", "words"]}
    assert [picture.name for picture in head_pictures(results, "ag")] == ["figure_6_ag"]


def test_heat_maps_of_many_words_are_small(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(24), (16, 24)).tolist()
    maps = [(f"w = {head}", one) for head, one in enumerate(weights)]
    path = save_small(draw_maps(maps, [f"word{number}" for number in range(24)], 0.5), tmp_path / "maps")
    assert path.stat().st_size < 150_000


def test_a_folder_is_made_for_pictures_alone(tmp_path: Path) -> None:
    files = write_pictures(make_results("amazon_rating", tuple(METHODS)), tmp_path / "images")
    assert files == [tmp_path / "images/figure_3_amazon_rating.png"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert not write_pictures(make_results("probe", tuple(METHODS)), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_panels_that_are_left_over_are_not_shown() -> None:
    figure = draw_maps([("one", [[1.0]])] * 5, ["a"], 1.0)
    assert len([axes for axes in figure.axes if axes.images]) == 5
    assert len(figure.axes) == 6  # and the bar of colours


def test_leads_stand_beside_those_of_the_paper(tmp_path: Path) -> None:
    """Three runs each with a deviation of 0.01: 0.816 points · t of 4 degrees, at 95 % and, of four, at 98.75 %."""
    (picture,) = lead_pictures(make_results("ag", tuple(METHODS)))
    best, plain = picture.draw().axes
    assert [axes.get_title() for axes in (best, plain)] == [
        "lead over the best of the paper's other methods", "lead over Transformer",
    ]  # fmt: skip
    for axes, lead, reach, paper in ((best, 1.0, 0.8165 * 4.3147, 0.37), (plain, 4.0, 0.8165 * 2.7764, 0.71)):
        here, printed = (np.array(collection.get_offsets()).tolist() for collection in axes.collections)
        assert here == [pytest.approx([lead, 0])]
        assert printed == [pytest.approx([paper, 0])]
        assert axes.lines[0].get_xdata() == pytest.approx([lead - reach, lead + reach], abs=0.01)
    assert "over Transformer: AG +4.00" in picture.alt
    assert (tmp_path / "leads.png") in write_pictures(make_results("ag", tuple(METHODS)), tmp_path)
    for results in (make_results("amazon_rating", tuple(METHODS)), make_results("ag", (OURS,)), Results([])):
        assert lead_pictures(results) == []
