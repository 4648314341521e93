"""Inputs to trace and to check with: texts of words that the run knows, cut and padded as for prediction."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from datransformer.data.batches import COLLATES, as_ids
from datransformer.data.encode import CUTS
from datransformer.data.store import Array, Ragged
from datransformer.data.tokenizer import SPECIAL
from datransformer.train.predict import is_plain
from datransformer.train.run import Run

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """How large a batch is.

    Args:
        batch: Texts, or users.
        length: Tokens of the longest.
        parts: Sentences of the longest document; news that a user was shown or has clicked, likewise.
    """

    batch: int
    length: int
    parts: int


# The first is what is traced; then one of everything, one long text, many short ones, and more than was traced.
SHAPES = (Shape(2, 7, 3), Shape(1, 1, 1), Shape(1, 19, 5), Shape(5, 1, 2), Shape(3, 131, 11), Shape(2, 257, 3))


def sample_texts(run: Run, shape: Shape) -> Inputs:
    """A batch as the run's model takes it."""
    texts = [run.tokenizer.encode(pa.array(side)) for side in draw_texts(run, shape)]
    limits = replace(
        run.config.data, max_length=shape.length, max_sentence_length=shape.length, max_sentences=shape.parts
    )
    tokens, parts, _ = CUTS[run.config.shape](texts, limits, run.tokenizer)
    return {name: as_ids(array) for name, array in COLLATES[run.config.shape](tokens, parts).items()}


def draw_texts(run: Run, shape: Shape) -> list[list[str]]:
    """The texts of a batch, and for pairs the second text of each."""
    words = shape.length * shape.parts if run.config.shape == "document" else shape.length
    return [_texts(run, shape.batch, words, seed) for seed in range(2 if run.config.task == "pair" else 1)]


def sample_titles(run: Run, shape: Shape) -> Inputs:
    """Titles as a recommender takes them; with several, the last is empty, as that of news without an entry."""
    count = shape.batch * shape.parts
    encoded = run.tokenizer.encode(pa.array(_texts(run, count, shape.length, seed=0)))
    tokens = as_ids(Ragged.from_lengths(encoded.ids, encoded.lengths).padded(0)[:, : shape.length])
    if count > 1:
        tokens[-1] = 0
    return {"tokens": tokens}


def sample_clicks(shape: Shape, news: int) -> Inputs:
    """What users clicked and were shown, as rows of ``news`` titles; with several, the last has clicked nothing."""
    history, candidates = np.random.default_rng(shape.length).integers(0, news, (2, shape.batch, shape.parts))
    none = np.arange(shape.parts) >= _lengths(shape.parts, shape.batch)[:, None]
    history[none] = candidates[none] = -1
    if shape.batch > 1:
        history[-1] = -1
    return {"history": torch.from_numpy(history), "candidates": torch.from_numpy(candidates)}


def _texts(run: Run, count: int, words: int, seed: int) -> list[str]:
    """Texts of words drawn from the vocabulary."""
    random = np.random.default_rng((seed, count, words))
    known = [word for word in run.tokenizer.words[len(SPECIAL) :] if word.strip() and is_plain(word)] or ["unknown"]
    places = (random.integers(0, len(known), length) for length in _lengths(words, count))
    return [" ".join(known[place] for place in row) for row in places]


def _lengths(longest: int, count: int) -> Array:
    """From ``longest`` down to 1, so that there is padding as soon as there are two."""
    return np.linspace(longest, 1, count).astype(np.int64)
