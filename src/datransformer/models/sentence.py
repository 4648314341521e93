"""One text, one answer: embedding, encoder, pooling, head (Section 4.1: AG, SST; SNLI read as one sequence)."""

from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.models.heads import build_head
from datransformer.models.text import TextEncoder
from datransformer.nn.flat import Flat


class SentenceModel(nn.Module):
    """Token ids to class scores [batch, classes] or ratings [batch].

    Args:
        vocabulary: Number of token ids.
        classes: Number of classes.
        config: The parts.
    """

    def __init__(self, vocabulary: int, classes: int, config: ModelConfig) -> None:
        super().__init__()
        self.text = TextEncoder(vocabulary, config)
        self.head = build_head(config.encoder_dim, config, classes)

    def forward(self, tokens: Tensor | Flat) -> Tensor:
        """``tokens`` [batch, length], 0 = padding, or end to end."""
        answer: Tensor = self.head(self.text(tokens))
        return answer
