"""Sinusoidal positions (Vaswani et al., 2017), absolute and relative."""

import math

import torch
from torch import Tensor, nn


def angles(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Angle p / 10000^(2i/dim) of every position p and pair of dimensions i: [length] to [length, ⌈dim/2⌉].

    In fp32 at least, whatever ``dtype`` is: bf16 cannot count past 256.
    """
    wide = torch.promote_types(dtype, torch.float32)
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=wide)
    return positions.to(wide).unsqueeze(-1) * torch.exp(pairs * (-math.log(10000.0) / dim))  # [N, ⌈dim/2⌉]


def sinusoids(positions: Tensor, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/dim)), PE(p, 2i+1) = cos(…): ``positions`` [length] to [length, dim].

    Positions may be negative: the sine half then changes sign, which is how the relative forms tell left from right.
    """
    turns = angles(positions, dim, dtype)  # [N, ⌈dim/2⌉]
    interleaved = torch.stack((turns.sin(), turns.cos()), dim=-1).flatten(-2)  # [N, 2·⌈dim/2⌉]
    return interleaved[:, :dim].to(dtype)  # [N, dim]


class SinusoidalPositions(nn.Module):
    """Add sinusoidal positions to embeddings [batch, length, embed_dim]. Has no parameters and no longest length."""

    def forward(self, embeddings: Tensor, positions: Tensor | None = None) -> Tensor:
        """``positions`` [length] of the embeddings, 0, 1, 2, … if None."""
        if positions is None:
            positions = torch.arange(embeddings.shape[-2], device=embeddings.device)
        return embeddings + sinusoids(positions, embeddings.shape[-1], embeddings.dtype)
