"""From token vectors to one vector a text. Padding has a weight of 0, and a text of nothing else gives zeros."""

import math

import torch
from torch import Tensor, nn

from datransformer.ops.checks import check_bool_mask, check_floating, check_positive_int, check_shape
from datransformer.ops.masking import hide, masked_softmax


class Pooling(nn.Module):
    """A weighted sum over tokens. A subclass says how to weigh, in `weigh`, or does something else, in `pool`.

    Args:
        embed_dim: Width of the token vectors.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        check_positive_int("embed_dim", embed_dim)
        self.embed_dim = embed_dim

    def weigh(self, inputs: Tensor, padding: Tensor) -> Tensor:
        """Weights [batch, length] for ``inputs`` [batch, length, embed_dim]; those of ``padding`` are ignored."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """[batch, length, embed_dim] to [batch, embed_dim]; ``key_padding_mask`` [batch, length], True = ignore."""
        check_floating("inputs", inputs)
        if inputs.dim() != 3:
            raise ValueError(f"inputs: got shape {tuple(inputs.shape)}, expected (batch, length, embed_dim)")
        check_shape("inputs", inputs, "(batch, length, embed_dim)", (*inputs.shape[:2], self.embed_dim))
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        check_bool_mask("key_padding_mask", key_padding_mask, "(batch, length)", inputs.shape[:2])
        return self.pool(inputs, key_padding_mask)

    def pool(self, inputs: Tensor, padding: Tensor) -> Tensor:
        """``inputs`` [batch, length, embed_dim] to [batch, embed_dim], without those of ``padding``."""
        weights = hide(self.weigh(inputs, padding), padding, 0.0).to(inputs.dtype)  # [B, N]
        return (weights.unsqueeze(1) @ inputs).squeeze(1)  # [B, E]


class AdditiveAttentionPooling(Pooling):
    """softmax(qᵀ tanh(W x + b)) with a learned query q (Yang et al. 2016; the pooling of NRMS, Wu et al. 2019).

    Args:
        embed_dim: Width of the token vectors.
        hidden_dim: Width of the query, embed_dim if None.
    """

    def __init__(self, embed_dim: int, hidden_dim: int | None = None) -> None:
        super().__init__(embed_dim)
        if hidden_dim is None:
            hidden_dim = embed_dim
        check_positive_int("hidden_dim", hidden_dim)
        self.hidden = nn.Linear(embed_dim, hidden_dim)
        self.query = nn.Linear(hidden_dim, 1, bias=False)

    def weigh(self, inputs: Tensor, padding: Tensor) -> Tensor:
        scores = self.query(torch.tanh(self.hidden(inputs))).squeeze(-1)  # [B, N]
        return masked_softmax(padding, None)(scores.to(torch.promote_types(scores.dtype, torch.float32)))


class MeanPooling(Pooling):
    """The mean over tokens."""

    def weigh(self, inputs: Tensor, padding: Tensor) -> Tensor:
        count = padding.logical_not().sum(-1, keepdim=True).clamp(min=1)  # [B, 1]
        return torch.ones_like(padding, dtype=torch.promote_types(inputs.dtype, torch.float32)) / count  # [B, N]


class MaxPooling(Pooling):
    """The largest value of each dimension over tokens (Collobert et al., 2011)."""

    def pool(self, inputs: Tensor, padding: Tensor) -> Tensor:
        padding = padding.unsqueeze(-1)  # [B, N, 1]
        largest = hide(inputs, padding, -math.inf).amax(1)  # [B, E]
        return hide(largest, padding.all(1), 0.0)


class FirstTokenPooling(Pooling):
    """The first token that is not padding."""

    def weigh(self, inputs: Tensor, padding: Tensor) -> Tensor:
        return padding.logical_not().cumsum(-1) == 1  # [B, N]


POOLINGS: dict[str, type[Pooling]] = {
    "additive": AdditiveAttentionPooling,
    "mean": MeanPooling,
    "max": MaxPooling,
    "first": FirstTokenPooling,
}
