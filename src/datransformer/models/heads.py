"""From a vector to the answer: classes, or a rating."""

import torch
from torch import Tensor, nn

from datransformer.models.config import ModelConfig


class RatingHead(nn.Module):
    """A number on the scale of the training ratings: mean + deviation · (x·w + b).

    Args:
        dim: Width of the vectors.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    def set_scale(self, ratings: Tensor) -> None:
        """Take mean and deviation from the ratings of the training set."""
        self.mean.copy_(ratings.mean())
        self.deviation.copy_(ratings.std(correction=0).clamp(min=1e-3))

    def forward(self, vectors: Tensor) -> Tensor:
        standard: Tensor = self.linear(vectors).squeeze(-1)  # [B]
        return self.mean + self.deviation * standard


def build_head(dim: int, config: ModelConfig, classes: int) -> nn.Module:
    """The head that ``config`` names, over vectors of width ``dim``."""
    return RatingHead(dim) if config.head == "rating" else nn.Linear(dim, classes)
