"""Train Short, Test Long: Attention with Linear Biases (Press et al., 2022), in its bidirectional form."""

from typing import Unpack

import torch
from torch import Tensor

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.relative import relative_positions, toeplitz
from datransformer.ops.softmax import softmax_attention


def slopes(num_heads: int) -> Tensor:
    """2^(−8/n), 2^(−16/n), …, for n heads; between powers of two, every other slope of the next power fills up."""
    power = 1 << (num_heads.bit_length() - 1)
    first = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return torch.tensor(first + between)  # [H]


class AlibiAttention(MultiheadAttention):
    """A fixed penalty per head that grows with distance: softmax(QKᵀ/√d − m_h·|i−j|) V. No parameters of its own."""

    def __init__(
        self, embed_dim: int, num_heads: int, head_dim: int | None = None, *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        self.slopes: Tensor
        self.register_buffer("slopes", slopes(num_heads), persistent=False)

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention with the penalty as its bias."""
        distances = relative_positions(query.shape[-2], key.shape[-2], like=query).abs()  # [Nq+Nk]
        penalty = -self.slopes.float().unsqueeze(-1) * distances  # [H, Nq+Nk]
        bias = toeplitz(penalty, query.shape[-2], key.shape[-2])  # [H, Nq, Nk]
        return softmax_attention(query, key, value, bias=bias, return_weights=return_weights, **options)
