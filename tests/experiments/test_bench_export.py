"""The benchmark runs, and the documents have its figures."""

import json
from pathlib import Path

import pytest
import torch

from datransformer.experiments import bench_export
from datransformer.export.graphs import graphs_of
from datransformer.export.samples import Inputs
from datransformer.train.run import load_run

DOCS = Path(__file__).parents[2] / "docs"


def test_everything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_torch(run: Path, threads: int) -> object:  # tests/export has onnxruntime, which takes its time to get ready
        (graph,) = graphs_of(load_run(run))

        @torch.no_grad()
        def answer(inputs: Inputs) -> torch.Tensor:
            answers: torch.Tensor = graph.module(**inputs)
            return answers

        return answer

    monkeypatch.setattr(bench_export, "onnx_answer", in_torch)
    monkeypatch.setattr(bench_export, "page_size", lambda run, text: len(text))  # tests/explore has the page
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    before = torch.get_num_threads()
    try:
        result = bench_export.bench_export(tmp_path / "out.json", rounds=2, tiny=True)
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "out.json").read_text())["answers"] == result["answers"]
    assert list(result["answers"]) == list(bench_export.BATCHES)
    for row in result["answers"].values():
        assert row["largest_difference"] == 0
        assert row["torch_ms"]["median"] > 0
    seen = result["explorer"]
    assert (seen["words"], seen["maps"]) == (512, 2)
    assert seen["answer_bytes"] > 2 * 512**2  # a byte a weight


def test_the_documents_have_the_measured_figures() -> None:
    result = json.loads((DOCS / "results" / "bench_export_cpu.json").read_text(encoding="utf-8"))
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    for name, found in result["answers"].items():
        row = (
            f"| {name} | {found['torch_ms']['median']:.1f} ms | {found['onnxruntime_ms']['median']:.1f} ms "
            f"| {found['torch_over_onnxruntime']:.2f} |"
        )
        assert row in page, row
    seen = result["explorer"]
    page = (DOCS / "explorer.md").read_text(encoding="utf-8")
    line = (
        f"{seen['words']} words and {seen['maps']} heads took {seen['answer_ms']['median']:.0f} ms, and the page is "
        f"{seen['page_bytes'] / 1e6:.1f} MB"
    )
    assert line in " ".join(page.split()), line
