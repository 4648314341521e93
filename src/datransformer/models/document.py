"""Long texts: words to sentence vectors, sentence vectors to a document vector (Section 4.1: Amazon)."""

from torch import Tensor, nn

from datransformer.models.config import ModelConfig
from datransformer.models.heads import build_head
from datransformer.models.text import SequenceEncoder, TextEncoder, gather
from datransformer.nn.flat import Flat


class DocumentModel(nn.Module):
    """A word-level and a sentence-level encoder, both of the same make.

    Args:
        vocabulary: Number of token ids.
        classes: Number of classes.
        config: The parts.
    """

    def __init__(self, vocabulary: int, classes: int, config: ModelConfig) -> None:
        super().__init__()
        self.text = TextEncoder(vocabulary, config)
        self.document = SequenceEncoder(config)
        self.head = build_head(config.encoder_dim, config, classes)

    def forward(self, tokens: Tensor | Flat, sentences: Tensor) -> Tensor:
        """``tokens`` [all sentences, length], 0 = padding; ``sentences`` [batch, sentences] rows of it, −1 = none.

        Sentences of all documents lie in one list, so that none is padded with empty ones before it is encoded.
        """
        vectors, padding = gather(self.text.in_groups(tokens), sentences)  # [B, S, E]
        answer: Tensor = self.head(self.document(vectors, padding))
        return answer
