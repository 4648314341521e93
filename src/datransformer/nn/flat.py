"""Texts end to end, with no padding between them. Most of an encoder takes tokens one by one and need not see any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flat:
    """The tokens of texts, and where they would be if each text had a row of its own.

    Rows are in parts, in each of which they are equally long; a place in a row is a slot. The last token is padding and
    stands for what is in every empty slot. What is made of it must not reach the loss: its gradient is taken to be 0.

    Args:
        tokens: ``[tokens]`` ids; behind those of the texts at least one of padding.
        order: ``[tokens]`` the place of each in its text.
        back: ``[tokens]`` the slot of each, counted through all parts; that of padding is an empty one.
        parts: ``[texts, length]`` each: the place in ``tokens`` of what is in a slot, the last where it is empty.
    """

    tokens: Tensor
    order: Tensor
    back: Tensor
    parts: tuple[Tensor, ...]

    def spread(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What belongs to tokens, [tokens, width], part by part as [texts, length, width], and its padding mask."""
        spread = _pick(rows, self._slots, self.back)
        for slots, part, empty in zip(spread.split(self._sizes), self.parts, self._empty, strict=True):
            yield slots.unflatten(0, part.shape), empty

    def collect(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `spread`: from parts [texts, length, width] to [tokens, width]."""
        slots = [part.flatten(0, 1) for part in parts]
        return _pick(slots[0] if len(slots) == 1 else torch.cat(slots), self.back, self._slots)

    @cached_property
    def _slots(self) -> Tensor:
        return self.parts[0].flatten() if len(self.parts) == 1 else torch.cat([part.flatten() for part in self.parts])

    @cached_property
    def _sizes(self) -> list[int]:
        return [part.numel() for part in self.parts]

    @cached_property
    def _empty(self) -> list[Tensor]:
        return [part == len(self.tokens) - 1 for part in self.parts]


def _pick(rows: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
    picked: Tensor = _Pick.apply(rows, places, inverse)  # type: ignore[no-untyped-call]
    return picked


class _Pick(torch.autograd.Function):
    """Rows at some places. The gradient of each is picked from where it went, which is quicker than adding up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(0, inverse), None, None
