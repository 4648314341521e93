"""Fused, trainable distance-aware attention on the GPU: O(length) memory, learnable sigmoid × early multiply.

The kernels are in `fused_kernels.py`. Here they become a torch operator with a backward that torch.compile sees as
one node each. Triton is imported on first use: the library works where there is none.
"""

import importlib.util
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from datransformer.ops.fast_paths import common_reason_against, empty_rows_like
from datransformer.ops.second_order import differentiable_gradients

# A far pair's coefficient may differ from its limit by this much. Its attention weight is then off by a factor of at
# most exp(tolerance · |q·k| · scale).
FAR_TOLERANCE = {torch.float32: 1e-7, torch.bfloat16: 1e-5, torch.float16: 1e-5}

# Up to this length a sequence is one tile, if that is no larger than so many bytes: more does not fit in registers.
SHORT_LENGTH, SHORT_BYTES = 128, 8192

ROOMY_BYTES = 160 << 10

# In fp32 there are no tensor cores to use. Only from this many pairs on does "auto" save memory rather than time.
MANY_PAIRS = 2**28

# A constant, and not the answer of an import, so that torch.compile can look at it.
HAS_TRITON = importlib.util.find_spec("triton") is not None

# Where the kernels run. Triton's interpreter, in which the tests run them, is on the CPU.
DEVICES = ("cuda",)


def _kernels() -> ModuleType:
    from datransformer.ops import fused_kernels

    return fused_kernels


def _short_kernels() -> ModuleType:
    from datransformer.ops import fused_short_kernels

    return fused_short_kernels


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
    """Why this call cannot be fused, or, unless it is ``strict``, should not be; None if it can."""
    if not HAS_TRITON:
        return "triton is not installed"
    if query.device.type not in DEVICES:
        return f"query is on {query.device.type}, not on a CUDA device"
    if query.dtype not in FAR_TOLERANCE:
        return f"dtype is {query.dtype}"
    reason = common_reason_against(
        query, value, mapping=mapping, adjust=adjust, attn_mask=attn_mask, return_weights=return_weights
    )
    if reason is not None:
        return reason
    if max(tensor.shape[2] * tensor.stride(2) for tensor in (query, value)) >= 2**31:
        return "a head spans 2**31 elements or more"
    lengths = (query.shape[2], value.shape[2])
    few_pairs = query.shape[0] * query.shape[1] * lengths[0] * lengths[1] < MANY_PAIRS
    if query.dtype == torch.float32 and few_pairs and not (strict or _is_short(query, max(lengths))):
        return "the reference is faster in fp32"
    return None


def _precision(dtype: torch.dtype) -> str:
    """How Triton shall multiply matrices; in half precision the word has no meaning to it."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _width(head_dim: int) -> int:
    return max(16, _power_of_two(head_dim))


def _is_short(query: Tensor, length: int) -> bool:
    return length <= SHORT_LENGTH and length * _width(query.shape[3]) * query.element_size() <= SHORT_BYTES


def _strides(*tensors: Tensor, packed: bool) -> list[int]:
    """Strides over batch, heads and length. Packed sequences have no batch axis."""
    return [stride for tensor in tensors for stride in (0 if packed else tensor.stride(0), *tensor.stride()[1:3])]


@dataclass(frozen=True)
class _Call:
    """What one call of the kernels is about.

    Args:
        padding: key_padding_mask.
        query_starts: Where each of the packed sequences starts, and the last one ends; None: [batch, …] tensors.
        key_starts: The same for the keys.
        seed: Of dropout, one int64 number; None: none.
        query_length: Of the longest sequence.
        key_length: Of the longest sequence.
        dropout_p: Probability of dropping a weight.
    """

    query: Tensor
    padding: Tensor | None
    query_starts: Tensor | None
    key_starts: Tensor | None
    seed: Tensor | None
    query_length: int
    key_length: int
    causal: bool
    scale: float
    far_tolerance: float
    dropout_p: float

    @property
    def packed(self) -> bool:
        return self.query_starts is not None

    @property
    def sequences(self) -> int:
        return self.query.shape[0] if self.query_starts is None else self.query_starts.shape[0] - 1

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def is_short(self) -> bool:
        return _is_short(self.query, max(self.query_length, self.key_length))

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        return self.padding, self.query_starts, self.key_starts, self.seed

    @property
    def drops(self) -> tuple[int, float]:
        return int(self.dropout_p * 2**32), 1 / (1 - self.dropout_p)

    @property
    def tail(self) -> float:
        return -math.log(self.far_tolerance) if self.far_tolerance > 0 else math.inf

    @property
    def has_far_sums(self) -> bool:
        return self.far_tolerance > 0 and self.dropout_p == 0

    @property
    def constants(self) -> dict[str, Any]:
        """Everything but tile sizes that all kernels are compiled for."""
        return {
            "HEAD_DIM": self.query.shape[3],
            "BLOCK_D": _width(self.query.shape[3]),
            "CAUSAL": self.causal,
            "HAS_PADDING": self.padding is not None,
            "VARLEN": self.packed,
            "DROPOUT": self.dropout_p > 0,
            "PRECISION": _precision(self.query.dtype),
            "enable_fp_fusion": True,  # score − peak must be one multiply-add in every kernel, or it rounds differently
        }

    def tiles(self, kernel: str) -> dict[str, Any]:
        """Constants of a kernel that goes from tile to tile."""
        constants = self.constants
        shape = _tiles(kernel, constants["BLOCK_D"], self.query.dtype, _is_roomy(self.query.device))
        rows, keys, warps, stages, registers = shape
        rows = min(rows, max(16, _power_of_two(self.query_length)))
        keys = min(keys, max(16, _power_of_two(self.key_length)))
        looped = self.query_length % rows if kernel == "key" else self.key_length % keys
        return {
            **constants,
            "BLOCK_M": rows,
            "BLOCK_N": keys,
            "RAGGED": looped != 0 or constants["HEAD_DIM"] != constants["BLOCK_D"] or self.packed,
            "num_warps": warps,
            "num_stages": stages,
            **({} if registers is None or torch.version.hip else {"maxnreg": registers}),
        }

    def short(self, kernel: str) -> tuple[int, dict[str, Any]]:
        """Number of programs and constants of a kernel for which a sequence is one tile."""
        rows, keys = (max(16, _power_of_two(length)) for length in (self.query_length, self.key_length))
        warps, stages, programs = _short_tiles(kernel, rows * keys)
        together = min(16, max(1, self.sequences * self.heads // programs))
        aligned = self.query_starts is self.key_starts
        sizes = {"BLOCK_M": rows, "BLOCK_N": keys, "ROUND": together, "ALIGNED": aligned}
        programs = -(-self.sequences // together) * self.heads
        return programs, {**self.constants, **sizes, "num_warps": warps, "num_stages": stages}


def _is_roomy(device: torch.device) -> bool:
    """Whether a program may have the shared memory that data-centre GPUs since Ampere have; other GPUs have 99 KiB."""
    if device.type != "cuda":
        return True
    properties: Any = torch.cuda.get_device_properties(device)  # which torch's type hints know in part
    return bool(properties.shared_memory_per_block_optin >= ROOMY_BYTES)


def _tiles(kernel: str, head_dim: int, dtype: torch.dtype, roomy: bool) -> tuple[int, int, int, int, int | None]:
    """(query rows, keys, warps, stages, registers per thread at most) of a tile.

    Tuned on an H200, but for fp32, for head_dim above 128 and for what is not ``roomy``. The bounds on registers let 4
    programs of 128 threads, or 3, share a multiprocessor; only near tiles would have a use for more.
    """
    if dtype == torch.float32:
        return (32, 32, 4, 1, None) if head_dim > 64 else (64, 32, 4, 1, None)
    if head_dim > 128:
        return (64, 32, 4, 2, None) if roomy else (32, 32, 4, 1, None)
    if head_dim > 64 and not roomy:
        return 64, 32, 4, 2, None
    if head_dim > 64:
        return {"forward": (64, 64, 4, 3, None), "query": (128, 64, 8, 3, None), "key": (32, 64, 4, 3, None)}[kernel]
    return 64, 64, 4, 3, {"forward": 128, "query": 168, "key": None}[kernel]


def _short_tiles(kernel: str, pairs: int) -> tuple[int, int, int]:
    """(warps, stages, programs that fill the device) for a tile of so many pairs."""
    return min(8, max(1, pairs // 1024)), 3, 512


def _prefix_sums(
    call: _Call, tensor: Tensor, weight: Tensor, block: int, length: int, starts: Tensor | None, *,
    padding: Tensor | None = None, statistics: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Exclusive prefix sums over blocks of rows: [sequences, heads, blocks + 1, head_dim], and of the row counts."""
    kernels = _kernels()
    head_dim, rows = tensor.shape[3], call.sequences * call.heads
    blocks = -(-length // block)
    width = _width(head_dim)
    sums = tensor.new_empty(rows, blocks, head_dim, dtype=torch.float32)
    prefix = tensor.new_empty(rows, blocks + 1, head_dim, dtype=torch.float32)
    counts = sums if padding is None else tensor.new_empty(call.sequences, blocks, dtype=torch.float32)
    kernels.block_sums_kernel[(rows * blocks,)](
        tensor, padding, statistics, starts, weight, sums, counts,
        *_strides(tensor, packed=call.packed), call.heads, length, tensor.shape[2], blocks,
        HEAD_DIM=head_dim, BLOCK_D=width, BLOCK=block, HAS_PADDING=padding is not None,
        HAS_STATISTICS=statistics is not None, VARLEN=call.packed, PRECISION=_precision(tensor.dtype),
    )  # fmt: skip
    kernels.prefix_kernel[(rows,)](sums, prefix, blocks, head_dim, CHUNK=32, WIDTH=width)
    if padding is not None:
        counts = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    return prefix, counts


def _order(weight: Tensor) -> Tensor:
    """The heads, those with most to do first."""
    order = weight.new_empty(weight.shape, dtype=torch.int32)
    heads = len(weight)
    _kernels().order_kernel[(heads,)](weight, order, heads, HEADS=_power_of_two(heads), num_warps=1)
    return order


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.library.custom_op("datransformer::fused_attention", mutates_args=())
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    seed: Tensor | None,
    query_length: int,
    key_length: int,
    causal: bool,
    scale: float,
    far_tolerance: float,
    dropout_p: float,
    strict: bool,
) -> tuple[Tensor, Tensor]:
    """Output [batch, heads, query_length, head_dim] and statistics [batch, heads, 2, query_length].

    Packed sequences come as [1, heads, total, head_dim]. ``strict``: no second derivative, rather than a slow one.
    """
    output, statistics = _new_outputs(query, query_starts)
    query, key, value = (_rows_contiguous(tensor) for tensor in (query, key, value))
    call = _Call(
        query, key_padding_mask, query_starts, key_starts, seed,
        query_length, key_length, causal, scale, far_tolerance, dropout_p,
    )  # fmt: skip
    strides = _strides(query, key, value, output, packed=call.packed)
    numbers = (call.sequences, call.heads, query_length, key_length, query.shape[2], key.shape[2])
    if call.is_short:
        programs, constants = call.short("forward")
        _short_kernels().short_forward_kernel[(programs,)](
            query, key, value, distance_weight, distance_shift, *call.inputs, output,
            *strides, *numbers, scale, *call.drops, **constants,
        )  # fmt: skip
        return output, statistics

    # fp16 cannot hold the weights before they are normalised, and in fp32 nothing may be rounded twice.
    constants = {**call.tiles("forward"), "DARING": query.dtype == torch.bfloat16}
    sums, counts = distance_weight, distance_weight
    if call.has_far_sums:
        sums, counts = _prefix_sums(
            call, value, distance_weight, constants["BLOCK_N"], key_length, key_starts, padding=key_padding_mask
        )
    query_blocks, key_blocks = -(-query_length // constants["BLOCK_M"]), -(-key_length // constants["BLOCK_N"])
    _kernels().forward_kernel[(query_blocks * call.sequences * call.heads,)](
        query, key, value, distance_weight, distance_shift, *call.inputs, _order(distance_weight),
        sums, counts, output, statistics,
        *strides, *numbers, query_blocks, key_blocks, scale, call.tail, *call.drops, **constants,
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
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    seed: Tensor | None,
    output: Tensor,
    statistics: Tensor,
    query_length: int,
    key_length: int,
    causal: bool,
    scale: float,
    far_tolerance: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, distance_weight and distance_shift."""
    query_gradient, key_gradient, value_gradient = (_new(tensor, query_starts) for tensor in (query, key, value))
    query, key, value, gradient = (_rows_contiguous(tensor) for tensor in (query, key, value, gradient))
    call = _Call(
        query, key_padding_mask, query_starts, key_starts, seed,
        query_length, key_length, causal, scale, far_tolerance, dropout_p,
    )  # fmt: skip
    tensors = (query, key, value, distance_weight, distance_shift, *call.inputs)
    strides = _strides(query, key, value, gradient, packed=call.packed)
    numbers = (call.sequences, call.heads, query_length, key_length, query.shape[2], key.shape[2])
    if call.is_short:
        programs, constants = call.short("backward")
        slopes = query.new_empty(2, programs // call.heads, call.heads, dtype=torch.float32)
        _short_kernels().short_backward_kernel[(programs,)](
            *tensors, gradient, query_gradient, key_gradient, value_gradient, slopes[0], slopes[1],
            *strides, *_strides(query_gradient, key_gradient, value_gradient, packed=call.packed),
            *numbers, scale, *call.drops, **constants,
        )  # fmt: skip
        weight_gradient, shift_gradient = slopes.sum(1).unbind(0)
        return query_gradient, key_gradient, value_gradient, weight_gradient.clone(), shift_gradient.clone()

    kernels = _kernels()
    tensors = (*tensors, _order(distance_weight), gradient)
    delta = torch.empty_like(statistics)
    blocks = -(-query.shape[2] // 64)
    kernels.delta_kernel[(blocks * query.shape[0] * call.heads,)](
        output, gradient, statistics, delta, *output.stride()[:3], *gradient.stride()[:3],
        call.heads, query.shape[2], blocks,
        HEAD_DIM=query.shape[3], BLOCK_D=_width(query.shape[3]), BLOCK=64,
    )  # fmt: skip

    constants = call.tiles("query")
    query_blocks = -(-query_length // constants["BLOCK_M"])
    new = query.new_zeros if call.packed else query.new_empty  # a short sequence among packed ones leaves blocks out
    slopes = new(2, call.sequences, call.heads, query_blocks, dtype=torch.float32)
    kernels.query_kernel[(query_blocks * call.sequences * call.heads,)](
        *tensors, statistics, delta, query_gradient, slopes[0], slopes[1],
        *strides, *_strides(query_gradient, packed=call.packed),
        *numbers, query_blocks, scale, call.tail, *call.drops, **constants,
    )  # fmt: skip
    constants = call.tiles("key")
    sums = distance_weight
    if call.has_far_sums:
        sums, _ = _prefix_sums(
            call, gradient, distance_weight, constants["BLOCK_M"], query_length, query_starts, statistics=statistics
        )
    query_blocks, key_blocks = -(-query_length // constants["BLOCK_M"]), -(-key_length // constants["BLOCK_N"])
    kernels.key_kernel[(key_blocks * call.sequences * call.heads,)](
        *tensors, statistics, delta, sums, key_gradient, value_gradient,
        *strides, *_strides(key_gradient, value_gradient, packed=call.packed),
        *numbers, query_blocks, key_blocks, scale, call.tail, *call.drops, **constants,
    )  # fmt: skip

    # Per-tile shares, added up in a fixed order: the same bits every time.
    weight_gradient, shift_gradient = slopes.sum((1, 3)).unbind(0)
    return query_gradient, key_gradient, value_gradient, weight_gradient.clone(), shift_gradient.clone()


def _new(like: Tensor, starts: Tensor | None) -> Tensor:
    """Memory laid out as that of the input. Of packed sequences there may be tokens that belong to none."""
    memory = empty_rows_like(like)
    return memory if starts is None else memory.zero_()


def _new_outputs(query: Tensor, query_starts: Tensor | None) -> tuple[Tensor, Tensor]:
    statistics = query.new_empty(*query.shape[:2], 2, query.shape[2], dtype=torch.float32)
    return _new(query, query_starts), statistics


@fused_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    key_padding_mask: Tensor | None,
    query_starts: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    return _new_outputs(query, query_starts)


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
        *(_new(tensor, None) for tensor in (query, key, value)),
        *(tensor.new_empty(tensor.shape, dtype=wide) for tensor in (distance_weight, distance_shift)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:9], *output)
    *ctx.call, ctx.strict = inputs[9:]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients: Any
    query, key, value, weight, shift, padding, starts, *_others = ctx.saved_tensors
    _, _, causal, scale, _, dropout_p = ctx.call
    if torch.is_grad_enabled() and not (ctx.strict or dropout_p > 0 or starts is not None):
        inputs = [query, key, value, weight, shift]
        gradients = differentiable_gradients(gradient, inputs, key_padding_mask=padding, causal=causal, scale=scale)
    else:
        gradients = fused_attention_backward(gradient, *ctx.saved_tensors, *ctx.call)
    return (*gradients, *[None] * 11)


def _no_second_backward(ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError("fused attention has no second derivative: pass backend='reference'")


fused_attention.register_autograd(_backward, setup_context=_setup_context)
fused_attention_backward.register_autograd(_no_second_backward)


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
    dropout_p: float = 0.0,
    strict: bool = True,
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
        None,
        None,
        draw_seed(query) if dropout_p > 0 else None,
        query.shape[2],
        key.shape[2],
        causal,
        scale,
        FAR_TOLERANCE[query.dtype] if far_tolerance is None else far_tolerance,
        dropout_p,
        strict,
    )
    return output, None


def draw_seed(like: Tensor) -> Tensor:
    """One int64 number from the generator of the tensor's device: `torch.manual_seed` rules, graphs draw anew."""
    return torch.randint(2**63 - 1, (1,), device=like.device)


def attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    query_starts: Tensor,
    key_starts: Tensor,
    query_length: int,
    key_length: int,
    causal: bool,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """Eq. 6 for packed sequences [total, heads, head_dim], each of its own length."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # [1, H, T, D]
    output, _ = fused_attention(
        query,
        key,
        value,
        distance_weight.float().contiguous(),
        distance_shift.float().contiguous(),
        None,
        query_starts,
        key_starts,
        draw_seed(query) if dropout_p > 0 else None,
        query_length,
        key_length,
        causal,
        scale,
        FAR_TOLERANCE[query.dtype],
        dropout_p,
        True,
    )
    packed: Tensor = output.squeeze(0).transpose(0, 1)  # [T, H, D]
    return packed
