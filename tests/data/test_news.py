from pathlib import Path

import numpy as np
import pytest

from datransformer.data.config import DataConfig
from datransformer.data.errors import InputError
from datransformer.data.news import ClickBatches, NewsData, impression_batches, name_news, prepare_news
from datransformer.data.store import Ragged

TITLES = {"N1": "one two", "N2": "three", "N3": "four five six seven", "N4": "", "N5": "eight"}
IMPRESSIONS = [
    ("7", "N1 N2", "N3-1 N4-0 N5-0"),
    ("8", "", "N2-0 N1-1"),
    ("9", "N9 N5 N1 N2 N3", "N5-0 N9-0 N4-1 N1-1"),
    ("x", "N1", "N2-1"),
]


def write(folder: Path, impressions: list[tuple[str, str, str]] = IMPRESSIONS) -> Path:
    folder.mkdir(exist_ok=True)
    news = [f"{name}\tnews\tsub\t{title}\tabstract\turl\t[]\t[]" for name, title in TITLES.items()]
    (folder / "news.tsv").write_text("\n".join(news) + "\n")
    behaviors = [f"{name}\tU1\t11/11/2019 9:05:58 AM\t{read}\t{shown}" for name, read, shown in impressions]
    (folder / "behaviors.tsv").write_text("\n".join(behaviors) + "\n")
    return folder


def prepared(folder: Path, dev: bool = True, **options: object) -> NewsData:
    write(folder / "train")
    return prepare_news(
        folder / "train",
        write(folder / "dev") if dev else None,
        None,
        config=DataConfig(**options),  # type: ignore[arg-type]
        cache=folder / "cache",
    )


def test_news_and_impressions_are_numbered(tmp_path: Path) -> None:
    data = prepared(tmp_path, max_history=3, max_title_length=3)
    train = data.splits["train"]
    words = [[data.tokenizer.words[token] for token in train.titles[row]] for row in range(6)]
    assert words == [[], ["one", "two"], ["three"], ["four", "five", "six"], [], ["eight"]]
    assert [train.history[row].tolist() for row in range(4)] == [[1, 2], [], [1, 2, 3], [1]]
    assert [train.candidates[row].tolist() for row in range(4)] == [[3, 4, 5], [2, 1], [5, 0, 4, 1], [2]]
    assert train.clicked is not None
    assert train.clicked.tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 1, 1]
    assert [train.name(row) for row in range(4)] == ["7", "8", "9", "x"]
    said = "\n".join(data.notes)
    assert "news that is not listed, left out of a history" in said
    assert "news that is not listed, a candidate without a title" in said


def test_without_dev_some_impressions_are_held_out(tmp_path: Path) -> None:
    data = prepared(tmp_path, dev=False)
    train, dev = data.splits["train"].members.tolist(), data.splits["dev"].members.tolist()
    assert sorted(train + dev) == [0, 1, 2, 3]
    assert len(dev) == 1
    assert any("held out 1 of 4 impressions" in note for note in data.notes)


def test_each_click_meets_news_that_was_not_clicked(tmp_path: Path) -> None:
    train = prepared(tmp_path).splits["train"]
    clicks = ClickBatches(train, negatives=4)
    assert len(clicks.sizes) == 4  # the click on the only candidate of "x" tells nothing
    batch = clicks.batch(np.arange(4), (0, 0))
    titles = [train.titles[row].tolist() for row in range(6)]
    shown = [
        [
            titles.index([t for t in batch.inputs["titles"][place].tolist() if t]) if place >= 0 else None
            for place in row
        ]
        for row in batch.inputs["candidates"].tolist()
    ]
    # Titles 0 and 4 are both empty, and index() finds the first: both read as 0 here.
    assert [row[0] for row in shown] == [3, 1, 0, 1]
    assert [set(row[1:]) for row in shown] == [{0, 5}, {2}, {5, 0}, {5, 0}]
    assert shown[0][1] != shown[0][2]  # none twice before all were drawn
    assert batch.targets is not None
    assert batch.targets.tolist() == [0] * 4
    assert batch.rows.tolist() == [1, 2, 3, 3]


def test_titles_know_words_of_the_vectors_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("unheard 1\nof 2\n")
    plain = prepared(tmp_path)
    data = prepared(tmp_path, vectors=str(path), vector_words=True)
    assert data.tokenizer.words == [*plain.tokenizer.words, "unheard", "of"]
    assert data.notes[0] == "words of vectors.txt in the vocabulary beside those of training: 2"
    assert data.fingerprint != plain.fingerprint == prepared(tmp_path, vectors=str(path)).fingerprint


def test_impressions_that_teach_nothing_are_counted(tmp_path: Path) -> None:
    shown = ["N1-1", "N1-1 N2-1", "N1-0 N2-0", "N1-0 N2-1", "N3-1 N1-0"]
    folder = write(tmp_path / "train", [(str(number), "N1", news) for number, news in enumerate(shown)])
    data = prepare_news(folder, folder, None, config=DataConfig(), cache=tmp_path / "cache")
    note = "left out 3 of 5 training impressions: nothing or everything in them was clicked"
    assert note in data.notes
    assert ClickBatches(data.splits["train"], 4).batch(np.arange(2), ()).rows.tolist() == [4, 5]


def test_negatives_are_drawn_by_the_key_and_shared_out_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    many = [
        (str(number), "N1", " ".join(f"N{news}-{int(news == 1)}" for news in rng.permutation([1, 2, 3, 4, 5])))
        for number in range(20)
    ]
    train = prepare_news(
        write(tmp_path / "train", many), None, None, config=DataConfig(), cache=tmp_path / "cache"
    ).splits["train"]
    clicks = ClickBatches(train, negatives=2)

    def candidates(key: tuple[int, ...], rank: int = 0, world: int = 1) -> list[list[tuple[int, ...]]]:
        inputs = clicks.batch(np.arange(8), key, rank, world).inputs
        return [[tuple(inputs["titles"][place].tolist()[:1]) for place in row] for row in inputs["candidates"]]

    whole = candidates((1, 2))
    assert whole == candidates((1, 2))
    assert whole != candidates((1, 3))
    assert candidates((1, 2), 0, 2) == whole[0::2]
    assert candidates((1, 2), 1, 2) == whole[1::2]


def test_news_is_named_once() -> None:
    titles = Ragged.from_lengths(np.arange(1, 7), np.array([0, 1, 2, 3]))
    named = name_news(titles, np.array([[3, 1], [1, -1]]), np.array([[1], [3]]))
    assert named["titles"].tolist() == [[1, 0, 0], [4, 5, 6]]
    assert named["history"].tolist() == [[1, 0], [0, -1]]
    assert named["candidates"].tolist() == [[0], [1]]


def test_every_impression_is_evaluated_once(tmp_path: Path) -> None:
    dev = prepared(tmp_path).splits["dev"]
    seen = [number for numbers, _, _ in impression_batches(dev, 3) for number in numbers]
    assert sorted(seen) == [0, 1, 2, 3]


def test_what_cannot_be_learned_from_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "train", [("1", "N1", "N2-0"), ("2", "N1", "N2-0")])
    data = prepare_news(folder, folder, None, config=DataConfig(), cache=tmp_path / "cache")
    with pytest.raises(InputError, match="no impression has a click"):
        ClickBatches(data.splits["train"], 4)


@pytest.mark.parametrize("missing", ["news.tsv", "behaviors.tsv", None])
def test_a_missing_file_or_folder_is_named(tmp_path: Path, missing: str | None) -> None:
    folder = tmp_path / "train"
    if missing:
        write(folder)
        (folder / missing).unlink()
    with pytest.raises(InputError, match=missing or "train"):
        prepare_news(folder, None, None, config=DataConfig(), cache=tmp_path / "cache")
