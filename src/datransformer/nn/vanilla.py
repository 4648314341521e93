"""Attention Is All You Need (Vaswani et al., 2017): plain softmax attention, with and without its sinusoids."""

from typing import ClassVar, Unpack

from torch import Tensor

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.softmax import softmax_attention


class PlainAttention(MultiheadAttention):
    """Softmax attention that knows nothing of order: the control."""

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(QKᵀ/√d) V."""
        return softmax_attention(query, key, value, return_weights=return_weights, **options)


class VanillaAttention(PlainAttention):
    """The same attention where the encoder adds sinusoidal positions to its input, as the vanilla Transformer does."""

    adds_positions_to_input: ClassVar[bool] = True
