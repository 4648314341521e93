"""Self-Attention with Relative Position Representations (Shaw et al., 2018)."""

from typing import Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.checks import check_positive_int
from datransformer.ops.relative import relative_positions, skew, unskew
from datransformer.ops.softmax import softmax_attention


class RelativePositionAttention(MultiheadAttention):
    """Learned embeddings of the clipped relative position, one set added to the keys and one to the values.

    e_ij = q_i (k_j + a^K_clip(j−i)) / √d and z_i = Σ_j α_ij (v_j + a^V_clip(j−i)), Eqs. 4 and 3 of that paper, with
    clip(x) = max(−k, min(k, x)). The heads share the embeddings, as there.

    Args:
        max_distance: The paper's k, beyond which all positions on one side are the same. 16 as in its base model.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        max_distance: int = 16,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        check_positive_int("max_distance", max_distance)
        self.max_distance = max_distance
        self.relative_key = nn.Parameter(torch.empty(2 * max_distance + 1, self.head_dim))
        self.relative_value = nn.Parameter(torch.empty(2 * max_distance + 1, self.head_dim))
        nn.init.xavier_uniform_(self.relative_key)
        nn.init.xavier_uniform_(self.relative_value)

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """The pairwise terms are computed once per offset and skewed into place, never as [query, key, head_dim]."""
        key_minus_query = -relative_positions(query.shape[-2], key.shape[-2], like=query)  # [Nq+Nk]
        index = key_minus_query.clamp(-self.max_distance, self.max_distance) + self.max_distance
        by_offset = query @ self.relative_key[index].to(query.dtype).mT  # [B, H, Nq, Nq+Nk]
        bias = skew(by_offset, key.shape[-2]) / self.head_dim**0.5  # [B, H, Nq, Nk]
        mixed, weights = softmax_attention(query, key, value, bias=bias, return_weights=True, **options)
        assert weights is not None
        mixed = mixed + unskew(weights) @ self.relative_value[index].to(weights.dtype)  # [B, H, Nq, D]
        return mixed, weights if return_weights else None
