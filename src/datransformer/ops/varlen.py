"""Attention over packed sequences of different lengths: no padding is stored and none is computed with."""

import math

import torch
from torch import Tensor

from datransformer.ops import fused
from datransformer.ops.attention import BACKENDS, AttentionOptions, distance_aware_attention
from datransformer.ops.checks import (
    check_choice,
    check_dropout,
    check_floating,
    check_positive_float,
    check_shape,
    check_tensor,
)


def distance_aware_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    mapping: str = "learnable_sigmoid",
    adjust: str = "early_multiply",
    causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """`distance_aware_attention` for sequences laid end to end, named and shaped as flash-attention's varlen.

    Where the fused kernels cannot run the call, the sequences are padded, attended and packed again.

    Args:
        query: ``[total_q, heads, head_dim]``, the tokens of all sequences one after another.
        key: ``[total_k, heads, head_dim]``.
        value: ``[total_k, heads, head_dim]``.
        distance_weight: w of each head, ``[heads]``.
        distance_shift: v of each head, ``[heads]``.
        cu_seqlens_q: ``[sequences + 1]``, int32 or int64: where each sequence starts in ``query``, and at the end
            total_q. A sequence may be empty.
        cu_seqlens_k: The same for the keys; that of the queries if None.
        max_seqlen_q: Length of the longest sequence. If None it is looked up, and ``cu_seqlens_q`` checked, for which
            a GPU must be waited for. On a GPU what is beyond it gets zeros.
        max_seqlen_k: The same for the keys.
        mapping: As in `distance_aware_attention`, and so for the rest.
        adjust: A key of `ADJUSTMENTS`.
        causal: Hide the keys that lie after the query; the last query of a sequence sits at its last key.
        dropout_p: Probability of dropping an attention weight.
        scale: Factor on QKᵀ, 1/√head_dim if None.
        backend: ``"auto"`` or a key of `BACKENDS`.

    Returns:
        ``[total_q, heads, head_dim]``.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_floating(name, tensor)
        if tensor.dim() != 3:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected (total, heads, head_dim)")
    total_q, heads, head_dim = query.shape
    check_shape("key", key, "(total_k, heads, head_dim)", (key.shape[0], heads, head_dim))
    check_shape("value", value, "(total_k, heads, value_dim)", (key.shape[0], heads, value.shape[2]))
    for name, parameter in (("distance_weight", distance_weight), ("distance_shift", distance_shift)):
        check_floating(name, parameter)
        check_shape(name, parameter, "(heads,)", (heads,))
    check_choice("backend", backend, ["auto", *BACKENDS])
    check_dropout("dropout_p", dropout_p)
    if scale is not None:
        check_positive_float("scale", scale)
    query_starts, longest_q = _check_starts("q", cu_seqlens_q, max_seqlen_q, query)
    key_starts, longest_k = query_starts, longest_q
    if cu_seqlens_k is not None and cu_seqlens_k is not cu_seqlens_q:
        key_starts, longest_k = _check_starts("k", cu_seqlens_k, max_seqlen_k, key)
        check_shape("cu_seqlens_k", key_starts, "the shape of cu_seqlens_q", query_starts.shape)
    elif max_seqlen_k is not None:
        _, longest_k = _check_starts("k", cu_seqlens_q, max_seqlen_k, key)
    elif total_q != key.shape[0]:
        raise ValueError(f"cu_seqlens_k: got None, expected one, for key has {key.shape[0]} tokens and query {total_q}")

    options: AttentionOptions = {
        "mapping": mapping,
        "adjust": adjust,
        "causal": causal,
        "dropout_p": dropout_p,
        "scale": scale,
        "backend": backend,
    }
    packed = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]  # [1, H, T, D]
    reason = fused.reason_against(
        packed[0],
        packed[2],
        mapping=mapping,
        adjust=adjust,
        attn_mask=None,
        dropout_p=dropout_p,
        return_weights=False,
        strict=True,
    )
    if reason is None and backend in ("auto", "fused"):
        return fused.attention_varlen(
            query,
            key,
            value,
            distance_weight,
            distance_shift,
            query_starts=query_starts,
            key_starts=key_starts,
            query_length=longest_q,
            key_length=longest_k,
            causal=causal,
            scale=1 / math.sqrt(head_dim) if scale is None else scale,
            dropout_p=dropout_p,
        )
    if backend == "fused":
        raise ValueError(f"backend: got 'fused', which cannot run this call: {reason}")
    return _padded(
        query, key, value, distance_weight, distance_shift, query_starts, key_starts, longest_q, longest_k, options
    )  # fmt: skip


def _check_starts(which: str, starts: object, longest: int | None, tokens: Tensor) -> tuple[Tensor, int]:
    """The starts, contiguous, and the length of the longest sequence."""
    name = f"cu_seqlens_{which}"
    check_tensor(name, starts)
    assert isinstance(starts, Tensor)
    if starts.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: got dtype {starts.dtype}, expected torch.int32 or torch.int64")
    if starts.dim() != 1 or starts.shape[0] < 2:
        raise ValueError(f"{name}: got shape {tuple(starts.shape)}, expected (sequences + 1,)")
    if starts.device != tokens.device:
        raise ValueError(f"{name}: got a tensor on {starts.device}, expected that of its tokens, {tokens.device}")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 0):
        raise ValueError(f"max_seqlen_{which}: got {longest!r}, expected an int of at least 0")
    if longest is None or (starts.device.type == "cpu" and not torch.compiler.is_compiling()):
        lengths = starts.diff()
        if starts[0] != 0 or starts[-1] != tokens.shape[0] or lengths.min() < 0:
            shown = ", ".join(map(str, starts[:6].tolist())) + (", …" if len(starts) > 6 else "")
            raise ValueError(
                f"{name}: got {shown}, expected numbers that rise from 0 to the number of "
                f"tokens, {tokens.shape[0]}: where each sequence starts, not how long it is"
            )
        largest = int(lengths.max().item())
        if longest is not None and longest < largest:
            raise ValueError(f"max_seqlen_{which}: got {longest}, expected the longest length, {largest}, or more")
        longest = largest
    return starts.contiguous(), longest


def _places(starts: Tensor, longest: int, total: int) -> tuple[Tensor, Tensor]:
    """Sequence and column of each token, the sequences aligned at their ends, as `distance_aware_attention` does."""
    lengths = starts.diff().long()  # [S]
    sequence = torch.repeat_interleave(lengths, output_size=total)  # [T]
    return sequence, torch.arange(total, device=starts.device) - starts[1:].long()[sequence] + longest


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_weight: Tensor,
    distance_shift: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_q: int,
    longest_k: int,
    options: AttentionOptions,
) -> Tensor:
    """Pad on the left, attend, pack."""
    sequences = query_starts.shape[0] - 1
    longest_q, longest_k = max(longest_q, 1), max(longest_k, 1)
    query_places = _places(query_starts, longest_q, query.shape[0])
    key_places = query_places
    if key_starts is not query_starts:
        key_places = _places(key_starts, longest_k, key.shape[0])

    def spread(tensor: Tensor, places: tuple[Tensor, Tensor], longest: int) -> Tensor:
        wide = tensor.new_zeros(sequences, longest, *tensor.shape[1:])
        return wide.index_put(places, tensor).transpose(1, 2)  # [S, H, N, D]

    hidden = torch.ones(sequences, longest_k, dtype=torch.bool, device=query.device)
    hidden = hidden.index_put(key_places, torch.zeros((), dtype=torch.bool, device=query.device))
    options["key_padding_mask"] = hidden
    mixed = distance_aware_attention(
        spread(query, query_places, longest_q),
        spread(key, key_places, longest_k),
        spread(value, key_places, longest_k),
        distance_weight,
        distance_shift,
        **options,
    )
    return mixed.transpose(1, 2)[query_places]  # [T, H, D]
