"""Plain softmax attention with an additive bias: what every mixer but the distance-aware one comes down to."""

import math

import torch
from torch import Tensor

from datransformer.ops.masking import combine_masks, hide, masked_softmax


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(QKᵀ · scale + bias) V, and the weights if asked for.

    Shapes and masks as in `datransformer.distance_aware_attention`; ``bias`` broadcasts to the scores. A query with
    no visible key gets zeros. Without the weights it runs on torch's fused attention.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    hidden, added = combine_masks(query, key, key_padding_mask, attn_mask, causal)
    if added is not None:
        bias = added if bias is None else bias + added

    if return_weights:
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = (query @ key.mT).to(wide) * scale  # [B, H, Nq, Nk]
        weights = hide(masked_softmax(hidden, bias)(scores), hidden, 0.0)
        weights = torch.dropout(weights, dropout_p, train=True) if dropout_p > 0 else weights
        weights = weights.to(value.dtype)
        return weights @ value, weights  # [B, H, Nq, D]

    mask = None
    alone = None if hidden is None else hidden.all(-1, keepdim=True)  # queries with no visible key
    if bias is not None:
        mask = hide(bias.to(query.dtype), hidden, torch.finfo(query.dtype).min)
    elif hidden is not None and alone is not None:
        # torch's fused attention reads True as "take part". Where nothing did, some of its kernels put NaN into the
        # gradients of all keys, so such a query sees everything, and what it saw is dropped.
        mask = hidden.logical_not() | alone
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout_p, scale=scale)
    return hide(output, alone, 0.0), None
