"""torch.export: programs that torch loads without this library."""

from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from datransformer.export.check import Runtime
from datransformer.export.folder import write_folder
from datransformer.export.graphs import Graph
from datransformer.train.tasks import Answers


def export_torch(run_folder: Path, out: Path) -> str:
    """Write a run as programs of torch.export, loaded again and held against the model."""
    return write_folder(run_folder, out, ".pt2", _save, _load)


def _save(program: ExportedProgram, graph: Graph, path: Path) -> None:
    torch.export.save(program, path)


def _load(path: Path) -> Runtime:
    program = torch.export.load(path).module()

    def run(inputs: dict[str, Tensor]) -> Answers:
        with torch.no_grad():
            answers: Answers = program(**inputs).numpy()
        return answers

    return run
