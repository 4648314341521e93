"""Examples to batches: like lengths together, a token budget, an order that depends on seed and epoch alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from datransformer.data.encode import Examples
from datransformer.data.store import Array, Ragged

POOL = 64  # batches are sorted by length within pools of this many


@dataclass(frozen=True)
class Batch:
    """What a model gets, by argument name, what it should answer, and where it came from.

    Args:
        inputs: The model's arguments.
        targets: Classes or ratings, None where there are none.
        rows: The rows of the source file.
        tokens: How many token ids there are, padding not counted.
    """

    inputs: dict[str, Tensor]
    targets: Tensor | None
    rows: npt.NDArray[np.int64]
    tokens: int


class BatchSource(Protocol):
    """Examples that know how to become a batch."""

    @property
    def sizes(self) -> Array:
        """Tokens of each example, for bucketing."""
        ...

    def batch(self, indices: Array, key: tuple[int, ...], rank: int = 0, world: int = 1) -> Batch:
        """The share of process ``rank`` of ``world`` in a batch; ``key`` seeds whatever is drawn at random."""
        ...


def plan_batches(
    sizes: Array, *, batch_size: int, max_tokens: int, order: tuple[int, ...] | None = None
) -> list[npt.NDArray[np.int64]]:
    """Which examples make up each batch.

    Args:
        sizes: Tokens of each example.
        batch_size: Examples a batch at most.
        max_tokens: Tokens a batch at most, padding included; a longer example is a batch of its own.
        order: Seeds the shuffling, say with seed and epoch. None sorts everything by length, longest last.
    """
    count = len(sizes)
    if order is None:
        pools = [np.argsort(sizes, kind="stable")]
    else:
        random = np.random.default_rng(order)
        shuffled = random.permutation(count)
        pools = [shuffled[start : start + POOL * batch_size] for start in range(0, count, POOL * batch_size)]
        pools = [pool[np.argsort(sizes[pool], kind="stable")] for pool in pools]
    batches = []
    for pool in pools:
        lengths = sizes[pool]
        start = 0
        while start < len(pool):
            window = lengths[start : start + batch_size]
            fits = window * np.arange(1, len(window) + 1) <= max_tokens  # sorted, so the last is the longest
            size = len(window) if fits.all() else max(int(fits.argmin()), 1)
            batches.append(pool[start : start + size])
            start += size
    if order is not None:
        batches = [batches[index] for index in random.permutation(len(batches))]
    return batches


def tokens_only(tokens: Ragged, parts: Ragged) -> dict[str, Array]:
    """One sequence an example."""
    return {"tokens": tokens.padded(0)}


def two_texts(tokens: Ragged, parts: Ragged) -> dict[str, Array]:
    """The two texts of a pair apart."""
    sides = Ragged.from_lengths(tokens.values, parts.values)  # first, second, first, second, …
    rows = np.arange(len(sides))
    return {"first": sides.take(rows[0::2]).padded(0), "second": sides.take(rows[1::2]).padded(0)}


def sentences_of_documents(tokens: Ragged, parts: Ragged) -> dict[str, Array]:
    """All sentences in one list, and which of them each document has."""
    numbered = Ragged(np.arange(len(parts.values)), parts.offsets)
    return {"tokens": Ragged.from_lengths(tokens.values, parts.values).padded(0), "sentences": numbered.padded(-1)}


# Token ids to the arguments of the model, by task shape.
COLLATES: dict[str, Callable[[Ragged, Ragged], dict[str, Array]]] = {
    "sentence": tokens_only,
    "joint": tokens_only,
    "siamese": two_texts,
    "document": sentences_of_documents,
}


class TextBatches:
    """Batches of texts.

    Args:
        examples: The texts.
        shape: A key of `COLLATES`.
    """

    def __init__(self, examples: Examples, shape: str) -> None:
        self.examples = examples
        self.sizes: Array = examples.tokens.lengths
        self._collate = COLLATES[shape]

    def batch(self, indices: Array, key: tuple[int, ...], rank: int = 0, world: int = 1) -> Batch:
        """The share of one process in a batch. Nothing is random here."""
        mine = indices[rank::world]
        tokens, parts = self.examples.tokens.take(mine), self.examples.parts.take(mine)
        inputs = {name: as_ids(array) for name, array in self._collate(tokens, parts).items()}
        labels = self.examples.labels
        return Batch(
            inputs=inputs,
            targets=None if labels is None else torch.from_numpy(labels[mine]),
            rows=self.examples.rows[mine],
            tokens=len(tokens.values),
        )


def as_ids(array: Array) -> Tensor:
    """Ids as the int64 that embeddings and gathers want."""
    return torch.from_numpy(array.astype(np.int64, copy=False))
