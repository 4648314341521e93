"""The commands of docs/serving.md do what it says."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from datransformer import cli
from datransformer.experiments.bench_serve import started
from datransformer.explore.explain import SHOWN
from datransformer.serve.app import PROBLEMS
from datransformer.serve.explain import SEQUENCES, TOKENS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_every_curl_is_answered(run_folder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key is not looked at by a server without one")
    calls = [line for line in COMMANDS if line.startswith("curl")]
    assert len(calls) >= 7
    with started(run_folder("sentence")) as (_, port):
        for line in calls:
            command = line.replace("curl", "curl --fail-with-body", 1).replace("localhost:8000", f"127.0.0.1:{port}")
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


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
