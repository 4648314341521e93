"""The measuring of several processes, in one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from datransformer import cli
from datransformer.data.errors import InputError
from datransformer.experiments import bench_scaling, bench_train

TINY = ("model.embed_dim=8", "model.heads=2", "model.head_dim=4")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Few news, and commands that run in this process; those that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["env"]["OMP_NUM_THREADS"] == "1"
        commands.append(command)
        monkeypatch.setattr(sys, "argv", command[command.index("datransformer") :])
        cli.app(standalone_mode=False)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bench_train, "NEWS_ITEMS", 100)
    monkeypatch.setattr(bench_scaling, "BATCHES", 3)
    monkeypatch.setattr(bench_scaling, "subprocess", type("Fake", (), {"run": staticmethod(run)}))
    return commands


def measure(out: Path | None, **options: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "processes": [1, 2], "device": "cpu", "batch_size": 2, "warm_up": 1, "steps": 2, "turns": 1, "settings": TINY,
    }  # fmt: skip
    return bench_scaling.bench_scaling(out, **{**asked, **options}, tell=lambda line: None)


def test_from_nothing_to_the_table(small: list[list[str]], tmp_path: Path) -> None:
    result = measure(tmp_path / "new" / "scaling.json")
    assert result == json.loads((tmp_path / "new" / "scaling.json").read_text())
    assert [command[command.index("--nproc_per_node") + 1] for command in small] == ["1", "2"]
    assert [row["processes"] for row in result["rows"]] == [1, 2]
    assert all(row["clicks_per_second"] > 0 for row in result["rows"])
    assert result["rows"][0]["speedup"] == 1
    assert [row["processes"] for row in result["batching"]] == [1, 2, 4, 8]
    assert all(row["tokens"] > 0 for row in result["batching"])
    assert len(bench_scaling.scaling_table(result)) == 4


def test_speed_is_that_after_the_warm_up(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "seconds": 10 + step / 2} for step in (2, 4, 6)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"step": 6, "dev": {}}])))
    assert bench_scaling._speed(tmp_path, 2, 64) == 4 * 64 / 2


def test_the_table_has_efficiency_beside_the_first() -> None:
    rows = [{"processes": 2, "clicks_per_second": 10.0, "speedup": 1.0},
            {"processes": 8, "clicks_per_second": 30.0, "speedup": 3.0}]  # fmt: skip
    assert bench_scaling.scaling_table({"rows": rows})[2:] == [
        "| 2 | 10.0 | 1.00 | 100% |",
        "| 8 | 30.0 | 3.00 | 75% |",
    ]


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="--processes: got 2, expected at most 1, one a GPU"):
        measure(None, device="cuda")
    failed = subprocess.CompletedProcess([], 1, "", "noise\nerror: --lr: got 0\nmore noise")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(InputError, match="training in 2 processes failed: error: --lr: got 0"):
        bench_scaling._train(tmp_path, tmp_path / "run", 2, "cpu", [])
