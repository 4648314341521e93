"""The two levels that every task shape is built from: words to a text vector, vectors to one vector."""

import torch
from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.nn.dropout import Dropout
from datransformer.nn.flat import Flat
from datransformer.nn.pooling import POOLINGS

PADDING = 0  # the id that `datransformer.data.tokenizer` keeps for padding
GROUPS = 4  # of titles or sentences: more would save little padding, and cost as much in small batches


class SequenceEncoder(nn.Module):
    """Vectors [batch, length, width] to one vector each [batch, width]: encoder, pooling.

    Args:
        config: Which encoder and which pooling.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.encoder = config.encoder()
        self.pooling = POOLINGS[config.pooling](config.encoder_dim)

    def forward(self, vectors: Tensor, padding: Tensor) -> Tensor:
        """``padding`` [batch, length] bool, True = ignore. A sequence of nothing but padding gives zeros."""
        pooled: Tensor = self.pooling(self.encoder(self.dropout(vectors), padding), padding)
        return pooled  # [B, E]

    def forward_flat(self, vectors: Tensor, flat: Flat) -> Tensor:
        """As `forward`, for texts end to end, [tokens, width]; the texts are those of all parts, one after another."""
        hidden = self.encoder.forward_flat(self.dropout(vectors), flat)
        return torch.cat([self.pooling(part, padding) for part, padding in flat.spread(hidden)])


class TextEncoder(nn.Module):
    """Token ids [batch, length], 0 = padding, or texts end to end, to one vector a text [batch, width].

    Args:
        vocabulary: Number of token ids.
        config: Which encoder and which pooling.
    """

    def __init__(self, vocabulary: int, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.embed_dim, padding_idx=PADDING)
        self.embedding.weight.requires_grad_(not config.freeze_vectors)
        self.scale = config.embed_scale
        self.width = config.encoder_dim
        self.projection = nn.Identity() if config.width is None else nn.Linear(config.embed_dim, config.width)
        self.sequence = SequenceEncoder(config)

    def forward(self, tokens: Tensor | Flat) -> Tensor:
        if isinstance(tokens, Flat):
            return self.sequence.forward_flat(self.vectors(tokens.tokens), tokens)
        vectors: Tensor = self.sequence(self.vectors(tokens), tokens == PADDING)
        return vectors  # [B, W]

    def vectors(self, tokens: Tensor) -> Tensor:
        """The vector of each token as the encoder gets it, [..., width]."""
        words = self.embedding(tokens)  # [..., E]
        projected: Tensor = self.projection(words if self.scale == 1 else words * self.scale)
        return projected

    def in_groups(self, tokens: Tensor | Flat) -> Tensor:
        """As `forward`, for texts of unlike lengths: on a CPU in `GROUPS` by length, each as wide as its longest.

        A GPU is quicker with one wide batch.
        """
        compiling = torch.compiler.is_compiling()
        if compiling or isinstance(tokens, Flat) or tokens.device.type != "cpu" or len(tokens) < GROUPS:
            return self(tokens)  # type: ignore[no-any-return]
        places = torch.arange(1, tokens.shape[1] + 1)
        lengths, order = ((tokens != PADDING) * places).amax(1).sort(stable=True)
        groups = zip(order.tensor_split(GROUPS), lengths.tensor_split(GROUPS), strict=True)
        parts = [self(tokens[rows, : max(int(ends[-1]), 1)]) for rows, ends in groups]
        return torch.cat(parts)[order.argsort()]  # [B, E]


def gather(vectors: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of ``vectors`` [count, dim] at ``index`` [batch, length], where −1 is padding, and the padding mask."""
    padding = index < 0  # [B, L]
    rows = vectors.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)  # [B, L, E]
    return torch.where(padding.unsqueeze(-1), vectors.new_zeros(()), rows), padding
