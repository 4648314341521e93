"""Fused, trainable distance-aware attention on the GPU: O(length) memory, learnable sigmoid × early multiply.

The kernels are in `fused_kernels.py`. Here they become a torch operator with a backward that torch.compile sees as
one node each. Triton is imported on first use: the library works where there is none.
"""

import importlib.util
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# A far pair's coefficient may differ from its limit by this much. Its attention weight is then off by a factor of at
# most exp(tolerance · |q·k| · scale).
FAR_TOLERANCE = {torch.float32: 1e-7, torch.bfloat16: 1e-5, torch.float16: 1e-5}

MAX_HEAD_DIM = 256

# A constant, and not the answer of an import, so that torch.compile can look at it.
HAS_TRITON = importlib.util.find_spec("triton") is not None

# Where the kernels run. Triton's interpreter, in which the tests run them, is on the CPU.
DEVICES = ("cuda",)


def _kernels() -> ModuleType:
    from datransformer.ops import fused_kernels

    return fused_kernels


def reason_against(
    query: Tensor,
    value: Tensor,
    *,
    mapping: str,
    adjust: str,
    attn_mask: Tensor | None,
    dropout_p: float,
    return_weights: bool,
) -> str | None:
    """Why this call cannot be fused; None if it can."""
    if not HAS_TRITON:
        return "triton is not installed"
    if query.device.type not in DEVICES:
        return f"query is on {query.device.type}, not on a CUDA device"
    if (mapping, adjust) != ("learnable_sigmoid", "early_multiply"):
        return (
            f"mapping {mapping!r} with adjust {adjust!r} is not fused, only 'learnable_sigmoid' with 'early_multiply'"
        )
    if return_weights:
        return "return_weights asks for the weights, which are never formed"
    if attn_mask is not None:
        return "attn_mask is given"
    if dropout_p > 0:
        return f"dropout_p is {dropout_p}, not 0"
    if query.dtype not in FAR_TOLERANCE:
        return f"dtype is {query.dtype}"
    if query.shape[-1] > MAX_HEAD_DIM:
        return f"head_dim is {query.shape[-1]}, more than {MAX_HEAD_DIM}"
    if value.shape[-1] != query.shape[-1]:
        return f"value_dim is {value.shape[-1]}, not head_dim, {query.shape[-1]}"
    if query.numel() == 0 or value.numel() == 0:
        return "a tensor is empty"
    return None


def _precision(dtype: torch.dtype) -> str:
    """How Triton shall multiply matrices; in half precision the word has no meaning to it."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _prefix_sums(
    tensor: Tensor, weight: Tensor, block: int, padding: Tensor | None, statistics: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Exclusive prefix sums over blocks of rows: [batch, heads, blocks + 1, head_dim], and of the row counts."""
    kernels = _kernels()
    batch, heads, length, head_dim = tensor.shape
    blocks = -(-length // block)
    width = max(16, _power_of_two(head_dim))
    sums = tensor.new_empty(batch, heads, blocks, head_dim, dtype=torch.float32)
    prefix = tensor.new_empty(batch, heads, blocks + 1, head_dim, dtype=torch.float32)
    counts = sums if padding is None else tensor.new_empty(batch, blocks, dtype=torch.float32)
    kernels.block_sums_kernel[(blocks, batch * heads)](
        tensor, padding, statistics, weight, sums, counts,
        *tensor.stride()[:3], heads, length, blocks,
        HEAD_DIM=head_dim, BLOCK_D=width, BLOCK=block,
        HAS_PADDING=padding is not None, HAS_STATISTICS=statistics is not None,
        PRECISION=_precision(tensor.dtype),
    )  # fmt: skip
    kernels.prefix_kernel[(batch * heads,)](sums, prefix, blocks, head_dim, CHUNK=32, WIDTH=width)
    if padding is not None:
        counts = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    return prefix, counts


def _tiles(kernel: str, head_dim: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """(query rows, keys, warps, stages) of a tile. Those for fp32 and for head_dim above 128 are untuned."""
    if dtype == torch.float32:
        return (32, 32, 4, 1) if head_dim > 64 else (64, 32, 4, 1)
    if head_dim > 128:
        return 64, 32, 4, 2
    if kernel == "forward":
        return (64, 64, 4, 3) if head_dim > 64 else (128, 64, 4, 3)
    return (64, 64, 4, 2) if head_dim > 64 else (64, 64, 4, 3)


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _shape(kernel: str, query: Tensor, key: Tensor, causal: bool, padding: Tensor | None) -> dict[str, Any]:
    """Tile sizes and everything else that a kernel is compiled for."""
    head_dim = query.shape[-1]
    block_d = max(16, _power_of_two(head_dim))
    rows, keys, warps, stages = _tiles(kernel, block_d, query.dtype)
    rows = min(rows, max(16, _power_of_two(query.shape[2])))
    keys = min(keys, max(16, _power_of_two(key.shape[2])))
    looped = query.shape[2] % rows if kernel == "key" else key.shape[2] % keys
    return {
        "HEADS": _power_of_two(query.shape[1]),
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_M": rows,
        "BLOCK_N": keys,
        "CAUSAL": causal,
        "RAGGED": looped != 0 or head_dim != block_d,
        "HAS_PADDING": padding is not None,
        "PRECISION": _precision(query.dtype),
        "enable_fp_fusion": True,  # score − peak must be one multiply-add in every kernel, or it rounds differently
        "num_warps": warps,
        "num_stages": stages,
    }


@torch.library.custom_op("datransformer::fused_attention", mutates_args=())
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    causal: bool,
    scale: float,
    far_tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Output [batch, heads, query_length, head_dim] and statistics [batch, heads, 2, query_length]."""
    query, key, value = (_rows_contiguous(tensor) for tensor in (query, key, value))
    batch, heads, query_length, _ = query.shape
    key_length = key.shape[2]
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    statistics = query.new_empty(batch, heads, 2, query_length, dtype=torch.float32)
    shape = _shape("forward", query, key, causal, key_padding_mask)
    sums, counts = distance_weight, distance_weight
    if far_tolerance > 0:
        sums, counts = _prefix_sums(value, distance_weight, shape["BLOCK_N"], key_padding_mask, None)
    blocks = -(-query_length // shape["BLOCK_M"])
    _kernels().forward_kernel[(blocks * batch * heads,)](
        query, key, value, distance_weight, distance_shift, key_padding_mask, sums, counts, output, statistics,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        batch, heads, query_length, key_length, blocks, scale, _tail(far_tolerance), **shape,
    )  # fmt: skip
    return output, statistics


@torch.library.custom_op("datransformer::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    output: Tensor,
    statistics: Tensor,
    causal: bool,
    scale: float,
    far_tolerance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, distance_weight and distance_shift."""
    kernels = _kernels()
    query, key, value, gradient = (_rows_contiguous(tensor) for tensor in (query, key, value, gradient))
    batch, heads, query_length, head_dim = query.shape
    key_length = key.shape[2]
    strides = [stride for tensor in (query, key, value, gradient) for stride in tensor.stride()[:3]]

    delta = torch.empty_like(statistics[:, :, 0])
    block_d = max(16, _power_of_two(head_dim))
    kernels.delta_kernel[(-(-query_length // 64), batch * heads)](
            output, gradient, delta, *gradient.stride()[:3], heads, query_length,
            HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK=64,
        )  # fmt: skip

    query_gradient = torch.empty_like(query, memory_format=torch.contiguous_format)
    shape = _shape("query", query, key, causal, key_padding_mask)
    blocks = -(-query_length // shape["BLOCK_M"])
    slopes = query.new_empty(2, batch, heads, blocks, dtype=torch.float32)
    kernels.query_kernel[(blocks * batch * heads,)](
        query, key, value, distance_weight, distance_shift, key_padding_mask, gradient, statistics, delta,
        query_gradient, slopes[0], slopes[1], *strides,
        batch, heads, query_length, key_length, blocks, scale, _tail(far_tolerance), **shape,
    )  # fmt: skip
    key_gradient = torch.empty_like(key, memory_format=torch.contiguous_format)
    value_gradient = torch.empty_like(value, memory_format=torch.contiguous_format)
    shape = _shape("key", query, key, causal, key_padding_mask)
    sums = distance_weight
    if far_tolerance > 0:
        sums, _ = _prefix_sums(gradient, distance_weight, shape["BLOCK_M"], None, statistics)
    blocks = -(-key_length // shape["BLOCK_N"])
    kernels.key_kernel[(blocks * batch * heads,)](
        query, key, value, distance_weight, distance_shift, key_padding_mask, gradient, statistics, delta, sums,
        key_gradient, value_gradient, *strides,
        batch, heads, query_length, key_length, blocks, scale, _tail(far_tolerance), **shape,
    )  # fmt: skip

    # Per-tile shares, added up in a fixed order: the same bits every time.
    weight_gradient, shift_gradient = slopes.sum((1, 3)).unbind(0)
    return query_gradient, key_gradient, value_gradient, weight_gradient.clone(), shift_gradient.clone()


@fused_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(*query.shape[:2], 2, query.shape[2], dtype=torch.float32)


@fused_attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    wide = torch.float32
    return (
        *(tensor.new_empty(tensor.shape) for tensor in (query, key, value)),
        *(tensor.new_empty(tensor.shape, dtype=wide) for tensor in (distance_weight, distance_shift)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.scale, ctx.far_tolerance = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = fused_attention_backward(gradient, *ctx.saved_tensors, ctx.causal, ctx.scale, ctx.far_tolerance)
    return (*gradients, None, None, None, None)


def _no_second_backward(ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError("fused attention has no second derivative: pass backend='reference'")


fused_attention.register_autograd(_backward, setup_context=_setup_context)
fused_attention_backward.register_autograd(_no_second_backward)


def _tail(far_tolerance: float) -> float:
    return -math.log(far_tolerance) if far_tolerance > 0 else math.inf


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    key_padding_mask: Tensor | None,
    causal: bool,
    scale: float,
    far_tolerance: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Eq. 6 for a call that `reason_against` has nothing against.

    ``far_tolerance`` is how much a far pair's coefficient may differ from its limit, `FAR_TOLERANCE` if None; 0 turns
    the shortcut off.
    """
    output, _ = fused_attention(
        query,
        key,
        value,
        distance_weight.float().contiguous(),
        distance_shift.float().contiguous(),
        None if key_padding_mask is None else key_padding_mask.contiguous(),
        causal,
        scale,
        FAR_TOLERANCE[query.dtype] if far_tolerance is None else far_tolerance,
    )
    return output, None
