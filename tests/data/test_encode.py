import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datransformer.data.config import DataConfig
from datransformer.data.encode import CUTS, Examples, Labels, encode_rows, save_examples
from datransformer.data.errors import BadRows, InputError
from datransformer.data.store import Ragged, StoreWriter, atomic_path, open_store, spans
from datransformer.data.tokenizer import SEPARATOR, UNKNOWN, WordTokenizer

TOKENIZER = WordTokenizer(["a", "b", "c", ".", "?", "!"])
A, B, C, POINT, QUESTION, MARK = range(3, 9)


def cut(
    shape: str, *texts: str, pair: tuple[str, ...] = (), **limits: int
) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    encoded = [TOKENIZER.encode(pa.array(side)) for side in ((texts, pair) if pair else (texts,))]
    tokens, parts, over = CUTS[shape](encoded, DataConfig(**limits), TOKENIZER)  # type: ignore[arg-type]
    return [row.tolist() for row in _rows(tokens)], [row.tolist() for row in _rows(parts)], over.tolist()


def _rows(ragged: Ragged) -> list[np.ndarray]:
    return [ragged[index] for index in range(len(ragged))]


def test_a_sentence_is_one_part_and_is_cut_at_the_limit() -> None:
    assert cut("sentence", "a b c", "b", max_length=2) == ([[A, B], [B]], [[2], [1]], [True, False])


def test_a_joint_pair_has_a_separator_that_counts_to_the_first() -> None:
    tokens, parts, over = cut("joint", "a b c", "b", pair=("c", "a a"), max_length=2)
    assert tokens == [[A, B, SEPARATOR, C], [B, SEPARATOR, A, A]]
    assert parts == [[3, 1], [2, 2]]
    assert over == [True, False]


def test_a_siamese_pair_has_no_separator() -> None:
    tokens, parts, _ = cut("siamese", "a b", "b", pair=("c", "a a"))
    assert tokens == [[A, B, C], [B, A, A]]
    assert parts == [[2, 1], [1, 2]]


def test_a_document_is_cut_at_the_ends_of_sentences() -> None:
    tokens, parts, over = cut("document", "a b. c?! a", "b")
    assert tokens == [[A, B, POINT, C, QUESTION, MARK, A], [B]]
    assert parts == [[3, 3, 1], [1]]
    assert over == [False, False]


def test_a_long_sentence_goes_on_and_a_long_document_ends() -> None:
    tokens, parts, over = cut("document", "a a a b b b c", "a . b . c", max_sentence_length=3, max_sentences=2)
    assert tokens == [[A, A, A, B, B, B], [A, POINT, B, POINT]]
    assert parts == [[3, 3], [2, 2]]
    assert over == [True, True]


@pytest.mark.parametrize("shape", CUTS)
def test_a_text_without_a_token_is_one_unknown_word(shape: str) -> None:
    pair = ("a", "b", "\x07") if shape in ("joint", "siamese") else ()
    tokens, parts, _ = cut(shape, "a", "\x07", "b", pair=pair)
    assert tokens[1][0] == UNKNOWN
    assert all(all(part > 0 for part in row) for row in parts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", ".", "?"]), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_documents_are_cut_as_a_plain_loop_would(texts: list[list[str]], length: int, count: int) -> None:
    tokens, parts, _ = cut("document", *map(" ".join, texts), max_sentence_length=length, max_sentences=count)
    for words, got_tokens, got_parts in zip(texts, tokens, parts, strict=True):
        sentences: list[list[str]] = [[]]
        for index, word in enumerate(words):
            follows_end = index > 0 and words[index - 1] in ".?" and word not in ".?"
            if sentences[-1] and (follows_end or len(sentences[-1]) == length):
                sentences.append([])
            sentences[-1].append(word)
        sentences = sentences[:count]
        assert got_parts == [len(sentence) for sentence in sentences]
        flat = [word for sentence in sentences for word in sentence]
        assert got_tokens == [list(TOKENIZER.words).index(word) for word in flat]


def rows(texts: list[str], labels: list[str] | None = None, first: int = 1) -> pa.RecordBatch:
    columns = {"row": pa.array(range(first, first + len(texts)), pa.int64()), "text": pa.array(texts, pa.string())}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def encode(path: Path, batches: list[pa.RecordBatch], labels: Labels | None, bad_rows: BadRows) -> Examples:
    encoded = encode_rows(
        batches,
        source="x.csv",
        shape="sentence",
        tokenizer=TOKENIZER,
        labels=labels,
        config=DataConfig(max_length=3),
        bad_rows=bad_rows,
    )
    save_examples(encoded, path)
    return Examples.open(path)


def test_examples_of_several_batches_come_back_from_disk(tmp_path: Path) -> None:
    bad_rows = BadRows()
    batches = [rows(["a b", "c"], ["y", "x"]), rows(["a a a a"], ["y"], first=5)]
    examples = encode(tmp_path / "e.arrow", batches, Labels(("x", "y")), bad_rows)
    assert len(examples) == 3
    assert [row.tolist() for row in _rows(examples.tokens)] == [[A, B], [C], [A, A, A]]
    assert examples.labels is not None
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.rows.tolist() == [1, 2, 5]
    assert bad_rows.lines() == ["1 rows: text too long, its end was cut off (first: x.csv, row 5)"]
    assert list(tmp_path.iterdir()) == [tmp_path / "e.arrow"]


def test_ratings_are_numbers(tmp_path: Path) -> None:
    examples = encode(tmp_path / "e", [rows(["a", "b"], ["4", "1.5"])], Labels(None), BadRows())
    assert examples.labels is not None
    assert examples.labels.tolist() == [4.0, 1.5]


@pytest.mark.parametrize(
    ("labels", "bad", "expected"),
    [
        (
            Labels(("x", "y")),
            "z",
            r"x\.csv, row 2, column 'label': label 'z', expected one of the training labels 'x', 'y'",
        ),
        (Labels(None), "good", r"x\.csv, row 2, column 'label': label 'good', expected a number"),
        (Labels(None), "nan", r"row 2.*label 'nan', expected a number"),
    ],
)
def test_a_label_that_is_not_known_is_named_or_skipped(tmp_path: Path, labels: Labels, bad: str, expected: str) -> None:
    good = "x" if labels.classes else "3"
    batches = [rows(["a", "b", "c"], [good, bad, good])]
    with pytest.raises(InputError, match=expected):
        encode(tmp_path / "e", batches, labels, BadRows())
    assert not list(tmp_path.iterdir())  # nothing half-written
    bad_rows = BadRows(skip=True)
    assert encode(tmp_path / "e", batches, labels, bad_rows).rows.tolist() == [1, 3]
    assert sum(bad_rows.counts.values()) == 1


def test_a_truncated_store_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "e"
    encode(path, [rows(["a b c"] * 50)], None, BadRows())
    content = path.read_bytes()
    for end in (0, 7, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises((pa.ArrowInvalid, OSError)):
            open_store(path)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_of_no_rows_is_empty(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", {"note": "ünï"}) as store:
        store.add(x=Ragged.from_lengths(np.empty(0, np.int32), np.empty(0, np.int32)), y=np.empty(0, np.float32))
    columns, metadata = open_store(tmp_path / "s")
    assert len(columns["x"]) == len(columns["y"]) == 0
    assert metadata == {"note": "ünï"}


def test_ragged_rows() -> None:
    ragged = Ragged.from_lengths(np.arange(6), np.array([2, 0, 3, 1]))
    assert ragged.take(np.array([2, 0, 1])).padded(-1).tolist() == [[2, 3, 4], [0, 1, -1], [-1, -1, -1]]
    assert ragged[-1].tolist() == [5]
    with pytest.raises(IndexError):
        ragged[4]
    assert spans(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]
    assert spans(np.array([], int), np.array([], int)).tolist() == []


def test_a_file_is_not_written_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "none" / "file") as temporary:
        temporary.write_text("x")
    assert not list(tmp_path.iterdir())


def test_what_is_no_regular_file_is_not_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), atomic_path(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
