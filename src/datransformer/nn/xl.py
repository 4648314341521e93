"""Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context (Dai et al., 2019)."""

from typing import Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.embedding import sinusoids
from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.relative import relative_positions, skew
from datransformer.ops.softmax import softmax_attention


class TransformerXLAttention(MultiheadAttention):
    """Relative sinusoids with their own key projection, and two learned biases in place of the query's position.

    A_ij = (q_i + u)·k_j + (q_i + v)·W_R R_(i−j), scaled by 1/√d, Section 3.3 of that paper. The segment-level memory
    needs nothing here: a key longer than the query is earlier context. `Encoder.forward_segment` carries it along.
    That paper only looks back; here i−j may be negative, and the sinusoid R tells the sides apart.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, head_dim: int | None = None, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        self.position_proj = nn.Linear(embed_dim, self.num_heads * self.head_dim, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        nn.init.xavier_uniform_(self.position_proj.weight)

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Content scores by the usual product, position scores once per offset, skewed into place."""
        positions = relative_positions(query.shape[-2], key.shape[-2], like=query)  # [Nq+Nk]
        relative = self.position_proj(sinusoids(positions, self.embed_dim, self.position_proj.weight.dtype))
        relative = relative.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)  # [H, Nq+Nk, D]
        by_offset = (query + self.position_bias.unsqueeze(1)) @ relative.mT  # [B, H, Nq, Nq+Nk]
        bias = skew(by_offset, key.shape[-2]) / self.head_dim**0.5  # [B, H, Nq, Nk]
        content = query + self.content_bias.unsqueeze(1)
        return softmax_attention(content, key, value, bias=bias, return_weights=return_weights, **options)
