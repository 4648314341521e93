"""The public function: checks its input, picks a backend."""

import math
from contextlib import nullcontext
from typing import Literal, Protocol, TypedDict, Unpack, overload

import torch
from torch import Tensor

from datransformer.ops import blocked, fused, reference
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.checks import (
    check_attn_mask,
    check_bool_mask,
    check_choice,
    check_dropout,
    check_floating,
    check_length,
    check_positive_float,
    check_positive_int,
    check_shape,
    under_autocast,
)
from datransformer.ops.mapping import MAPPINGS


class Backend(Protocol):
    """A module that computes the attention, or says why it cannot."""

    def reason_against(
        self,
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
        """Why this call is beyond the backend; None if it is not.

        ``strict`` where the backend was asked for by name: then it matters whether it can, not whether it is fast.
        """

    def attention(
        self,
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
        strict: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The output and, where there are any, the weights.

        ``strict`` where the backend was asked for by name: then nothing, a second derivative either, falls back.
        """


# "auto" takes the first that has no reason against the call.
BACKENDS: dict[str, Backend] = {"fused": fused, "blocked": blocked, "reference": reference}


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `distance_aware_attention` but ``return_weights``, which changes what it returns."""

    mapping: str
    adjust: str
    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    causal: bool
    dropout_p: float
    scale: float | None
    backend: str


@overload
def distance_aware_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    return_weights: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...


@overload
def distance_aware_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    return_weights: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...


def distance_aware_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    *,
    mapping: str = "learnable_sigmoid",
    adjust: str = "early_multiply",
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention whose scores are re-scaled by the real distance between tokens (Eq. 6 of the paper).

    With the default ``mapping`` and ``adjust`` this is softmax(ReLU(QKᵀ) · f(w·|i−j|; v) · scale) V.

    Args:
        query: ``[batch, heads, query_length, head_dim]``. Queries are aligned to the end of the keys: whatever the
            lengths, the last query sits at the position of the last key, as in decoding with a cache. In
            cross-attention between two texts a distance has that meaning too, and no other.
        key: ``[batch, heads, key_length, head_dim]``.
        value: ``[batch, heads, key_length, value_dim]``.
        distance_weight: w of each head, ``[heads]``. Negative looks near, positive looks far.
        distance_shift: v of each head, ``[heads]``: T for the mapping ``clip``, b for ``linear``, unused by
            ``exponent`` and ``sigmoid``.
        mapping: A key of `MAPPINGS`.
        adjust: A key of `ADJUSTMENTS`.
        key_padding_mask: ``[batch, key_length]`` bool, True = ignore that key.
        attn_mask: ``[query_length, key_length]`` or ``[batch, heads, query_length, key_length]``, where batch and
            heads may be 1. Bool, True = ignore that pair; or float, added to what goes into the softmax. Hide with
            bool or −inf: a large negative number is only a small weight, which ``late_add`` then adds to.
        causal: Hide the keys that lie after the query.
        dropout_p: Probability of dropping an attention weight. Always applied: pass 0 when evaluating.
        scale: Factor on QKᵀ, 1/√head_dim if None.
        return_weights: Also return what the values were multiplied with, ``[batch, heads, query_length, key_length]``.
            After dropout, and in the late methods, the weights of a query do not sum to one.
        backend: ``"auto"``, or a key of `BACKENDS`, which then raises where it cannot run the call. ``"fused"`` needs a
            CUDA device and Triton, ``"blocked"`` a CPU, fp32 and the extension built; both need the default mapping and
            adjusting method, a head_dim of up to 256 that is also value_dim, and neither attn_mask nor the weights.
            `explain_backends` says which one a call would get, and why no other. What dropout drops follows torch's
            generator, but differs between backends.

    Returns:
        ``[batch, heads, query_length, value_dim]``, or that and the weights. A query with no visible key gets zeros.
    """
    check_choice("mapping", mapping, MAPPINGS)
    check_choice("adjust", adjust, ADJUSTMENTS)
    check_choice("backend", backend, ["auto", *BACKENDS])
    check_dropout("dropout_p", dropout_p)
    if not isinstance(causal, bool):
        raise TypeError(f"causal: got {type(causal).__name__}, expected a bool")
    if scale is not None:
        check_positive_float("scale", scale)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_floating(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected (batch, heads, length, head_dim)")

    batch, heads, query_length, head_dim = query.shape
    key_length = key.shape[2]
    check_length("query", query_length)
    check_positive_int("head_dim", head_dim)
    check_shape("key", key, "(batch, heads, key_length, head_dim)", (batch, heads, key_length, head_dim))
    check_shape("value", value, "(batch, heads, key_length, value_dim)", (batch, heads, key_length, value.shape[3]))
    for name, parameter in (("distance_weight", distance_weight), ("distance_shift", distance_shift)):
        check_floating(name, parameter)
        check_shape(name, parameter, "(heads,) of a query (batch, heads, length, head_dim)", (heads,))
    if key_padding_mask is not None:
        check_bool_mask("key_padding_mask", key_padding_mask, "(batch, key_length)", (batch, key_length))
    if attn_mask is not None:
        check_attn_mask("attn_mask", attn_mask, (batch, heads, query_length, key_length))

    autocast_off: nullcontext[None] | torch.autocast = nullcontext()
    if under_autocast(query):
        query, key, value = _as_autocast(query, key, value)
        autocast_off = torch.autocast(query.device.type, enabled=False)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name}: got dtype {tensor.dtype}, expected that of query, {query.dtype}")

    for name in BACKENDS if backend == "auto" else [backend]:
        reason = BACKENDS[name].reason_against(
            query,
            value,
            mapping=mapping,
            adjust=adjust,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            return_weights=return_weights,
            strict=backend != "auto",
        )
        if reason is None:
            break
    else:
        raise ValueError(f"backend: got {backend!r}, which cannot run this call: {reason}")

    with autocast_off:
        output, weights = BACKENDS[name].attention(
            query,
            key,
            value,
            distance_weight,
            distance_shift,
            mapping=mapping,
            adjust=adjust,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            causal=causal,
            dropout_p=dropout_p,
            scale=1 / math.sqrt(head_dim) if scale is None else scale,
            strict=backend != "auto",
        )
    if not return_weights:
        return output
    assert weights is not None
    return output, weights


def explain_backends(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mapping: str = "learnable_sigmoid",
    adjust: str = "early_multiply",
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
) -> dict[str, str | None]:
    """Why each backend would not be taken for a call of `distance_aware_attention`, by name, in order of preference.

    ``backend="auto"`` takes the first with None. Arguments that make no difference, as padding and causal masks, are
    not asked for.
    """
    if under_autocast(query):
        query, key, value = _as_autocast(query, key, value)
    return {
        name: backend.reason_against(
            query,
            value,
            mapping=mapping,
            adjust=adjust,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            return_weights=return_weights,
            strict=False,
        )
        for name, backend in BACKENDS.items()
    }


def _as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    low = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(low) for tensor in tensors)
