"""Distance-aware Transformer: attention that knows how far apart two tokens really are."""

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

__version__ = "0.1.0"

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
    "TransformerXLAttention",
    "VanillaAttention",
    "distance_aware_attention",
    "distance_coefficients",
    "sinusoids",
]
