"""The timing of the reproduction, on a data set of a few rows."""

import json
from pathlib import Path

import pytest

from datransformer.data.errors import InputError
from datransformer.experiments import bench_reproduce as bench
from datransformer.experiments.studies import STUDIES, Study

SMALL = {"model.embed_dim": 8, "model.heads": 2, "model.head_dim": 4, "train.epochs": 2}


def test_from_nothing_to_the_table(sst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "sst", Study("SST", "sst", settings=SMALL))
    monkeypatch.setitem(bench.TIMED, "cpu", bench.Timed("sst", ("vanilla", "none"), 2, 60.0))
    told: list[str] = []
    path = tmp_path / "new" / "times.json"
    result = bench.bench_reproduce(sst, path, device="cpu", turns=2, tell=told.append)
    assert result == json.loads(path.read_text())
    assert len(result["turns"]) == len(told) == 2
    assert min(result["turns"]) <= result["seconds"] <= max(result["turns"])
    assert bench.time_table(result)[-1].startswith("| SST, methods × seeds × epochs: 2 × 2 × 2 | ≤ 60 | ")


def test_runs_that_fail_have_no_time(sst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "sst", Study("SST", "sst", settings={**SMALL, "train.lr": 1e30, "train.clip": 0.0}))
    with pytest.raises(InputError, match=r"1 of 1 runs failed: .*NaN or Inf"):
        bench.bench_reproduce(sst, device="cpu", tell=lambda line: None)


def test_what_cannot_be_timed_or_written_is_said_before(
    sst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, told in (
        ([f"--data-dir={sst}", "--turns=0"], "--turns: got 0, expected 1 or more"),
        ([f"--data-dir={sst}", f"--out={tmp_path}"], "expected a file to write to"),
        ([f"--data-dir={tmp_path / 'nowhere'}"], "nowhere"),
    ):
        monkeypatch.setattr("sys.argv", ["bench_reproduce", "--device=cpu", *options])
        with pytest.raises(SystemExit) as ended:
            bench.main()
        assert ended.value.code == 1
        assert told in capsys.readouterr().err


def test_the_published_times_are_those_of_their_file() -> None:
    docs = Path(__file__).parents[2] / "docs"
    result = json.loads((docs / "results/bench_reproduce_cpu.json").read_text())
    assert "\n".join(bench.time_table(result)) in (docs / "reproduce.md").read_text(encoding="utf-8")
    assert result["seconds"] <= result["aim"] == bench.TIMED["cpu"].aim
