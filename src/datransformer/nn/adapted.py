"""TENER: Adapting Transformer Encoder for Named Entity Recognition (Yan et al., 2019), the "Adapted Transformer"."""

from typing import Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.embedding import sinusoids
from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.relative import relative_positions, skew
from datransformer.ops.softmax import softmax_attention


class AdaptedAttention(MultiheadAttention):
    """Direction- and distance-aware relative sinusoids, scores without the 1/√d, keys without a projection.

    A_tj = q_t·k_j + q_t·R_(t−j) + u·k_j + v·R_(t−j) and softmax(A) V, the adapted attention of that paper. R is a
    sinusoid as wide as a head, shared by the heads, used as it is. The keys are the inputs, cut into heads; that
    needs ``embed_dim == num_heads * head_dim``. Where it does not hold the keys are projected; `projected` tells.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, head_dim: int | None = None, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        keys_fit = head_dim is None or num_heads * head_dim == embed_dim
        projected = ("query", "value") if keys_fit else ("query", "key", "value")
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias, projected=projected)
        self.content_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Content scores by the usual product, position scores once per offset, skewed into place."""
        positions = relative_positions(query.shape[-2], key.shape[-2], like=query)  # [Nq+Nk]
        position_query = query + self.position_bias.unsqueeze(1)  # [B, H, Nq, D]
        relative = sinusoids(positions, self.head_dim, position_query.dtype)  # [Nq+Nk, D]
        bias = skew(position_query @ relative.mT, key.shape[-2])  # [B, H, Nq, Nk]
        content = query + self.content_bias.unsqueeze(1)
        return softmax_attention(content, key, value, bias=bias, scale=1.0, return_weights=return_weights, **options)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, projected={self.projected}"
