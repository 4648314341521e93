"""The two levels that every task shape is built from: words to a text vector, vectors to one vector."""

import torch
from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.nn.dropout import Dropout
from datransformer.nn.pooling import POOLINGS

PADDING = 0  # the id that `datransformer.data.tokenizer` keeps for padding


class SequenceEncoder(nn.Module):
    """Vectors [batch, length, embed_dim] to one vector each [batch, embed_dim]: encoder, pooling.

    Args:
        config: Which encoder and which pooling.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.encoder = config.encoder()
        self.pooling = POOLINGS[config.pooling](config.embed_dim)

    def forward(self, vectors: Tensor, padding: Tensor) -> Tensor:
        """``padding`` [batch, length] bool, True = ignore. A sequence of nothing but padding gives zeros."""
        pooled: Tensor = self.pooling(self.encoder(self.dropout(vectors), padding), padding)
        return pooled  # [B, E]


class TextEncoder(nn.Module):
    """Token ids [batch, length], 0 = padding, to one vector a text [batch, embed_dim].

    Args:
        vocabulary: Number of token ids.
        config: Which encoder and which pooling.
    """

    def __init__(self, vocabulary: int, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.embed_dim, padding_idx=PADDING)
        self.sequence = SequenceEncoder(config)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.sequence(self.embedding(tokens), tokens == PADDING)
        return vectors  # [B, E]


def gather(vectors: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``vectors`` [count, dim] at ``index`` [batch, length], where −1 is padding, and the padding mask."""
    padding = index < 0  # [B, L]
    rows = vectors.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)  # [B, L, E]
    return torch.where(padding.unsqueeze(-1), vectors.new_zeros(()), rows), padding
