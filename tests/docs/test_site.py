"""The site builds without a warning, loads nothing from elsewhere, and its numbers are those of the result files."""

import importlib
import json
import math
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
    "object": "data",
    "use": "href",
}
FOREIGN = re.compile(r"(?:https?:)?//")
PACKAGES = ("datransformer", "datransformer.hf")  # those with an __all__


class Page(HTMLParser):
    """What a page loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        self.loaded.append(values.get(LOADED.get(tag, "")) or "")


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install .[docs]")
def test_the_site_builds_and_stands_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

    pages = {path: Page(path.read_text(encoding="utf-8")) for path in (tmp_path / "site").rglob("*.html")}
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert written <= {path.relative_to(tmp_path / "site") for path in pages}
    for path, page in pages.items():
        assert not [address for address in page.loaded if FOREIGN.match(address)], path
        assert not re.findall(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", path.read_text(encoding="utf-8")), path
    for path in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", path.read_text(encoding="utf-8")), path

    reference = set().union(*(page.anchors for path, page in pages.items() if path.parent.name == "api"))
    for package in PACKAGES:
        names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
        assert names <= reference, sorted(names - reference)


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entry: Any) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        return set().union(*map(pages, entry.values() if isinstance(entry, dict) else entry))

    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages(config["nav"]) == written


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_errors_of_the_kernel_are_those_of_the_result_file() -> None:
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    rows = read("reference_orders_h200")["rows"]
    for dtype, name in (("torch.float32", "fp32"), ("torch.float16", "fp16"), ("torch.bfloat16", "bf16")):
        chosen = [row for row in rows if row["dtype"] == dtype]
        typical = [math.sqrt(statistics.fmean(error**2 for error in row["reference"])) for row in chosen]
        ratio = statistics.median(row["kernel"] / size for row, size in zip(chosen, typical, strict=True) if size)
        share = max(
            row["kernel"] / (2 * size + row["floor"])
            for row, size in zip(chosen, typical, strict=True)
            if 2 * size + row["floor"]
        )
        assert share <= 1
        assert f"| {name} | {len(chosen)} | {ratio:.2f} | {share:.0%} |".replace("%", " %") in page, name


def test_the_times_of_the_kernel_are_those_of_the_result_files() -> None:
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    shown = 0
    for name in ("bench_attention_h200", "bench_attention_cpu"):
        for case in read(name)["cases"]:
            if f"| {case['name']} |" in page:
                cells = re.findall(rf"^\| {re.escape(case['name'])} \| (.*) \|$", page, flags=re.MULTILINE)[0]
                assert cells in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
                shown += 1
    assert shown == 5


def test_the_scaling_is_that_of_the_result_file() -> None:
    from datransformer.experiments.bench_scaling import scaling_table

    page, result = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), read("bench_scaling_cpu")
    assert "\n".join(scaling_table(result)) in page
    one, two = (row["turns"] for row in result["rows"])
    ratios = [second / first for first, second in zip(one, two, strict=True)]
    assert f"from {min(ratios):.2f} to {max(ratios):.2f}" in page
    for row in result["batching"]:
        assert f"| {row['processes']} | {row['seconds_per_batch'] * 1000:.1f} |" in page
    alone = read("bench_train_h200")["training"]
    assert f"{alone['rows']['ours_300']['tokens_per_second']:,} tokens/s" in page
    assert f"batches of {alone['batch_size']} texts of {alone['mean_tokens']:.0f} tokens" in page
    largest = read("bench_growth_cpu")["growth"]["impressions"][-1]
    assert f"{largest['per_cpu_second']:,} impressions/s on one core" in page
