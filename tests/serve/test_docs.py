"""The options, statuses and numbers of docs/serving.md are the real ones; `tests/docs` runs its commands."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from datransformer import cli
from datransformer.explore.explain import SHOWN
from datransformer.serve.app import PROBLEMS
from datransformer.serve.explain import SEQUENCES, TOKENS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")


def test_options_statuses_and_numbers_are_the_real_ones() -> None:
    text = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(cli.app, ["serve", "--help"]).output
    for option in {*re.findall(r"`(--[a-z-]+)", PAGE), *re.findall(r"datransformer serve .* (--[a-z-]+)", PAGE)}:
        assert option in text, option
    listed = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE) for number in row.split(",")}
    assert listed == set(PROBLEMS)
    assert f"first {TOKENS} tokens" in PAGE
    assert f"first {SEQUENCES} sentences" in PAGE
    assert f"first {SHOWN} tokens" in PAGE


def test_the_measured_numbers_are_those_of_the_result_file() -> None:
    result = json.loads((DOCS / "results" / "bench_serve_cpu.json").read_text(encoding="utf-8"))
    for server, name in (("batching", "batching"), ("one_by_one", "`--batch 1`")):
        found = result["servers"][server]
        row = (
            f"| {name} | {found['requests']:,} | {found['lost']} | {found['mixed']} "
            f"| {found['requests_per_second']:.0f} | {found['p50_ms']:.0f} ms | {found['p99_ms']:.0f} ms "
            f"| {found['server_cpu_ms_per_request']:.2f} ms |"
        )
        assert row in PAGE, row
    assert f"{result['throughput_ratio']:.1f} times" in PAGE
