"""Distance-aware Transformer: attention that knows how far apart two tokens really are."""

import importlib
from typing import TYPE_CHECKING, Any

from datransformer.version import __version__

if TYPE_CHECKING:
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
        MaxPooling,
        MeanPooling,
        Pooling,
    )
    from datransformer.nn.rotary import RotaryAttention
    from datransformer.nn.rpr import RelativePositionAttention
    from datransformer.nn.t5_bias import T5BiasAttention
    from datransformer.nn.vanilla import PlainAttention, VanillaAttention
    from datransformer.nn.xl import TransformerXLAttention
    from datransformer.ops.adjust import ADJUSTMENTS
    from datransformer.ops.attention import BACKENDS, distance_aware_attention, explain_backends
    from datransformer.ops.mapping import MAPPINGS, distance_coefficients
    from datransformer.ops.varlen import distance_aware_attention_varlen
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
    "MaxPooling",
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
    "explain_backends",
    "sinusoids",
]


# Where each name lives: it is imported when it is first asked for, so that the command line answers before torch loads.
_HOMES = {
    "ADJUSTMENTS": "ops.adjust",
    "AdaptedAttention": "nn.adapted",
    "AdditiveAttentionPooling": "nn.pooling",
    "AlibiAttention": "nn.alibi",
    "BACKENDS": "ops.attention",
    "DistanceAwareAttention": "nn.distance_aware",
    "Encoder": "nn.encoder",
    "EncoderLayer": "nn.encoder",
    "FirstTokenPooling": "nn.pooling",
    "MAPPINGS": "ops.mapping",
    "MIXERS": "nn.mixers",
    "MaxPooling": "nn.pooling",
    "MeanPooling": "nn.pooling",
    "MixOptions": "nn.multihead",
    "MultiheadAttention": "nn.multihead",
    "POOLINGS": "nn.pooling",
    "PlainAttention": "nn.vanilla",
    "Pooling": "nn.pooling",
    "RelativePositionAttention": "nn.rpr",
    "RotaryAttention": "nn.rotary",
    "SegmentMemory": "nn.encoder",
    "SinusoidalPositions": "nn.embedding",
    "T5BiasAttention": "nn.t5_bias",
    "TextClassifier": "train.classifier",
    "TransformerXLAttention": "nn.xl",
    "VanillaAttention": "nn.vanilla",
    "distance_aware_attention": "ops.attention",
    "distance_aware_attention_varlen": "ops.varlen",
    "distance_coefficients": "ops.mapping",
    "explain_backends": "ops.attention",
    "sinusoids": "nn.embedding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'datransformer' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"datransformer.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
