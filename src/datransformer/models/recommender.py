"""News recommendation: NRMS (Wu et al., 2019) with any of our attentions at both levels (Section 4.1: MIND)."""

import torch
from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.models.text import SequenceEncoder, TextEncoder, gather
from datransformer.nn.flat import Flat


class Recommender(nn.Module):
    """Title words to a news vector, clicked news to a user vector, their dot product to a click score.

    Args:
        vocabulary: Number of token ids.
        config: The parts.
    """

    def __init__(self, vocabulary: int, config: ModelConfig) -> None:
        super().__init__()
        self.text = TextEncoder(vocabulary, config)
        self.user = SequenceEncoder(config)

    def forward(self, titles: Tensor | Flat, history: Tensor, candidates: Tensor) -> Tensor:
        """Click scores [batch, candidates], −inf for those that are padding.

        Args:
            titles: ``[news, length]`` token ids of every news item that the batch names, 0 = padding.
            history: ``[batch, clicked]`` rows of ``titles``, −1 = none, oldest first.
            candidates: ``[batch, candidates]`` rows of ``titles``, −1 = none.
        """
        return self.score(self.text.in_groups(titles), history, candidates)

    def score(self, news: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        """As `forward`, for news vectors [news, width] that are already there."""
        users = self.user(*gather(news, history))  # [B, E]
        offered, padding = gather(news, candidates)  # [B, C, E]
        scores: Tensor = (offered @ users.unsqueeze(-1)).squeeze(-1)  # [B, C]
        return scores.masked_fill(padding, -torch.inf)
