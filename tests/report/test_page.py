import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from datransformer.data.errors import InputError
from datransformer.report.figures import nearest_marker
from datransformer.report.page import Series, demo_page, heat_map, line_chart, write_demo

HEADS, LENGTH = 3, 5
EVIL = '<script>alert("1")</script>'


def make_report() -> dict[str, Any]:
    """A report as run_demo leaves it, small."""
    return {
        "kind": "datransformer demo",
        "finished": True,
        "task": {
            "rows": 7, "seed": 1, "variant": "nearest", "length": LENGTH, "markers": 2, "kinds": ["red", "blue"],
            "chance": 0.64,
        },
        "training": {"steps": 40, "batch_size": 128, "evaluate_every": 20, "seed": 0},
        "rows": [
            {"attention": "a", "label": "first", "accuracy": 0.97, "steps_to_95": 40, "seconds": 1.5},
            {"attention": "b", "label": "second", "accuracy": 0.61, "steps_to_95": None, "seconds": 2.5},
        ],
        "curves": {
            "a": {"steps": [20, 40], "accuracy": [0.6, 0.97]},
            "b": {"steps": [20, 40], "accuracy": [0.45, 0.61]},
        },
        "looked_at_step": 40,
        "distances": list(range(LENGTH)),
        "marker_distances": [1, 2],
        "heads": [
            {
                "head": head, "weight": head - 1.0, "shift": 0.5, "coefficients": [1.0] * LENGTH,
                "by_distance": [0.1 * head, 0.2],
            }
            for head in range(HEADS)
        ],
        "samples": [
            {
                "tokens": ["red", "query", "filler1", "blue", "filler2"], "query": 1, "label": "red",
                "prediction": "blue", "probability": 0.75,
                "maps": np.full((HEADS, LENGTH, LENGTH), 0.2).tolist(),
            }
        ],
        "versions": {"datransformer": "1", "torch": "2", "python": "3"},
    }  # fmt: skip


class Balance(HTMLParser):
    """Checks that every tag is closed in its turn, and collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    page = demo_page(make_report())
    parser = parse(page)
    for wanted in ("h1", "h2", "caption", "table", "svg", "details", "main"):
        assert wanted in parser.seen
    assert not {"script", "img", "link", "iframe"} & set(parser.seen)
    assert "default-src 'none'" in page
    for forbidden in ("://", "src=", "href=", "<script", "url(", "@import"):
        assert forbidden not in page
    assert re.findall(r"\son\w+=", page) == []


def test_the_page_says_what_the_report_holds() -> None:
    text = " ".join(parse(demo_page(make_report())).text.split())
    for wanted in ("64 %", "97.0 %", "step 40", "not reached", "second", "w = −1.00", "wrong: it is red", "75.0 %"):
        assert wanted in text, wanted


def test_every_svg_is_well_formed_and_named() -> None:
    svgs = re.findall(r"<svg .*?</svg>", demo_page(make_report()), re.DOTALL)
    assert len(svgs) == 1 + HEADS + 1 + 1 + HEADS
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == root.findtext("title") != ""


def test_all_text_from_the_report_is_escaped() -> None:
    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poisoned(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [poisoned(entry) for entry in value]
        return value + EVIL if isinstance(value, str) else value

    report = make_report()
    curves = report.pop("curves")
    report = poisoned(report)
    report["curves"] = {name + EVIL: curve for name, curve in curves.items()}
    page = demo_page(report)
    assert "<script" not in page
    assert "&lt;script&gt;alert(&quot;1&quot;)" in page
    parse(page)


def test_a_report_without_distance_aware_heads_has_the_results_only(tmp_path: Path) -> None:
    report = {name: value for name, value in make_report().items() if name not in ("heads", "samples")}
    parser = parse(demo_page(report))
    assert parser.seen.count("svg") == 1


def test_an_unfinished_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"finished": false}')
    with pytest.raises(InputError, match="not the report of a demo that has ended"):
        write_demo(tmp_path)


def texts(root: ElementTree.Element) -> list[tuple[str, float, float, float]]:
    """Each text of a chart with its left end, its right end and its baseline, for a font of 7.5 a letter at most."""
    placed = []
    for element in root.iter("text"):
        text, style = element.text or "", element.get("class", "")
        width = 7.5 * len(text)
        left = float(element.get("x", "nan")) - (width if "end" in style else width / 2 if "middle" in style else 0)
        placed.append((text, left, left + width, float(element.get("y", "nan"))))
    return placed


@pytest.mark.parametrize("ends", [[1.0] * 6, [0.5] * 6, [0.5, 0.51, 0.52, 1.0, 0.99, 0.75]])
def test_lines_are_drawn_to_scale_and_their_names_do_not_overlap(ends: list[float]) -> None:
    series = [Series(f"attention {number}", [20, 60], [0.5, end]) for number, end in enumerate(ends)]
    root = ElementTree.fromstring(
        line_chart(series, title="t", x_label="x", y_range=(0.5, 1.0), x_from=0, percent=True, size=(500, 300))
    )
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in root.iter("polyline")
    ]
    right, bottom, top = lines[0][1][0], 300 - 44, 12
    for line, end in zip(lines, ends, strict=True):
        assert line[0][0] == pytest.approx(48 + (right - 48) / 3, abs=0.1)  # 20 of 0 … 60
        assert line[1][1] == pytest.approx(bottom - (bottom - top) * (end - 0.5) / 0.5, abs=0.1)
    names = [place for place in texts(root) if place[0].startswith("attention")]
    heights = sorted(place[3] for place in names)
    assert len(names) == 6
    assert np.diff(heights).min() >= 17.9
    for _, left, end, baseline in texts(root):
        assert 0 <= left < end <= 500
        assert 9 <= baseline <= 300


def test_the_ticks_of_a_chart_are_round() -> None:
    root = ElementTree.fromstring(line_chart([Series("", [0, 31], [0, 2])], title="t", x_label="x", y_range=(0, 2.1)))
    assert [text for text, *_ in texts(root)] == ["0", "0.5", "1", "1.5", "2", "0", "10", "20", "30", "x"]


def test_the_cells_of_a_heat_map_are_where_and_as_dense_as_they_should_be() -> None:
    values = [[0.0, 0.1, 0.2], [0.4, 0.0, 0.2]]
    svg = heat_map(values, title="t & u", rows=["near", "far"], columns=["1", "2", "3"], cell=(10, 20))
    root = ElementTree.fromstring(svg)
    frame = root.find("rect")
    assert frame is not None
    left, top = float(frame.get("x", "nan")), float(frame.get("y", "nan"))
    found = np.zeros((2, 3))
    for path in root.iter("path"):
        for x, y in re.findall(r"M(\d+) (\d+)h10v20h-10z", path.get("d", "")):
            found[int((float(y) - top) / 20), int((float(x) - left) / 10)] = float(path.get("fill-opacity", "nan"))
    np.testing.assert_allclose(found, np.array(values) / 0.4)
    assert root.findtext("title") == "t & u. The strongest colour is 0.40."
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert (width, height) == (left + 30, top + 40)
    for text, start, end, baseline in texts(root):
        assert text
        assert 0 <= start < end <= width
        assert 9 <= baseline <= height


def test_a_heat_map_of_nothing_is_empty() -> None:
    assert "path" not in heat_map([[0.0, 0.0]], title="t")


def test_the_figure_shows_the_report() -> None:
    report = make_report()
    figure = nearest_marker(report)
    curves, heads = figure.axes[:2]
    assert np.asarray(curves.lines[0].get_ydata()).tolist() == [0.6, 0.97]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["first", "second"]  # type: ignore[union-attr]
    shown = np.asarray(heads.images[0].get_array())
    np.testing.assert_allclose(shown, [[0.1 * head, 0.2] for head in range(HEADS)])
    assert [tick.get_text() for tick in heads.get_yticklabels()] == ["w = -1.00", "w = +0.00", "w = +1.00"]


def test_a_lone_point_can_be_seen() -> None:
    root = ElementTree.fromstring(line_chart([Series("", [10], [0.5])], title="t", x_label="x", y_range=(0.0, 1.0)))
    svg = "{http://www.w3.org/2000/svg}" if root.tag.startswith("{") else ""
    (dot,) = root.iter(f"{svg}circle")
    assert dot.get("class") == "line s0"
    assert [text.text for text in root.iter(f"{svg}text")].count("10") == 1
