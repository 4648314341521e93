"""Which keys a query may see. Masks follow torch.nn.MultiheadAttention: True means ignore."""

from collections.abc import Callable

import torch
from torch import Tensor


def combine_masks(
    query: Tensor, key: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Merge all masks of a call into (hidden, bias), each None or broadcastable to [batch, heads, query, key].

    ``hidden`` is bool, True = ignore. ``bias`` is what a float ``attn_mask`` adds to the scores, with its −inf
    entries moved into ``hidden``.
    """
    query_length, key_length = query.shape[-2], key.shape[-2]
    hidden, bias = None, None
    if key_padding_mask is not None:
        hidden = key_padding_mask[:, None, None, :]  # [B, 1, 1, Nk]
    if causal:
        future = torch.ones(query_length, key_length, dtype=torch.bool, device=query.device)
        future = future.triu(key_length - query_length + 1)  # [Nq, Nk]
        hidden = future if hidden is None else hidden | future
    if attn_mask is not None:
        ignored = attn_mask
        if attn_mask.dtype != torch.bool:
            ignored = attn_mask == -torch.inf
            bias = attn_mask.masked_fill(ignored, 0.0)
        hidden = ignored if hidden is None else hidden | ignored
    return hidden, bias


def hide(tensor: Tensor, hidden: Tensor | None, value: float) -> Tensor:
    """Put ``value`` wherever ``hidden`` is True."""
    return tensor if hidden is None else tensor.masked_fill(hidden, value)


def masked_softmax(hidden: Tensor | None, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A softmax over keys that adds ``bias`` and gives hidden keys no weight beside a visible one.

    Hidden scores become the most negative finite number, not −inf: a query with no visible key then has uniform
    weights, which the caller sets to zero, where −inf would put NaN into its weights and into the backward pass.
    """

    def softmax(scores: Tensor) -> Tensor:
        if bias is not None:
            scores = scores + bias
        return hide(scores, hidden, torch.finfo(scores.dtype).min).softmax(-1)

    return softmax
