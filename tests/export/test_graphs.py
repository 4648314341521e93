"""Every task, mixer, mapping and adjusting method, for any size of every axis."""

import itertools
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from datransformer import ADJUSTMENTS, MAPPINGS, MIXERS, Encoder
from datransformer.export import export_run, onnx
from datransformer.export.check import largest_difference
from datransformer.export.graphs import Graph
from datransformer.export.samples import SHAPES, Shape, sample_clicks, sample_texts, sample_titles
from datransformer.train.run import load_run

if TYPE_CHECKING:
    from tests.export.conftest import MakeRun

ROOT = Path(__file__).parents[2]
TASKS: dict[str, dict[str, Any]] = {
    "sentence": {"train_precision": "64-true"},
    "joint": {"task": "pair", "model_pair": "joint", "train_precision": "bf16-mixed"},
    "siamese": {"task": "pair", "model_pair": "siamese"},
    "document": {"task": "document", "model_head": "rating"},
    "recommend": {"task": "recommend"},
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_goes_to_torch_export(make_run: "MakeRun", tmp_path: Path, task: str) -> None:
    line = export_run(make_run(**TASKS[task]), tmp_path / "out", to="torch-export")
    programs = sorted((tmp_path / "out").glob("*.pt2"))
    assert [path.stem for path in programs] == (["news", "scores"] if task == "recommend" else ["model"])
    assert f"{6 * len(programs)} batches as torch answers them, largest difference " in line
    for path in programs:
        archive = zipfile.ZipFile(path)
        held = [archive.read(name) for name in archive.namelist()]
        assert not any(part.startswith((b"\x80", b"PK")) for part in held), "pickled"
        assert not any(str(ROOT).encode() in part for part in held)  # where it was made is nobody's concern
        weights = torch.export.load(path).state_dict
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
        assert any("embedding" in name for name in weights) == (path.stem != "scores")  # in one file, not in both


def test_the_shapes_are_what_they_are_called(make_run: "MakeRun", tmp_path: Path) -> None:
    run = load_run(make_run(task="document"))
    assert Shape(1, 1, 1) in SHAPES
    assert max(shape.length for shape in SHAPES) > 10 * SHAPES[0].length
    for shape in SHAPES:
        batch = sample_texts(run, shape)
        assert batch["tokens"].shape[1] <= shape.length
        assert len(batch["sentences"]) == shape.batch
        titles = sample_titles(run, shape)["tokens"]
        assert titles.shape == (shape.batch * shape.parts, shape.length)
        clicks = sample_clicks(shape, len(titles))
        assert {tuple(rows.shape) for rows in clicks.values()} == {(shape.batch, shape.parts)}
    batch = sample_texts(run, SHAPES[0])
    assert (batch["sentences"] < 0).any()
    assert (batch["tokens"] == 0).any()


class Beside(nn.Module):
    """Encoders side by side, to convert them in one go."""

    def __init__(self, encoders: list[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, vectors: Tensor, padding: Tensor) -> Tensor:
        return torch.stack([encoder(vectors, padding) for encoder in self.encoders])  # [E, B, N, D]


# Every mapping and every adjusting method at least once; tests/nn/test_compile.py traces all pairs of them.
VARIANTS = [
    {"mixer_options": {"mapping": mapping, "adjust": adjust}}
    for mapping, adjust in zip(MAPPINGS, itertools.cycle(ADJUSTMENTS), strict=False)
]


@pytest.mark.parametrize("options", [[{"mixer": mixer} for mixer in MIXERS], VARIANTS], ids=["mixers", "variants"])
def test_every_attention_goes_to_onnx(options: list[dict[str, Any]], tmp_path: Path) -> None:
    module = Beside([Encoder(12, 3, 4, feedforward_dim=5, **option) for option in options]).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    batches = []
    for batch, length in ((2, 7), (1, 1), (1, 5), (3, 1), (2, 151)):
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[-1, (length + 1) // 2 :] = True
        batches.append({"vectors": torch.randn(batch, length, 12), "padding": padding})
    axes: dict[str, tuple[str | int, ...]] = {"vectors": ("batch", "length", 12), "padding": ("batch", "length")}
    graph = Graph("beside", module, axes, "mixed", (len(options), "batch", "length", 12), tuple(batches))
    onnx._save(graph.trace(), graph, tmp_path / "beside.onnx")
    assert largest_difference(graph, onnx._load(tmp_path / "beside.onnx")) < 1e-5
