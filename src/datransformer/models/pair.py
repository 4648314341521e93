"""Two texts, one answer, each text encoded alone by the same encoder (Section 4.1 does not say how a pair enters)."""

import torch
from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.models.heads import build_head
from datransformer.models.text import TextEncoder
from datransformer.nn.dropout import Dropout
from datransformer.nn.flat import Flat


class SiameseModel(nn.Module):
    """Vectors u and v of the two texts, compared as [u; v; |u−v|; u·v] (Conneau et al., 2017).

    Args:
        vocabulary: Number of token ids.
        classes: Number of classes.
        config: The parts.
    """

    def __init__(self, vocabulary: int, classes: int, config: ModelConfig) -> None:
        super().__init__()
        self.text = TextEncoder(vocabulary, config)
        self.compare = nn.Sequential(
            nn.Linear(4 * config.encoder_dim, config.encoder_dim), nn.ReLU(), Dropout(config.dropout)
        )
        self.head = build_head(config.encoder_dim, config, classes)

    def forward(self, first: Tensor | Flat, second: Tensor | None = None) -> Tensor:
        """``first`` [batch, length] and ``second`` [batch, other length], 0 = padding; or all end to end in ``first``.

        End to end, the second halves of all pairs come behind the first ones.
        """
        if second is None and not isinstance(first, Flat):
            raise TypeError("second: got None, expected the second text of each pair, as in first")
        u, v = self.text(first).chunk(2) if second is None else (self.text(first), self.text(second))  # [B, E]
        answer: Tensor = self.head(self.compare(torch.cat((u, v, (u - v).abs(), u * v), dim=-1)))
        return answer
