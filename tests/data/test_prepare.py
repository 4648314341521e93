import csv
import os
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datransformer.data import prepare
from datransformer.data.config import DataConfig
from datransformer.data.datasets import Source
from datransformer.data.errors import BadRows, InputError
from datransformer.data.prepare import Rows, RowSplits, TextData, file_rows, prepare_texts, probe_rows
from datransformer.data.probe import Probe
from datransformer.data.readers import Columns


def write(path: Path, rows: list[tuple[str, str]]) -> Rows:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return file_rows(Source(path, Columns()))


def prepared(splits: RowSplits, cache: Path, *, rating: bool = False, **options: object) -> TextData:
    config = DataConfig(**options)  # type: ignore[arg-type]
    return prepare_texts(splits, shape="sentence", rating=rating, config=config, cache=cache)


ROWS = [(f"word{number} common", "ab"[number % 2]) for number in range(40)]


def test_a_tenth_is_held_out_and_the_vocabulary_is_of_the_training_rows(tmp_path: Path) -> None:
    data = prepared(RowSplits(write(tmp_path / "train.csv", ROWS)), tmp_path / "cache")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 36, "dev": 4}
    assert sorted([*data.splits["train"].rows, *data.splits["dev"].rows]) == list(range(1, 41))
    assert data.notes == ("held out 4 of 40 rows for development, seed 0",)
    in_training = {f"word{row - 1}" for row in data.splits["train"].rows}
    assert set(data.tokenizer.words[3:]) == in_training | {"common"}
    assert data.labels.classes == ("a", "b")


def test_words_of_the_vectors_come_behind_those_of_training_whatever_held_out_rows_have(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("newer 1\nword1 2\nnew 3\n")
    options: dict[str, Any] = {"vectors": str(path), "vector_words": True}
    train, cache = write(tmp_path / "train.csv", ROWS), tmp_path / "cache"
    plain = prepared(RowSplits(train, train), cache)
    for number, text in enumerate(("new newest", "word1")):
        dev = write(tmp_path / f"dev{number}.csv", [(text, "a")])
        data = prepared(RowSplits(train, dev), cache, **options)
        assert data.tokenizer.words == [*plain.tokenizer.words, "newer", "new"]
        assert data.notes == ("words of vectors.txt in the vocabulary beside those of training: 2",)
    data = prepared(RowSplits(train, dev), cache, **options, vocabulary=42)
    assert data.tokenizer.words == [*plain.tokenizer.words, "newer"]
    assert data.notes[0].endswith(": 1; it is full: "
                                  "data.vocabulary is 42")  # fmt: skip
    path.write_text("newest 1\nnew 3\n")
    assert prepared(RowSplits(train, dev), cache, **options).tokenizer.words[-2:] == ["newest", "new"]
    path.write_text("newest 1\nbad a\nworse inf\nnew 3\n")
    data = prepared(RowSplits(train, dev), cache, **options, bad_rows="skip")
    assert data.tokenizer.words[-2:] == ["newest", "new"]
    assert data.notes[1].startswith("2 words of vectors.txt left out: a value is no number, NaN, infinite or too large")
    assert "vectors.txt, row 2, column 'vector'" in data.notes[1]
    path.write_text("newest\n")
    with pytest.raises(InputError, match=r"vectors\.txt: line 1 has no vector"):
        prepared(RowSplits(train, dev), cache, **options)


def test_the_name_in_the_cache_is_of_what_decides_and_nothing_else(tmp_path: Path) -> None:
    """Runs that were stopped before an option was there go on, and vectors alone change no token."""
    found = prepare.settings_key(DataConfig(vectors="any.txt"))
    assert set(found) == {field.name for field in fields(DataConfig)} - {"vectors", "vector_words"}


def test_another_seed_holds_out_other_rows(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ROWS)
    first, again, other = (
        prepared(RowSplits(train), tmp_path / f"cache{number}", split_seed=seed).splits["dev"].rows.tolist()
        for number, seed in enumerate((0, 0, 1))
    )
    assert first == again != other


def test_files_of_their_own_are_taken_whole(tmp_path: Path) -> None:
    splits = RowSplits(
        write(tmp_path / "train.csv", ROWS),
        write(tmp_path / "dev.csv", ROWS[:5]),
        write(tmp_path / "test.csv", ROWS[:7]),
    )
    data = prepared(splits, tmp_path / "cache")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 40, "dev": 5, "test": 7}
    assert data.notes == ()


def test_numbers_of_rows_can_be_asked_for(tmp_path: Path) -> None:
    splits = RowSplits(write(tmp_path / "t.csv", ROWS), train_rows=20, dev_rows=5, test_rows=6)
    data = prepared(splits, tmp_path / "cache")
    drawn = {name: split.rows.tolist() for name, split in data.splits.items()}
    assert [len(rows) for rows in drawn.values()] == [20, 5, 6]
    assert len({row for rows in drawn.values() for row in rows}) == 31
    assert data.notes[-1] == "drew 20 of 40 rows for training, seed 0"
    with pytest.raises(InputError, match=r"t\.csv: 40 rows, expected at least 51"):
        prepared(RowSplits(splits.train, train_rows=40, dev_rows=5, test_rows=6), tmp_path / "cache")


def test_every_class_stays_in_training(tmp_path: Path) -> None:
    rows = [("x", "a")] * 20 + [("y", "b")] * 2 + [("z", "c")] * 2
    for seed in range(5):
        splits = RowSplits(write(tmp_path / "t.csv", rows), dev_rows=0.5)
        data = prepared(splits, tmp_path / "cache", split_seed=seed)
        labels = data.splits["train"].labels
        assert labels is not None
        assert set(labels.tolist()) == {0, 1, 2}


def test_labels_are_in_the_order_of_numbers_where_they_are_numbers(tmp_path: Path) -> None:
    rows = [("x", label) for label in ("10", "9", "1", "10", "9", "1")]
    assert prepared(RowSplits(write(tmp_path / "t.csv", rows)), tmp_path / "c").labels.classes == ("1", "9", "10")


def test_labels_can_be_chosen(tmp_path: Path) -> None:
    rows = [("x", "a"), ("y", "b"), ("z", "c")] * 4
    splits = RowSplits(write(tmp_path / "t.csv", rows), write(tmp_path / "d.csv", rows), keep_labels=("a", "c"))
    data = prepared(splits, tmp_path / "cache")
    assert data.labels.classes == ("a", "c")
    assert len(data.splits["train"]) == 8
    assert "8 rows: label not asked for" in data.notes[0]


def test_ratings_are_not_classes(tmp_path: Path) -> None:
    data = prepared(RowSplits(write(tmp_path / "t.csv", [("x", "1.5"), ("y", "4")])), tmp_path / "c", rating=True)
    assert data.labels.classes is None
    labels = data.splits["train"].labels
    assert labels is not None
    assert labels.dtype == np.float32


def test_the_second_time_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write(tmp_path / "t.csv", ROWS)
    first = prepared(RowSplits(train), tmp_path / "cache")

    def no_reading(bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        raise AssertionError

    again = prepared(RowSplits(Rows(train.name, train.identity, no_reading)), tmp_path / "cache")
    assert again.fingerprint == first.fingerprint
    assert again.notes == first.notes
    assert again.splits["train"].tokens.values.tolist() == first.splits["train"].tokens.values.tolist()


def test_the_key_changes_with_the_content_and_the_settings(tmp_path: Path) -> None:
    names = set()
    for rows, length in ((ROWS, 9), (ROWS[:-2], 9), (ROWS, 8)):
        splits = RowSplits(write(tmp_path / "t.csv", rows))
        names.add(prepared(splits, tmp_path / "cache", max_length=length).fingerprint)
    assert len(names) == 3


def test_what_a_killed_process_left_in_the_cache_is_removed_after_a_day(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    dead, fresh, alive = (cache / f".{name}.1.part" for name in ("dead", "fresh", "alive"))
    for folder in (dead, fresh, alive):
        folder.mkdir(parents=True)
        (folder / "train.arrow").write_text("half")
    for folder in (dead, alive):
        os.utime(folder, (time.time() - 2 * prepare.LEFTOVER_SECONDS,) * 2)
    with prepare._claim(alive, alone=False):
        name = prepared(RowSplits(write(tmp_path / "t.csv", ROWS)), cache).fingerprint
    assert set(cache.iterdir()) == {cache / name, fresh, alive}


@pytest.mark.parametrize("damage", ["truncate", "remove", "tokenizer", "about"])
def test_a_damaged_cache_is_made_anew_and_said(tmp_path: Path, damage: str) -> None:
    splits = RowSplits(write(tmp_path / "t.csv", ROWS))
    first = prepared(splits, tmp_path / "cache")
    expected = first.splits["train"].tokens.values.tolist()
    folder = tmp_path / "cache" / first.fingerprint
    if damage == "truncate":
        content = (folder / "train.arrow").read_bytes()
        (folder / "train.arrow").unlink()  # the old file stays mapped
        (folder / "train.arrow").write_bytes(content[: len(content) // 2])
    elif damage == "remove":
        (folder / "dev.arrow").unlink()
    else:
        (folder / {"tokenizer": "tokenizer.json", "about": "about.json"}[damage]).write_text("{")
    again = prepared(splits, tmp_path / "cache")
    assert "the cache is damaged" in again.notes[0]
    assert again.splits["train"].tokens.values.tolist() == expected
    assert prepared(splits, tmp_path / "cache").notes == first.notes


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "encode_rows", fail)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device"):
        prepared(RowSplits(write(tmp_path / "t.csv", ROWS)), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x", "a")] * 5, r"every row has the label 'a', expected at least two classes"),
        (
            [("x", "a")] * 5 + [("y", "b")] * 5 + [("z", "bb")],
            r"t\.csv, row 11, column 'label': 1 example of the class 'bb', expected at least 2",
        ),
        ([("x", "a"), ("y", "b")], r"1 example of the class 'a'"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(tmp_path: Path, rows: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(RowSplits(write(tmp_path / "t.csv", rows)), tmp_path / "cache")


def test_a_label_of_dev_that_training_lacks_is_named(tmp_path: Path) -> None:
    splits = RowSplits(write(tmp_path / "t.csv", ROWS), write(tmp_path / "d.csv", [("x", "a"), ("y", "c")]))
    with pytest.raises(InputError, match=r"d\.csv, row 2, column 'label': label 'c', expected one of the training"):
        prepared(splits, tmp_path / "cache")


def test_skipping_every_row_is_an_error(tmp_path: Path) -> None:
    splits = RowSplits(write(tmp_path / "t.csv", [(" ", "a"), ("", "b")]))
    with pytest.raises(InputError, match=r"t\.csv: no row can be used \(2 rows: empty text"):
        prepared(splits, tmp_path / "cache", bad_rows="skip")


def test_progress_is_told(tmp_path: Path) -> None:
    stages: dict[str, tuple[int, int | None]] = {}
    prepare_texts(
        RowSplits(write(tmp_path / "t.csv", ROWS)),
        shape="sentence",
        rating=False,
        config=DataConfig(),
        cache=tmp_path / "cache",
        progress=lambda stage, done, total: stages.__setitem__(stage, (done, total)),
    )
    assert stages == {
        "reading t.csv": (40, None),
        "counting words": (36, 36),
        "encoding train": (36, 36),
        "encoding dev": (4, 4),
    }


def test_the_probe_is_a_data_set_like_any_other(tmp_path: Path) -> None:
    data = prepared(RowSplits(probe_rows(Probe(rows=300))), tmp_path / "cache")
    assert data.labels.classes == ("blue", "red")
    assert set(data.splits["train"].tokens.lengths.tolist()) == {32}
