"""Cache-blocked, trainable distance-aware attention on the CPU: O(length) memory, learnable sigmoid × early multiply.

The loops are in `blocked_kernels.cpp`, an extension that is optional at install. Here they become a torch operator
with a backward that torch.compile sees as one node each.

Every score is relu(q·k) · scale · f ≥ 0, and at most |q| |k| · scale · max f. Where that bound is small enough, which
is nearly always, the softmax needs no maximum and weights are summed as they are computed. Beyond the reach of a
head with w < 0 all scores are 0 and the keys' part of the output is a sum of values.
"""

import ctypes
import importlib.util
from typing import Any

import torch
from torch import Tensor

from datransformer.ops.fast_paths import common_reason_against, empty_rows_like
from datransformer.ops.second_order import differentiable_gradients

# A far pair's coefficient may differ from 0 by this much. Its attention weight is then off by a factor of at most
# exp(tolerance · |q·k| · scale).
FAR_TOLERANCE = 1e-7

LEVELS = 1 << 16  # dropout's probability is rounded to a multiple of 1 / LEVELS


class _Rows(ctypes.Structure):
    """A tensor [batch, heads, length, head_dim] whose rows are contiguous."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    """The fields of ``Call`` in blocked_kernels.cpp that the caller fills in; the kernels copy and complete it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "query_length", "key_length", "head_dim")),
        *((name, ctypes.c_int64) for name in ("causal", "threads")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("dropout", "scale", "far_tolerance")),
        *((name, ctypes.c_void_p) for name in ("weight", "shift", "hidden")),
        *((name, _Rows) for name in ("query", "key", "value", "output")),
        ("statistics", ctypes.c_void_p),
        *((name, _Rows) for name in ("gradient", "query_gradient", "key_gradient", "value_gradient")),
        *((name, ctypes.c_void_p) for name in ("weight_gradient", "shift_gradient")),
    )


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The compiled loops, or why there are none."""
    found = importlib.util.find_spec("datransformer.ops.blocked_kernels")
    if found is None or found.origin is None:
        return None, "its kernels are not built: install datransformer where there is a C++ compiler with OpenMP"
    try:
        return ctypes.CDLL(found.origin), None
    except OSError as error:
        return None, f"its kernels cannot be loaded: {error}"


KERNELS, NOT_LOADED = _load()


def reason_against(
    query: Tensor,
    value: Tensor,
    *,
    mapping: str,
    adjust: str,
    attn_mask: Tensor | None,
    dropout_p: float,
    return_weights: bool,
    strict: bool,
) -> str | None:
    """Why this call cannot run blocked; None if it can."""
    if NOT_LOADED is not None:
        return NOT_LOADED
    if query.device.type != "cpu":
        return f"query is on {query.device.type}, not on the CPU"
    if query.dtype != torch.float32:
        return f"dtype is {query.dtype}, not torch.float32"
    return common_reason_against(
        query, value, mapping=mapping, adjust=adjust, attn_mask=attn_mask, return_weights=return_weights
    )


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _rows(tensor: Tensor) -> _Rows:
    return _Rows(tensor.data_ptr(), *tensor.stride()[:3])


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    seed: Tensor | None,
    output: Tensor,
    statistics: Tensor,
    *,
    causal: bool,
    dropout_p: float,
    scale: float,
    far_tolerance: float,
) -> _Call:
    batch, heads, query_length, head_dim = query.shape
    return _Call(
        batch=batch,
        heads=heads,
        query_length=query_length,
        key_length=key.shape[2],
        head_dim=head_dim,
        causal=causal,
        threads=torch.get_num_threads(),
        seed=0 if seed is None else int(seed.item()) % 2**64,
        dropout=dropout_p,
        scale=scale,
        far_tolerance=far_tolerance,
        weight=distance_weight.data_ptr(),
        shift=distance_shift.data_ptr(),
        hidden=_address(key_padding_mask),
        query=_rows(query),
        key=_rows(key),
        value=_rows(value),
        output=_rows(output),
        statistics=statistics.data_ptr(),
    )


def _run(name: str, call: _Call) -> None:
    assert KERNELS is not None
    if KERNELS[name](ctypes.byref(call)) != 0:
        raise MemoryError(f"{name}: no memory left for its tables and tiles")


@torch.library.custom_op("datransformer::blocked_attention", mutates_args=(), device_types="cpu")
def blocked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    dropout_p: float,
    scale: float,
    far_tolerance: float,
    strict: bool,
) -> tuple[Tensor, Tensor]:
    """Output [batch, heads, query_length, head_dim] and statistics [batch, heads, 2, query_length]."""
    query, key, value = (_rows_contiguous(tensor) for tensor in (query, key, value))
    output = empty_rows_like(query)  # in the memory layout of the query, which the module's next step wants
    statistics = query.new_empty(*query.shape[:2], 2, query.shape[2])
    call = _call(
        query, key, value, distance_weight, distance_shift, key_padding_mask, seed, output, statistics,
        causal=causal, dropout_p=dropout_p, scale=scale, far_tolerance=far_tolerance,
    )  # fmt: skip
    _run("blocked_forward", call)
    return output, statistics


@torch.library.custom_op("datransformer::blocked_attention_backward", mutates_args=(), device_types="cpu")
def blocked_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    seed: Tensor | None,
    output: Tensor,
    statistics: Tensor,
    causal: bool,
    dropout_p: float,
    scale: float,
    far_tolerance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, distance_weight and distance_shift."""
    query, key, value, gradient = (_rows_contiguous(tensor) for tensor in (query, key, value, gradient))
    query_gradient, key_gradient, value_gradient = (empty_rows_like(tensor) for tensor in (query, key, value))
    weight_gradient, shift_gradient = torch.empty_like(distance_weight), torch.empty_like(distance_shift)
    call = _call(
        query, key, value, distance_weight, distance_shift, key_padding_mask, seed, output, statistics,
        causal=causal, dropout_p=dropout_p, scale=scale, far_tolerance=far_tolerance,
    )  # fmt: skip
    call.gradient = _rows(gradient)
    call.query_gradient = _rows(query_gradient)
    call.key_gradient = _rows(key_gradient)
    call.value_gradient = _rows(value_gradient)
    call.weight_gradient = weight_gradient.data_ptr()
    call.shift_gradient = shift_gradient.data_ptr()
    _run("blocked_backward", call)
    return query_gradient, key_gradient, value_gradient, weight_gradient, shift_gradient


@blocked_attention.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_rows_like(_rows_contiguous(query)), query.new_empty(*query.shape[:2], 2, query.shape[2])


@blocked_attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    rows = (empty_rows_like(_rows_contiguous(tensor)) for tensor in (query, key, value))
    return *rows, torch.empty_like(distance_weight), torch.empty_like(distance_shift)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.dropout_p, ctx.scale, ctx.far_tolerance, ctx.strict = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients: Any
    if torch.is_grad_enabled() and not ctx.strict:
        *inputs, padding, seed, output, _ = ctx.saved_tensors
        pairs = (*output.shape[:3], inputs[1].shape[2])
        gradients = differentiable_gradients(
            gradient,
            inputs,
            key_padding_mask=padding,
            causal=ctx.causal,
            scale=ctx.scale,
            dropped=None if seed is None else dropout_mask(seed, ctx.dropout_p, pairs),
        )
    else:
        gradients = blocked_attention_backward(
            gradient, *ctx.saved_tensors, ctx.causal, ctx.dropout_p, ctx.scale, ctx.far_tolerance
        )
    return (*gradients, *[None] * 7)


def _no_second_backward(ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError("blocked attention has no second derivative: pass backend='auto' or 'reference'")


blocked_attention.register_autograd(_backward, setup_context=_setup_context)
blocked_attention_backward.register_autograd(_no_second_backward)


def _times(numbers: Tensor, factor: int, bits: int) -> Tensor:
    """Product modulo 2^bits, bits at most 63: int64 wraps, and the low bits of what wraps are right."""
    return numbers * factor & ((1 << bits) - 1)


def dropout_mask(seed: Tensor, dropout_p: float, shape: tuple[int, int, int, int]) -> Tensor:
    """What the kernels multiply the weights with, ``shape`` = [batch, heads, query_length, key_length]: 0 or 1/(1 − p).

    The kernels never form it. A query's 64 random bits are splitmix64 of the seed and of its number; they enter a hash
    of the key's number, of which a key takes 16 bits.
    """
    dropped = min(round(dropout_p * LEVELS), LEVELS - 1)
    batch, heads, query_length, key_length = shape
    start, low = int(seed.item()), (1 << 32) - 1
    rows = []
    for number in range(1, batch * heads * query_length + 1):
        bits = (start + 0x9E3779B97F4A7C15 * number) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        rows.append(bits ^ bits >> 31)
    first = torch.tensor([row & low for row in rows])[:, None]
    second = torch.tensor([row >> 32 for row in rows])[:, None]
    keys = torch.arange(key_length)
    words = (_times((keys >> 4) * 8 + (keys & 7), 0x9E3779B9, 32) + first) & low
    words = _times(words ^ words >> 16, 0x7FEB352D, 32) ^ second
    words = _times(words ^ words >> 15, 0x846CA68B, 32)
    levels = (words ^ words >> 16) >> (keys >> 3 & 1) * 16 & (LEVELS - 1)
    kept = (levels >= dropped).float() * (LEVELS / (LEVELS - dropped))
    return kept.view(shape)


def draw_seed() -> Tensor:
    """One number from torch's generator: `torch.manual_seed` and a restored generator give the same again."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), device="cpu")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    key_padding_mask: Tensor | None,
    causal: bool,
    dropout_p: float,
    scale: float,
    strict: bool = True,
    far_tolerance: float = FAR_TOLERANCE,
    **_: Any,
) -> tuple[Tensor, None]:
    """Eq. 6 for a call that `reason_against` has nothing against.

    ``far_tolerance`` is how much a far pair's coefficient may differ from 0; 0 turns the shortcut off, as dropout does.
    """
    seed = draw_seed() if dropout_p > 0 else None
    output, _ = blocked_attention(
        query,
        key,
        value,
        distance_weight.float().contiguous(),
        distance_shift.float().contiguous(),
        None if key_padding_mask is None else key_padding_mask.contiguous(),
        seed,
        causal,
        dropout_p,
        scale,
        far_tolerance,
        strict,
    )
    return output, None
