"""Distance-aware Transformer: attention that knows how far apart two tokens really are."""

from typing import TYPE_CHECKING, Any

from datransformer.nn.adapted import AdaptedAttention
from datransformer.nn.alibi import AlibiAttention
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.embedding import SinusoidalPositions, sinusoids
from datransformer.nn.encoder import Encoder, EncoderLayer, SegmentMemory
from datransformer.nn.mixers import MIXERS
from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.nn.pooling import (
    POOLINGS,
    AdditiveAttentionPooling,
    FirstTokenPooling,
    MeanPooling,
    Pooling,
)
from datransformer.nn.rotary import RotaryAttention
from datransformer.nn.rpr import RelativePositionAttention
from datransformer.nn.t5_bias import T5BiasAttention
from datransformer.nn.vanilla import PlainAttention, VanillaAttention
from datransformer.nn.xl import TransformerXLAttention
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.attention import BACKENDS, distance_aware_attention
from datransformer.ops.mapping import MAPPINGS, distance_coefficients
from datransformer.ops.varlen import distance_aware_attention_varlen
from datransformer.version import __version__

if TYPE_CHECKING:
    from datransformer.train.classifier import TextClassifier

__all__ = [
    "ADJUSTMENTS",
    "BACKENDS",
    "MAPPINGS",
    "MIXERS",
    "POOLINGS",
    "AdaptedAttention",
    "AdditiveAttentionPooling",
    "AlibiAttention",
    "DistanceAwareAttention",
    "Encoder",
    "EncoderLayer",
    "FirstTokenPooling",
    "MeanPooling",
    "MixOptions",
    "MultiheadAttention",
    "PlainAttention",
    "Pooling",
    "RelativePositionAttention",
    "RotaryAttention",
    "SegmentMemory",
    "SinusoidalPositions",
    "T5BiasAttention",
    "TextClassifier",
    "TransformerXLAttention",
    "VanillaAttention",
    "__version__",
    "distance_aware_attention",
    "distance_aware_attention_varlen",
    "distance_coefficients",
    "sinusoids",
]


def __getattr__(name: str) -> Any:
    """Bring what needs the training libraries only when it is asked for: the attention alone loads fast."""
    if name == "TextClassifier":
        from datransformer.train.classifier import TextClassifier

        return TextClassifier
    raise AttributeError(f"module 'datransformer' has no attribute {name!r}")
