"""Dropout on the CPU in one pass, forward and backward, without a mask in memory.

Most of the time of torch's own goes into drawing random numbers one by one. Here a unit is dropped or kept by a hash of
a seed and of its place, as the weights are in `blocked.py`, whose kernels do it; the backward draws the same again.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from datransformer.ops import blocked
from datransformer.ops.fast_paths import is_transformed


def can_drop(inputs: Tensor) -> bool:
    """Whether `dropout` can take ``inputs``."""
    return (
        blocked.KERNELS is not None
        and inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and inputs.layout == torch.strided
        and inputs.numel() > 0
        and not torch.compiler.is_compiling()
        and not is_transformed()
    )


def dropout(inputs: Tensor, probability: float) -> Tensor:
    """Zero each unit with ``probability``, rounded to 1 / 65536, and scale the others; seeded by torch's generator."""
    dropped = round(probability * blocked.LEVELS)
    if not 0 < dropped < blocked.LEVELS:
        return torch.nn.functional.dropout(inputs, probability)
    output: Tensor = blocked_dropout(inputs, blocked.draw_seed(), dropped)
    return output


@torch.library.custom_op("datransformer::blocked_dropout", mutates_args=(), device_types="cpu")
def blocked_dropout(inputs: Tensor, seed: Tensor, dropped: int) -> Tensor:
    """``inputs``, of which ``dropped`` in 65536 are 0 and the others scaled."""
    assert blocked.KERNELS is not None
    inputs = inputs.contiguous()
    output = torch.empty_like(inputs)
    blocked.KERNELS.blocked_dropout(
        ctypes.c_void_p(output.data_ptr()),
        ctypes.c_void_p(inputs.data_ptr()),
        ctypes.c_int64(inputs.numel()),
        ctypes.c_uint64(int(seed.item()) % 2**64),
        ctypes.c_uint32(dropped),
        ctypes.c_int64(torch.get_num_threads()),
    )
    return output


@blocked_dropout.register_fake
def _(inputs: Tensor, seed: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, seed, ctx.dropped = inputs
    ctx.save_for_backward(seed)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return blocked_dropout(gradient, *ctx.saved_tensors, ctx.dropped), None, None


blocked_dropout.register_autograd(_backward, setup_context=_setup_context)
