"""The page of a reproduction as one HTML file: whole, closed, and with nothing in it that a file has smuggled in."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from datransformer.experiments.studies import STUDIES
from datransformer.report.html_page import html_page
from datransformer.report.records import Results
from datransformer.report.results import IMAGES, results_page

NASTY = "<script>alert(1)</script> | <img src=x onerror=y> ![a](b) [c](javascript:d) <details> \" ' & <u>"
VOID = ("meta", "img")
PICTURES = {f"{IMAGES}/leads.png": b"picture"}


class Seen(HTMLParser):
    """Tags and their attributes, each closed where it should be, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def make_results(nasty: str = "made up") -> Results:
    records = [
        {"study": "ag", "variant": variant, "seed": seed, "caveat": nasty, "device": nasty, "wall_seconds": 1.0,
         "metrics": {"dev": {}, "test": dict.fromkeys(STUDIES["ag"].metrics, score + 0.001 * seed)},
         "examples": {"train": 10}, "distances": {}}
        for variant, score in (("vanilla", 0.8), ("xl", 0.85), ("distance_aware", 0.9)) for seed in (0, 1)
    ]  # fmt: skip
    return Results([*records, {"study": "ag", "variant": "rpr", "seed": 0, "failed": nasty}])


def test_tables_marks_and_details_are_as_in_markdown() -> None:
    markdown = results_page(make_results())
    seen = Seen(html_page(markdown, PICTURES))
    names = [name for name, _ in seen.tags]
    assert names.count("table") == len(re.findall(r"^\| ---", markdown, re.MULTILINE)) > 2
    assert names.count("tr") == len(re.findall(r"^\|", markdown, re.MULTILINE)) - names.count("table")
    assert names.count("h2") == len(re.findall("^## ", markdown, re.MULTILINE))
    assert names.count("u") == markdown.count("<u>") > 0
    assert names.count("strong") == markdown.count("**") / 2 > 0
    assert names.count("details") == names.count("summary") == markdown.count("<details>") > 0
    assert "DA-Transformer" in seen.text
    assert ("title", {}) in seen.tags


def test_words_are_to_the_left_and_numbers_are_not() -> None:
    seen = Seen(html_page("# T\n\n| a | b |\n| --- | ---: |\n| c | 1 |\n", {}))
    assert [attrs for name, attrs in seen.tags if name in ("th", "td")] == [
        {"class": "words", "scope": "col"}, {"scope": "col"}, {"class": "words"}, {}
    ]  # fmt: skip


def test_the_policy_allows_our_style_alone_and_nothing_needs_more() -> None:
    page = html_page(results_page(make_results()), PICTURES)
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    attributes = {name for _, attrs in Seen(page).tags for name in attrs}
    assert not attributes & {"style", "href"}
    assert "://" not in page


def test_what_files_say_is_text() -> None:
    seen = Seen(html_page(results_page(make_results(NASTY)), PICTURES))
    assert seen.text.count(NASTY) == 5
    names = [name for name, _ in seen.tags]
    assert names.count("img") == len(PICTURES)
    assert set(names).isdisjoint({"script", "a"})


def test_tags_that_are_not_ours_are_text_even_if_nobody_escaped_them() -> None:
    seen = Seen(html_page("# T\n\n<script>a</script>\n\nb <i onclick=c>d</i> <u>e</u>\n", {}))
    assert "<script>a</script>" in seen.text
    assert "b <i onclick=c>d</i> e" in seen.text


def test_pictures_are_inside() -> None:
    seen = Seen(html_page("# T\n\n![a & *b*](images/x%20y.png)\n", {"images/x%20y.png": b"picture"}))
    (picture,) = [attrs for name, attrs in seen.tags if name == "img"]
    assert picture == {"alt": "a & b", "src": f"data:image/png;base64,{base64.b64encode(b'picture').decode()}"}
