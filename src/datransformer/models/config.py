"""What a model is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datransformer.nn.encoder import Encoder
from datransformer.nn.mixers import MIXERS
from datransformer.nn.pooling import POOLINGS
from datransformer.ops.checks import check_choice, check_dropout, check_positive_int

PAIR_FORMS = ("joint", "siamese")
HEADS = ("class", "rating")
MOST = 16_384  # of anything: a model beyond is a typing mistake, or an attack on memory


@dataclass(frozen=True)
class ModelConfig:
    """The parts of a model. The defaults are the paper's, where it names them.

    Args:
        attention: A key of `MIXERS`.
        attention_options: Further arguments of the mixer, for example ``{"mapping": "clip"}``.
        layers: Encoder layers at each level.
        heads: Attention heads.
        head_dim: Width of a head.
        embed_dim: Width of the word vectors. Vectors read from a file bring their own.
        embed_scale: What word vectors are multiplied by before anything else.
        freeze_vectors: Whether word vectors stay as they were at the start.
        width: Width of the encoder, to which word vectors are then projected; None: theirs, without a projection.
        feedforward_dim: Inner width of the feed-forward network, four times the encoder's if None.
        dropout: On word vectors, on the output of each sub-layer and inside the feed-forward network.
        attention_dropout: On attention weights.
        pooling: A key of `POOLINGS`.
        pair: How two texts enter: ``joint``, one sequence with a separator, or ``siamese``, [u; v; |u−v|; u·v].
        head: What comes out: ``class``, or ``rating``, a number.
    """

    attention: str = "distance_aware"
    attention_options: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 1
    heads: int = 16
    head_dim: int = 16
    embed_dim: int = 300
    embed_scale: float = 1.0
    freeze_vectors: bool = False
    width: int | None = None
    feedforward_dim: int | None = None
    dropout: float = 0.2
    attention_dropout: float = 0.0
    pooling: str = "additive"
    pair: str = "joint"
    head: str = "class"

    def __post_init__(self) -> None:
        check_choice("attention", self.attention, MIXERS)
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("pair", self.pair, PAIR_FORMS)
        check_choice("head", self.head, HEADS)
        for name in ("layers", "heads", "head_dim", "embed_dim", "width"):
            value = self.encoder_dim if name == "width" else getattr(self, name)
            check_positive_int(name, value)
            if value > MOST:
                raise ValueError(f"{name}: got {value}, expected at most {MOST:,}")
        if self.feedforward_dim is not None:
            check_positive_int("feedforward_dim", self.feedforward_dim)
        if not 0 < self.embed_scale < float("inf"):
            raise ValueError(f"embed_scale: got {self.embed_scale}, expected a positive number")
        check_dropout("dropout", self.dropout)
        check_dropout("attention_dropout", self.attention_dropout)

    @property
    def encoder_dim(self) -> int:
        """Width of the encoder, at every level."""
        return self.embed_dim if self.width is None else self.width

    def encoder(self) -> Encoder:
        """Build one level's encoder."""
        return Encoder(
            self.encoder_dim,
            self.heads,
            self.head_dim,
            num_layers=self.layers,
            mixer=self.attention,
            feedforward_dim=self.feedforward_dim,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            mixer_options=self.attention_options,
        )
