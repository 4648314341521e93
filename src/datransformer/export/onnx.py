"""ONNX: graphs that onnxruntime, and much else, runs without torch."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from datransformer.data.errors import InputError
from datransformer.export.check import Runtime
from datransformer.export.folder import write_folder
from datransformer.export.graphs import Graph
from datransformer.train.tasks import Answers

NEEDED = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20


def export_onnx(run_folder: Path, out: Path) -> str:
    """Write a run as ONNX, held against torch under onnxruntime."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"--to onnx: needs {', '.join(missing)}: pip install datransformer[onnx]")
    return write_folder(run_folder, out, ".onnx", _save, _load)


def _save(program: ExportedProgram, graph: Graph, path: Path) -> None:
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes={name: dict(enumerate(axes)) for name, axes in graph.axes.items()},
            input_names=list(graph.axes),
            output_names=[graph.output],
            verbose=False,
        )
    assert made is not None
    made.save(path)


def _load(path: Path) -> Runtime:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Tensor]) -> Answers:
        (answers,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return np.asarray(answers)

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notes on its own insides and on libraries that are not there."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
