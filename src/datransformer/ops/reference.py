"""Distance-aware attention in plain torch: every variant, any dtype, any device. The truth the fast paths answer to.

O(query · key) memory. Every operation is differentiable twice.
"""

from typing import Any

import torch
from torch import Tensor

from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.mapping import distance_coefficients
from datransformer.ops.masking import combine_masks, hide, masked_softmax
from datransformer.ops.relative import relative_positions, toeplitz


class _Widen(torch.autograd.Function):
    """fp16 to fp32; on the way back a gradient beyond ±65504 becomes ±65504 instead of an infinity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _narrow(gradient, torch.float16)


def _widen(tensor: Tensor) -> Tensor:
    return _Widen.apply(tensor) if tensor.dtype == torch.float16 else tensor  # type: ignore[no-untyped-call]


def _narrow(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float16:
        largest = torch.finfo(dtype).max
        tensor = tensor.clamp(-largest, largest)
    return tensor.to(dtype)


def reason_against(query: Tensor, value: Tensor, **call: Any) -> None:
    """Nothing is beyond the reference."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    mapping: str,
    adjust: str,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: bool,
    dropout_p: float,
    scale: float,
    strict: bool = True,
) -> tuple[Tensor, Tensor]:
    """Eq. 6 and its variants. Takes checked arguments; `datransformer.distance_aware_attention` is the public door.

    The distances, the adjusting and the softmax are computed in fp32 at least. The two matrix products are computed
    in the dtype of the inputs, except fp16: at v = 50 a coefficient reaches 5e21, far outside its range, so there
    everything is fp32 inside and outputs and gradients saturate at ±65504. ``strict`` has no meaning here.
    """
    dtype = query.dtype
    query, key, value = _widen(query), _widen(key), _widen(value)
    wide = torch.promote_types(query.dtype, torch.float32)

    query_length, key_length = query.shape[-2], key.shape[-2]
    distances = relative_positions(query_length, key_length, like=query).abs().to(wide)  # [Nq+Nk]
    coefficients = distance_coefficients(
        distances, _widen(distance_weight).to(wide), _widen(distance_shift).to(wide), mapping
    )  # [H, Nq+Nk]
    coefficients = toeplitz(coefficients, query_length, key_length)  # [H, Nq, Nk]
    output, weights = adjusted_attention(
        query,
        key,
        value,
        coefficients,
        adjust=adjust,
        key_padding_mask=key_padding_mask,
        attn_mask=attn_mask,
        causal=causal,
        dropout_p=dropout_p,
        scale=scale,
    )
    return _narrow(output, dtype), _narrow(weights, dtype)


def adjusted_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    coefficients: Tensor,
    *,
    adjust: str,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: bool,
    dropout_p: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention whose scores are adjusted by any ``coefficients`` [heads, query, key]; the output and the weights."""
    hidden, bias = combine_masks(query, key, key_padding_mask, attn_mask, causal)
    scores = (query @ key.mT).to(coefficients.dtype) * scale  # [B, H, Nq, Nk]
    weights = ADJUSTMENTS[adjust](scores, coefficients, masked_softmax(hidden, bias))
    weights = hide(weights, hidden, 0.0)
    weights = torch.dropout(weights, dropout_p, train=True) if dropout_p > 0 else weights
    weights = weights.to(value.dtype)
    return weights @ value, weights  # [B, H, Nq, D], [B, H, Nq, Nk]
