"""Forward and backward as CUDA graphs. These models are small: eager, a GPU waits for Python most of the time."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datransformer.data.batches import Batch

MOST = 64  # shapes that get a graph; others run eagerly
# What an index has where there is nothing; candidates that do not exist would have no finite loss to be weighted by 0.
FILL = {"sentences": -1, "history": -1}

Losses = Callable[[dict[str, Tensor], Batch], Tensor]


def grid(size: int) -> int:
    """The next size on a grid that is coarse enough to be met again: multiples of 8, then of 32, then of 128."""
    step = 8 if size <= 64 else 32 if size <= 512 else 128
    return -(-size // step) * step


def pad_batch(batch: Batch, total: int) -> tuple[Batch, Tensor]:
    """The batch with every axis padded to the grid, and the weight of each example: 1 / total, or 0 for padding.

    The number of candidates is the same in all batches and stays.
    """
    assert batch.targets is not None
    inputs = {}
    for name, tensor in batch.inputs.items():
        rows, columns = tensor.shape
        wide = columns if name == "candidates" else grid(columns)
        inputs[name] = F.pad(tensor, (0, wide - columns, 0, grid(rows) - rows), value=FILL.get(name, 0))
    count = len(batch.targets)
    extra = grid(count) - count
    weights = F.pad(torch.full((count,), 1 / total, dtype=torch.float32), (0, extra))
    return Batch(inputs, F.pad(batch.targets, (0, extra)), batch.rows, batch.tokens), weights


class GraphedStep:
    """Loss, gradients and their norm for batches of shapes that come again and again.

    Gradients are written to the same tensors every time, which are the parameters' ``grad`` from now on.

    Args:
        model: On its CUDA device.
        losses: The loss of each example from the model's inputs and a batch with targets.
        autocast: Enters mixed precision.
    """

    def __init__(self, model: nn.Module, losses: Losses, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self._model, self._losses, self._autocast = model, losses, autocast
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._device = self._parameters[0].device
        self._graphs: dict[tuple[Any, ...], Callable[[], tuple[Tensor, Tensor]]] = {}
        self._buffers: dict[tuple[Any, ...], list[Tensor]] = {}
        self._pool: Any = None

    def __call__(self, batch: Batch, total: int, seed: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """The loss, as a sum over examples divided by ``total``, and the norm of the gradients.

        ``seed`` is called before anything is computed; it sets the random state of dropout.
        """
        padded, weights = pad_batch(batch, total)
        assert padded.targets is not None
        tensors = [*padded.inputs.values(), padded.targets, weights]
        key = tuple(tuple(tensor.shape) for tensor in tensors)
        if key not in self._graphs and len(self._graphs) >= MOST:
            seed()
            return self._compute(list(padded.inputs), [tensor.to(self._device) for tensor in tensors])
        if key not in self._graphs:
            self._capture(key, list(padded.inputs), tensors)
        for buffer, tensor in zip(self._buffers[key], tensors, strict=True):
            buffer.copy_(tensor)
        seed()
        return self._graphs[key]()

    def _compute(self, names: list[str], tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        *inputs, targets, weights = tensors
        gradients = [parameter.grad for parameter in self._parameters]
        torch._foreach_zero_(gradients)  # type: ignore[arg-type]
        batch = Batch({}, targets, np.empty(0, np.int64), 0)
        with self._autocast():
            losses = self._losses(dict(zip(names, inputs, strict=True)), batch)
        loss = (losses * weights.to(losses.dtype)).sum()
        loss.backward()
        return loss.detach(), torch.nn.utils.get_total_norm([g for g in gradients if g is not None])

    def _capture(self, key: tuple[Any, ...], names: list[str], tensors: list[Tensor]) -> None:
        buffers = [tensor.to(self._device) for tensor in tensors]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once for real: libraries set themselves up on first use
            self._compute(names, buffers)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            results = self._compute(names, buffers)
        self._pool = self._pool or graph.pool()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return results

        self._buffers[key], self._graphs[key] = buffers, replay
