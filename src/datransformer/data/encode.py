"""Rows of text to examples: token ids cut to size, in parts, with a label."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datransformer.data.config import DataConfig
from datransformer.data.errors import BadRows
from datransformer.data.store import Array, Ragged, StoreWriter, open_store, spans
from datransformer.data.tokenizer import SEPARATOR, UNKNOWN, Encoded, TextTokenizer


@dataclass(frozen=True)
class Examples:
    """Texts as token ids.

    Args:
        tokens: The ids of each text.
        parts: How many of them make up its first part, its second, …: the texts of a pair, a document's sentences.
        labels: Class numbers (int32), ratings (float32), or None.
        rows: The row of the file that each came from, counted from 1.
    """

    tokens: Ragged
    parts: Ragged
    labels: Array | None
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def open(cls, path: Path) -> "Examples":
        """Map the examples that `save_examples` wrote."""
        columns, _ = open_store(path)
        tokens, parts, rows = columns["tokens"], columns["parts"], columns["rows"]
        labels = columns.get("labels")
        assert isinstance(tokens, Ragged)
        assert isinstance(parts, Ragged)
        assert not isinstance(rows, Ragged)
        assert not isinstance(labels, Ragged)
        return cls(tokens, parts, labels, rows)


@dataclass(frozen=True)
class Labels:
    """What the labels of a data set mean.

    Args:
        classes: The names of the classes in the order of their numbers, or None where labels are ratings.
    """

    classes: tuple[str, ...] | None

    def encode(self, labels: pa.Array) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Numbers for the label column, and which of them are not known."""
        if self.classes is None:
            with np.errstate(over="ignore"):
                numbers = _as_numbers(labels).astype(np.float32)
            return numbers, ~np.isfinite(numbers)
        index = pc.index_in(labels, value_set=pa.array(self.classes, labels.type))
        return pc.fill_null(index, 0).to_numpy(), pc.is_null(index).to_numpy(zero_copy_only=False)

    @property
    def expected(self) -> str:
        """What a label has to be, in words."""
        if self.classes is None:
            return "a number"
        shown = ", ".join(repr(name) for name in self.classes[:10])
        return f"one of the training labels {shown}{', …' if len(self.classes) > 10 else ''}"


def _as_numbers(labels: pa.Array) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(labels.cast(pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:  # name the row that is not a number, not the batch
        return np.array([_as_number(text) for text in labels.to_pylist()])


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


Cut = Callable[[list[Encoded], DataConfig, TextTokenizer], tuple[Ragged, Ragged, Array]]


def cut_sentence(texts: list[Encoded], config: DataConfig, tokenizer: TextTokenizer) -> tuple[Ragged, Ragged, Array]:
    """One text, one part."""
    tokens, cut = _truncate(texts[0], config.max_length)
    return tokens, Ragged.from_lengths(tokens.lengths, np.ones(len(tokens), np.int32)), cut


def cut_joint(texts: list[Encoded], config: DataConfig, tokenizer: TextTokenizer) -> tuple[Ragged, Ragged, Array]:
    """Two texts with a separator between them, which counts to the first."""
    first, cut_first = _truncate(texts[0], config.max_length)
    second, cut_second = _truncate(texts[1], config.max_length)
    lengths = np.stack((first.lengths + 1, second.lengths), axis=1)  # [B, 2]
    values = np.full(lengths.sum(), SEPARATOR, np.int32)
    starts = np.concatenate(([0], np.cumsum(lengths.sum(1))[:-1])).astype(np.int64)
    values[spans(starts, first.lengths)] = first.values
    values[spans(starts + lengths[:, 0], lengths[:, 1])] = second.values
    return (
        Ragged.from_lengths(values, lengths.sum(1)),
        Ragged.from_lengths(lengths.ravel(), np.full(len(lengths), 2)),
        cut_first | cut_second,
    )


def cut_siamese(texts: list[Encoded], config: DataConfig, tokenizer: TextTokenizer) -> tuple[Ragged, Ragged, Array]:
    """Two texts, two parts."""
    joint, parts, cut = cut_joint(texts, config, tokenizer)
    lengths = parts.values - np.tile([1, 0], len(joint)).astype(parts.values.dtype)
    starts = np.concatenate(([0], np.cumsum(parts.values)[:-1])).astype(np.int64)
    tokens = Ragged.from_lengths(joint.values[spans(starts, lengths)], lengths.reshape(-1, 2).sum(1))
    return tokens, Ragged(lengths, parts.offsets), cut


def cut_document(texts: list[Encoded], config: DataConfig, tokenizer: TextTokenizer) -> tuple[Ragged, Ragged, Array]:
    """One part a sentence. A sentence ends at a point, a question or exclamation mark, or when it grows too long."""
    whole = _at_least_one(texts[0])
    ends = np.isin(whole.values, [index for index, word in enumerate(tokenizer.words) if word in _SENTENCE_ENDS])
    starts = np.zeros(len(whole.values) + 1, bool)
    starts[1:] = ends
    starts[:-1] &= ~ends  # "?!" ends one sentence, not two
    starts[whole.offsets] = True
    sentences = np.flatnonzero(starts)  # and the end
    lengths = np.diff(sentences)
    pieces = -(-lengths // config.max_sentence_length)
    order = spans(np.zeros(len(pieces), np.int64), pieces)  # 0, 1, … within each sentence
    piece_starts = np.repeat(sentences[:-1], pieces) + order * config.max_sentence_length
    piece_lengths = np.minimum(
        np.repeat(lengths, pieces) - order * config.max_sentence_length, config.max_sentence_length
    )
    edges = np.searchsorted(piece_starts, whole.offsets)
    counts = np.diff(edges)
    kept = np.minimum(counts, config.max_sentences)
    chosen = spans(edges[:-1], kept)
    piece_lengths = piece_lengths[chosen]
    parts = Ragged.from_lengths(piece_lengths.astype(np.int32), kept)
    totals = np.add.reduceat(piece_lengths, parts.offsets[:-1]) if len(kept) else piece_lengths
    values = whole.values[spans(piece_starts[chosen], piece_lengths)]
    return Ragged.from_lengths(values, totals), parts, counts > kept


_SENTENCE_ENDS = {".", "!", "?", "..."}

# How the texts of a row become one example, by task shape.
CUTS: dict[str, Cut] = {
    "sentence": cut_sentence,
    "joint": cut_joint,
    "siamese": cut_siamese,
    "document": cut_document,
}


def _at_least_one(text: Encoded) -> Ragged:
    """A text without any token, of control characters say, is one unknown word."""
    empty = text.lengths == 0
    if not empty.any():
        return Ragged.from_lengths(text.ids, text.lengths)
    lengths = np.maximum(text.lengths, 1)
    values = np.full(lengths.sum(), UNKNOWN, np.int32)
    values[np.repeat(~empty, lengths)] = text.ids
    return Ragged.from_lengths(values, lengths)


def _truncate(text: Encoded, limit: int) -> tuple[Ragged, npt.NDArray[np.bool_]]:
    whole = _at_least_one(text)
    lengths = np.minimum(whole.lengths, limit)
    if (lengths == whole.lengths).all():
        return whole, np.zeros(len(whole), bool)
    values = whole.values[spans(whole.offsets[:-1], lengths)]
    return Ragged.from_lengths(values, lengths), whole.lengths > limit


Batch = tuple[Examples, Array]  # and which of them lost their end


def encode_rows(
    batches: Iterable[pa.RecordBatch],
    *,
    source: str,
    shape: str,
    tokenizer: TextTokenizer,
    labels: Labels | None,
    config: DataConfig,
    bad_rows: BadRows,
) -> Iterator[Batch]:
    """Encode rows as `read_rows` gives them, a batch at a time.

    Args:
        batches: Columns ``row``, ``text``, ``text_pair`` for the pair shapes, and ``label`` if ``labels`` is given.
        source: The name of the rows' file, for messages.
        shape: A key of `CUTS`.
        tokenizer: Cuts and numbers the words.
        labels: Numbers the labels; None leaves them out.
        config: The limits.
        bad_rows: Gets labels that are not known, and counts what is cut off.
    """
    for batch in batches:
        numbers = None
        if labels is not None:
            numbers, unknown = labels.encode(batch["label"])
            for index in np.flatnonzero(unknown):
                problem = f"label {batch['label'][index].as_py()!r}"
                bad_rows.meet(source, batch["row"][index].as_py(), config.label_column, problem, labels.expected)
            if unknown.any():
                batch, numbers = batch.filter(pa.array(~unknown)), numbers[~unknown]
        names = ["text", "text_pair"] if "text_pair" in batch.schema.names else ["text"]
        tokens, parts, cut = CUTS[shape]([tokenizer.encode(batch[name]) for name in names], config, tokenizer)
        if cut.any():
            first = batch["row"][int(cut.argmax())].as_py()
            bad_rows.count("text too long, its end was cut off", f"{source}, row {first}", int(cut.sum()))
        yield Examples(tokens, parts, numbers, batch["row"].to_numpy()), cut


def save_examples(batches: Iterable[Batch], path: Path) -> Array:
    """Write what `encode_rows` gives into a file that `Examples.open` maps; which of the examples lost their end."""
    cuts = [np.zeros(0, bool)]
    with StoreWriter(path) as store:
        for examples, cut in batches:
            labels = {} if examples.labels is None else {"labels": examples.labels}
            store.add(tokens=examples.tokens, parts=examples.parts, rows=examples.rows, **labels)
            cuts.append(cut)
    return np.concatenate(cuts)
