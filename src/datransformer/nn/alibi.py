"""Train Short, Test Long: Attention with Linear Biases (Press et al., 2022), in its bidirectional form."""

from typing import Unpack

import torch
from torch import Tensor

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.relative import relative_positions, toeplitz
from datransformer.ops.softmax import softmax_attention


def slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """2^(−8/n), 2^(−16/n), …, for n heads; between powers of two, every other slope of the next power fills up."""
    power = 1 << (num_heads.bit_length() - 1)
    first = torch.arange(1, power + 1, device=device) * (-8 / power)
    between = (2 * torch.arange(num_heads - power, device=device) + 1) * (-4 / power)
    return torch.cat((first, between)).exp2()  # [H]


class AlibiAttention(MultiheadAttention):
    """A fixed penalty per head that grows with distance: softmax(QKᵀ/√d − m_h·|i−j|) V. No parameters of its own."""

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention with the penalty as its bias."""
        distances = relative_positions(query.shape[-2], key.shape[-2], like=query).abs()  # [Nq+Nk]
        penalty = -slopes(self.num_heads, query.device).unsqueeze(-1) * distances  # [H, Nq+Nk]
        bias = toeplitz(penalty, query.shape[-2], key.shape[-2])  # [H, Nq, Nk]
        return softmax_attention(query, key, value, bias=bias, return_weights=return_weights, **options)
