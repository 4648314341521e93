"""The Transformer encoder of the paper: any mixer, residual and layer norm after each sub-layer."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from datransformer.nn.dropout import Dropout
from datransformer.nn.embedding import SinusoidalPositions
from datransformer.nn.flat import Flat
from datransformer.nn.mixers import MIXERS
from datransformer.nn.multihead import MultiheadAttention
from datransformer.ops.checks import (
    check_bool_mask,
    check_choice,
    check_dropout,
    check_floating,
    check_positive_int,
    check_shape,
)


class SegmentMemory(NamedTuple):
    """What a segment leaves for the next one: each layer's input [batch, length, embed_dim], and its padding."""

    states: tuple[Tensor, ...]
    key_padding_mask: Tensor


class EncoderLayer(nn.Module):
    """norm(x + attention(x)), then norm(x + FFN(x)) with FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (Section 2.1).

    Args:
        attention: The built attention; its embed_dim is the layer's.
        feedforward_dim: Inner width of the FFN.
        dropout: Probability of dropping a unit of either sub-layer's output, and of the FFN's inner layer.
    """

    def __init__(self, attention: MultiheadAttention, *, feedforward_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not isinstance(attention, MultiheadAttention):
            raise TypeError(f"attention: got {type(attention).__name__}, expected an instance of a class of MIXERS")
        check_positive_int("feedforward_dim", feedforward_dim)
        check_dropout("dropout", dropout)
        self.attention = attention
        self.attention_norm = nn.LayerNorm(attention.embed_dim)
        self.feedforward = nn.Sequential(
            nn.Linear(attention.embed_dim, feedforward_dim),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(feedforward_dim, attention.embed_dim),
        )
        self.feedforward_norm = nn.LayerNorm(attention.embed_dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        inputs: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """[batch, length, embed_dim] in and out; ``key_padding_mask`` covers ``memory``, if any, and inputs."""
        context = inputs if memory is None else torch.cat((memory, inputs), dim=1)  # [B, Nk, E]
        mixed, _ = self.attention(inputs, context, context, key_padding_mask, need_weights=False, is_causal=causal)
        return self.add_and_feed(inputs, mixed)

    def forward_flat(self, inputs: Tensor, flat: Flat) -> Tensor:
        """As `forward`, for texts end to end: [tokens, embed_dim] in and out."""
        return self.add_and_feed(inputs, self.attention.forward_flat(inputs, flat))

    def add_and_feed(self, inputs: Tensor, mixed: Tensor) -> Tensor:
        """All that comes after the attention, which made ``mixed`` of ``inputs``."""
        hidden = self.attention_norm(inputs + self.dropout(mixed))
        output: Tensor = self.feedforward_norm(hidden + self.dropout(self.feedforward(hidden)))
        return output  # as inputs


class Encoder(nn.Module):
    """A stack of `EncoderLayer`, with sinusoids added to the input where the mixer asks for them.

    Args:
        embed_dim: Width of the inputs and of the output.
        num_heads: Number of heads.
        head_dim: Width of a head, embed_dim / num_heads if None.
        num_layers: Number of layers. The paper has one.
        mixer: A key of `MIXERS`.
        feedforward_dim: Inner width of the FFN, 4 · embed_dim if None.
        dropout: As in `EncoderLayer`.
        attention_dropout: Probability of dropping an attention weight.
        mixer_options: Further arguments of the mixer's class, for example ``{"mapping": "clip"}``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        num_layers: int = 1,
        mixer: str = "distance_aware",
        feedforward_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        mixer_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("num_layers", num_layers)
        check_choice("mixer", mixer, MIXERS)
        check_dropout("attention_dropout", attention_dropout)
        options = dict(mixer_options or {})
        given = {"embed_dim", "num_heads", "head_dim", "dropout", "batch_first"}
        known = set(inspect.signature(MIXERS[mixer]).parameters) - given
        for option in options:
            check_choice("mixer_options", option, sorted(known))
        self.embed_dim = embed_dim
        self.mixer = mixer
        self.positions = SinusoidalPositions() if MIXERS[mixer].adds_positions_to_input else None
        self.layers = nn.ModuleList(
            EncoderLayer(
                MIXERS[mixer](embed_dim, num_heads, head_dim, dropout=attention_dropout, **options),
                feedforward_dim=4 * embed_dim if feedforward_dim is None else feedforward_dim,
                dropout=dropout,
            )
            for _ in range(num_layers)
        )

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """Encode ``inputs`` [batch, length, embed_dim]; ``key_padding_mask`` [batch, length] bool, True = ignore."""
        self._check(inputs, key_padding_mask)
        hidden = inputs if self.positions is None else self.positions(inputs)
        for layer in self.layers:
            hidden = layer(hidden, key_padding_mask, causal=causal)
        return hidden

    def forward_flat(self, inputs: Tensor, flat: Flat) -> Tensor:
        """As `forward`, for texts end to end: [tokens, embed_dim] in and out."""
        hidden = inputs if self.positions is None else self.positions(inputs, flat.order)
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            hidden = layer.forward_flat(hidden, flat)
        return hidden

    def forward_segment(
        self,
        inputs: Tensor,
        memory: SegmentMemory | None = None,
        key_padding_mask: Tensor | None = None,
        *,
        memory_length: int,
        causal: bool = False,
    ) -> tuple[Tensor, SegmentMemory]:
        """Encode the next segment of a longer sequence (segment-level recurrence, Dai et al. 2019, Section 3.2).

        Every layer also attends to what it saw of the segments before, through which no gradient flows.

        Args:
            inputs: This segment, ``[batch, length, embed_dim]``.
            memory: What the call on the segment before returned; None at the start.
            key_padding_mask: ``[batch, length]`` bool for this segment, True = ignore.
            memory_length: How many positions to remember at most.
            causal: Hide the keys that lie after the query.

        Returns:
            The encoded segment, and the memory for the next call.
        """
        if self.positions is not None:
            raise ValueError(
                f"mixer: got {self.mixer!r}, which adds absolute positions to its input; segments need a relative mixer"
            )
        check_positive_int("memory_length", memory_length)
        self._check(inputs, key_padding_mask)
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        if memory is not None:
            if not isinstance(memory, SegmentMemory):
                raise TypeError(f"memory: got {type(memory).__name__}, expected what forward_segment returned")
            if len(memory.states) != len(self.layers):
                raise ValueError(f"memory: got {len(memory.states)} states, expected one per layer, {len(self.layers)}")
            for state in memory.states:
                expected = (inputs.shape[0], state.shape[1], self.embed_dim)
                check_shape("memory", state, "(batch, length, embed_dim)", expected)
            check_bool_mask("memory.key_padding_mask", memory.key_padding_mask, "(batch, length)", expected[:2])
            key_padding_mask = torch.cat((memory.key_padding_mask, key_padding_mask), dim=1)  # [B, Nk]

        hidden, states = inputs, []
        for index, layer in enumerate(self.layers):
            past = None if memory is None else memory.states[index]
            seen = hidden if past is None else torch.cat((past, hidden), dim=1)  # [B, Nk, E]
            states.append(seen[:, -memory_length:].detach().clone())
            hidden = layer(hidden, key_padding_mask, memory=past, causal=causal)
        return hidden, SegmentMemory(tuple(states), key_padding_mask[:, -memory_length:].clone())

    def _check(self, inputs: Tensor, key_padding_mask: Tensor | None) -> None:
        check_floating("inputs", inputs)
        if inputs.dim() != 3:
            raise ValueError(f"inputs: got shape {tuple(inputs.shape)}, expected (batch, length, embed_dim)")
        check_shape("inputs", inputs, "(batch, length, embed_dim)", (*inputs.shape[:2], self.embed_dim))
        if key_padding_mask is not None:
            check_bool_mask("key_padding_mask", key_padding_mask, "(batch, length)", inputs.shape[:2])
