"""Masks of transformers, where 1 and True mean look, as the library's own, where True means ignore."""

import torch
from torch import Tensor


def split_mask(attention_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """(key_padding_mask, attn_mask), as `datransformer.distance_aware_attention` takes them.

    A mask over tokens, [batch, key_length], becomes the first, which the fast paths take; a mask over pairs,
    [batch, 1 or heads, query_length, key_length], bool or added to the scores, the second.
    """
    if attention_mask is None:
        return None, None
    if attention_mask.dim() == 2:
        return attention_mask == 0, None
    if attention_mask.dim() != 4:
        raise ValueError(
            f"attention_mask: got shape {tuple(attention_mask.shape)}, expected (batch, length) or "
            "(batch, heads, query_length, key_length)"
        )
    if attention_mask.dtype == torch.bool:
        return None, ~attention_mask
    # transformers hides with the smallest number there is: as −inf, so that it hides from every adjusting method.
    smallest = torch.finfo(attention_mask.dtype).min
    return None, attention_mask.masked_fill(attention_mask <= smallest, -torch.inf)
