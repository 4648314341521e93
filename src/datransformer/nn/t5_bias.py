"""Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (Raffel et al., 2020)."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.checks import check_positive_int
from datransformer.ops.relative import relative_positions, toeplitz
from datransformer.ops.softmax import softmax_attention


def bucket(positions: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Put query position − key position into one of ``num_buckets``, half of them for each direction.

    Of each half, the first half of the buckets holds one distance each, the rest are spaced evenly in log distance
    up to ``max_distance``, and the last one holds all that is farther.
    """
    side = num_buckets // 2
    exact = side // 2
    distances = positions.abs()
    # Guard the logarithm at distance 0, whose bucket is exact.
    far = (distances.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (side - exact)
    far = (exact + far.long()).clamp(max=side - 1)
    return torch.where(positions < 0, side, 0) + torch.where(distances < exact, distances, far)


class T5BiasAttention(MultiheadAttention):
    """A learned number per head and bucket of relative position, added to the scores.

    Differs from T5 in two ways: scores are scaled by 1/√d as in every other mixer here (T5 folds that factor into
    its initialisation), and each layer learns its own table (T5 shares one between its layers).

    Args:
        num_buckets: How many classes of relative position, a multiple of 4. T5 has 32.
        max_distance: From here on all distances share a bucket. T5 has 128.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        check_positive_int("num_buckets", num_buckets)
        check_positive_int("max_distance", max_distance)
        if num_buckets % 4:
            raise ValueError(f"num_buckets: got {num_buckets}, expected a multiple of 4")
        if max_distance <= num_buckets // 4:
            raise ValueError(
                f"max_distance: got {max_distance}, expected more than num_buckets / 4 = {num_buckets // 4}"
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.relative_bias = nn.Parameter(torch.zeros(num_heads, num_buckets))

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention with the learned table as its bias."""
        positions = relative_positions(query.shape[-2], key.shape[-2], like=query)  # [Nq+Nk]
        by_offset = self.relative_bias[:, bucket(positions, self.num_buckets, self.max_distance)]  # [H, Nq+Nk]
        bias = toeplitz(by_offset, query.shape[-2], key.shape[-2])  # [H, Nq, Nk]
        return softmax_attention(query, key, value, bias=bias, return_weights=return_weights, **options)
