"""docs/results.md is what the records in results/ say."""

import re
from pathlib import Path

from datransformer.report.records import read_results
from datransformer.report.results import results_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
IMAGES = "results_images"


def test_the_published_page_comes_from_the_published_records() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == results_page(read_results(ROOT / "results"), IMAGES), (
        "run: datransformer report results --out docs/results.md"
    )
    drawn = set(re.findall(rf"\]\({IMAGES}/([^)]+)\)", page))
    assert drawn == {path.name for path in (PAGE.parent / IMAGES).iterdir()}
