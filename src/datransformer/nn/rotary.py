"""RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al., 2021)."""

from typing import Unpack

import torch
from torch import Tensor

from datransformer.nn.embedding import angles
from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.softmax import softmax_attention


def rotate(tensor: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair (2i, 2i+1) of the last axis of [..., length, dim] by the angle position · 10000^(−2i/dim)."""
    turns = angles(positions, tensor.shape[-1], tensor.dtype)  # [N, D/2]
    cos, sin = turns.cos(), turns.sin()
    real, imaginary = tensor.to(turns.dtype).unflatten(-1, (-1, 2)).unbind(-1)  # [..., N, D/2]
    turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
    return turned.flatten(-2).to(tensor.dtype)  # [..., N, D]


class RotaryAttention(MultiheadAttention):
    """Queries and keys are rotated by their position, so that their product depends on the relative position alone."""

    def __init__(
        self, embed_dim: int, num_heads: int, head_dim: int | None = None, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        if self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}, expected an even number: rotary turns pairs")

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Rotate, then plain attention. Queries are aligned to the end of the keys."""
        positions = torch.arange(key.shape[-2], device=key.device)  # [Nk]
        query_positions = torch.arange(key.shape[-2] - query.shape[-2], key.shape[-2], device=key.device)  # [Nq]
        query, key = rotate(query, query_positions), rotate(key, positions)
        return softmax_attention(query, key, value, return_weights=return_weights, **options)
