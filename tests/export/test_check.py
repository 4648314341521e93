"""An export appears whole and right, or not at all."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from datransformer import cli
from datransformer.data.errors import InputError
from datransformer.export import TARGETS, export_run, onnx, torch_export
from datransformer.export.check import Runtime, largest_difference
from datransformer.export.graphs import Graph
from datransformer.train.tasks import Answers

if TYPE_CHECKING:
    from tests.export.conftest import MakeRun


def compare(expected: list[float], got: list[float]) -> float:
    graph = Graph(
        "model", nn.Identity(), {"input": ("batch",)}, "output", ("batch",), ({"input": torch.tensor(expected)},)
    )
    return largest_difference(graph, lambda inputs: np.array(got, np.float32))  # fmt: skip


def test_differences_are_measured() -> None:
    inf = float("inf")
    assert compare([0.5, -inf, -1.0], [0.5, -inf, -1.000001]) == pytest.approx(1e-6, rel=0.1)
    assert compare([5000.0], [5000.02]) == pytest.approx(4e-6, rel=0.1)
    for expected, got in (
        ([0.5], [0.50002]), ([5000.0], [5000.1]), ([-inf], [-1e30]), ([1.0], [inf]), ([0.5], [float("nan")])
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"model: answers input \[1\] otherwise than torch, .* at most 1e-05"):
            compare(expected, got)
    with pytest.raises(InputError, match=r"with \[2\], expected \[1\]"):
        compare([0.5], [0.5, 0.5])
    with pytest.raises(InputError, match="training diverged"):
        compare([float("nan")], [float("nan")])


def test_a_wrong_answer_fails_the_command_and_leaves_nothing(
    make_run: "MakeRun", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = torch_export._load

    def wrong(path: Path) -> Runtime:
        runtime = load(path)

        def run(inputs: dict[str, Tensor]) -> Answers:
            answers = runtime(inputs)
            return answers + np.float32(2e-5) if answers.shape[0] == 1 else answers

        return run

    run = make_run()
    monkeypatch.setattr(torch_export, "_load", wrong)
    monkeypatch.setattr(
        sys, "argv", ["datransformer", "export", str(run), "--to", "torch-export", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "error: model: answers tokens [1, 1] otherwise than torch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [run]


def test_what_is_there_is_left_alone_unless_told(
    make_run: "MakeRun", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(text: str) -> None:
        def target(run_folder: Path, out: Path) -> str:
            out.mkdir()
            (out / "model").write_text(text)
            return text

        monkeypatch.setitem(TARGETS, "hf", target)

    run, out = make_run(), tmp_path / "deep" / "out"
    write("first")
    assert export_run(run, out, to="hf") == "first"
    write("second")
    with pytest.raises(InputError, match="out: holds files already; --overwrite replaces an export"):
        export_run(run, out, to="hf")
    assert (out / "model").read_text() == "first"
    export_run(run, out, to="hf", overwrite=True)
    assert (out / "model").read_text() == "second"
    (out / "precious").write_text("keep me")
    with pytest.raises(InputError, match="out: holds precious, which is no part of this export"):
        export_run(run, out, to="hf", overwrite=True)
    assert {path.name for path in out.iterdir()} == {"model", "precious"}
    assert list(out.parent.iterdir()) == [out]


def test_onnx_without_its_extra_says_what_to_install(
    make_run: "MakeRun", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(InputError, match=r"needs onnxscript: pip install datransformer\[onnx\]"):
        export_run(make_run(), tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


def test_hugging_face_gets_a_folder_of_its_own(make_run: "MakeRun", tmp_path: Path) -> None:
    export_run(make_run(), tmp_path / "out", to="hf")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
