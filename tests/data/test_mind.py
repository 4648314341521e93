import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from datransformer.data import readers
from datransformer.data.errors import BadRows, InputError
from datransformer.data.mind import Behaviors, read_behaviors, read_news, write_predictions

NEWS = (
    'N1\tlifestyle\troyals\tThe "Brands" Queen Wears\tShop the notebooks\thttps://a\t[{"Label": "Q"}]\t[]\n'
    "N2\tnews\tworld\t\"I'll go\tAbstract\thttps://b\t[]\t[]\n"
    "N3\tnews\tworld\tCafé\t\thttps://c\t[]\t[]\n"
)
BEHAVIORS = (
    "1\tU1\t11/11/2019 9:05:58 AM\tN1 N2 N3\tN4-1 N5-0\n"
    "2\tU2\t11/12/2019 6:11:30 PM\t\tN6-0 N7-0 N8-1\n"
    "3\tU3\t11/12/2019 6:11:30 PM\tN9\tN1-1\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.tsv"


def news(path: Path, bad_rows: BadRows | None = None) -> dict[str, str]:
    return {
        identity: title
        for chunk in read_news(path, bad_rows or BadRows())
        for identity, title in zip(*chunk, strict=True)
    }


def unroll(chunks: Iterator[Behaviors]) -> list[tuple[str, list[str], list[tuple[str, int | None]]]]:
    rows = []
    for chunk in chunks:
        assert len(chunk) == len(chunk.history_offsets) - 1 == len(chunk.candidate_offsets) - 1
        history = chunk.history.to_pylist()
        candidates = chunk.candidates.to_pylist()
        clicked = [None] * len(candidates) if chunk.clicked is None else chunk.clicked.tolist()
        shown = list(zip(candidates, clicked, strict=True))
        for i, impression in enumerate(chunk.impression):
            a, b = chunk.history_offsets[i : i + 2]
            c, d = chunk.candidate_offsets[i : i + 2]
            rows.append((impression, history[a:b], shown[c:d]))
    return rows


def test_news_titles_keep_their_quotes(path: Path) -> None:
    path.write_text(NEWS, encoding="utf-8")
    assert news(path) == {"N1": 'The "Brands" Queen Wears', "N2": "\"I'll go", "N3": "Café"}


@pytest.mark.parametrize("fields", [4, 5, 7, 9])
def test_news_of_four_or_more_columns(path: Path, fields: int) -> None:
    row = ["N1", "news", "world", "Title", "more", "x", "y", "z", "w"]
    path.write_text("\t".join(row[:fields]) + "\n", encoding="utf-8")
    assert news(path) == {"N1": "Title"}


def test_news_of_fewer_columns_is_refused(path: Path) -> None:
    path.write_text("N1\tnews\tTitle\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"file.tsv, row 1: the number of fields is 3, expected at least 4 .*: id, cat"
    ):
        news(path)


def test_empty_titles_and_duplicates_are_counted_even_when_bad_rows_stop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("N1\ta\tb\tFirst\nN2\ta\tb\t \nN1\ta\tb\tSecond\nN3\ta\tb\tThird\n", encoding="utf-8")
    for size in (24, 32, 1000):
        monkeypatch.setattr(readers, "BLOCK_SIZE", size)
        bad_rows = BadRows()
        assert news(path, bad_rows) == {"N1": "First", "N2": "", "N3": "Third"}
        assert bad_rows.counts == {"empty title": 1, "duplicate news id": 1}
        assert bad_rows.first["duplicate news id"] == f"{path}, row 3, column 'id': 'N1' came before"
        assert bad_rows.first["empty title"] == f"{path}, row 2, column 'title': empty title"


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        (b"N2\ta\tb\n", "title", "wrong number of fields"),
        (b"N2\ta\tb\tc\td\n", "title", "wrong number of fields"),
        (b"N2\ta\tb\tc\xff\n", "title", "bytes that are not UTF-8"),
        (b"N2\ta\tb\tc\x00\n", "title", "NUL byte in title"),
        (b" \ta\tb\tc\n", "id", "empty news id"),
    ],
)
def test_bad_news_stop_or_are_skipped(path: Path, row: bytes, column: str, problem: str) -> None:
    path.write_bytes(b"N1\ta\tb\tFirst\n" + row + b"N3\ta\tb\tThird\n")
    with pytest.raises(InputError, match=f"file.tsv, row 2, column '{column}': {problem}, expected"):
        news(path)
    bad_rows = BadRows(skip=True)
    assert news(path, bad_rows) == {"N1": "First", "N3": "Third"}
    assert bad_rows.counts == {problem: 1}


def test_no_usable_news_is_an_error(path: Path) -> None:
    path.write_text("\ta\tb\tc\n", encoding="utf-8")
    with pytest.raises(InputError, match="no news that can be used"):
        news(path, BadRows(skip=True))


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_behaviors_with_clicks(path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(readers, "BLOCK_SIZE", size)
    path.write_text(BEHAVIORS, encoding="utf-8")
    assert unroll(read_behaviors(path, BadRows())) == [
        ("1", ["N1", "N2", "N3"], [("N4", 1), ("N5", 0)]),
        ("2", [], [("N6", 0), ("N7", 0), ("N8", 1)]),
        ("3", ["N9"], [("N1", 1)]),
    ]


def test_behaviors_without_clicks_and_with_stray_spaces(path: Path) -> None:
    path.write_text("7\tU1\tt\t N1  N2 \tN4 N5 \n8\tU1\tt\t\tN-6\n", encoding="utf-8")
    assert unroll(read_behaviors(path, BadRows(), labelled=False)) == [
        ("7", ["N1", "N2"], [("N4", None), ("N5", None)]),
        ("8", [], [("N-6", None)]),
    ]


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        (b"2\tU2\tt\tN1\n", "impressions", "wrong number of fields"),
        (b"2\tU2\tt\tN1\tN4-1\tmore\n", "impressions", "wrong number of fields"),
        (b"2\tU2\tt\tN1\t \n", "impressions", "no candidates"),
        (b"2\tU2\tt\tN1\tN4-1 N5\n", "impressions", "a candidate without its click"),
        (b"2\tU2\tt\tN1\tN4-1 N5-2\n", "impressions", "a candidate without its click"),
        (b"2\tU2\tt\tN1\t-1 N5-1\n", "impressions", "a candidate without its click"),
        (b"2\tU2\tt\tN\xff\tN4-1\n", "history", "bytes that are not UTF-8"),
        (b"2\tU2\tt\tN1\tN4\x00-1\n", "impressions", "NUL byte in impressions"),
        (b" \tU2\tt\tN1\tN4-1\n", "impression", "empty impression id"),
    ],
)
def test_bad_impressions_stop_or_are_skipped(path: Path, row: bytes, column: str, problem: str) -> None:
    path.write_bytes(b"1\tU1\tt\tN1 N2\tN3-0\n" + row + b"3\tU3\tt\t\tN4-1 N5-0\n")
    with pytest.raises(InputError, match=f"file.tsv, row 2, column '{column}': {problem}, expected"):
        unroll(read_behaviors(path, BadRows()))
    bad_rows = BadRows(skip=True)
    assert unroll(read_behaviors(path, bad_rows)) == [
        ("1", ["N1", "N2"], [("N3", 0)]),
        ("3", [], [("N4", 1), ("N5", 0)]),
    ]
    assert bad_rows.counts == {problem: 1}


def test_behaviors_of_nothing_but_blank_lines(path: Path) -> None:
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"file.tsv: the file has no rows"):
        unroll(read_behaviors(path, BadRows()))


def test_behaviors_stream(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_SIZE", 1 << 13)
    with path.open("w", encoding="utf-8") as file:
        for number in range(50_000):
            file.write(f"{number}\tU1\tt\tN1 N2 N3\tN4-1 N5-0\n")
    tracemalloc.start()
    try:
        rows = sum(len(chunk) for chunk in read_behaviors(path, BadRows()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 50_000
    assert peak < path.stat().st_size / 2


def test_predictions_rank_the_earlier_of_equals_first(tmp_path: Path) -> None:
    path = tmp_path / "prediction.txt"
    path.write_text("old", encoding="utf-8")
    write_predictions(path, [("1", [0.1, 0.9, 0.5]), ("2", [1.0, 2.0, 1.0, 2.0]), ("3", [7])])
    assert path.read_bytes() == b"1 [3,1,2]\n2 [3,1,4,2]\n3 [1]\n"
    assert list(tmp_path.iterdir()) == [path]


def test_predictions_that_fail_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "prediction.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="scores of impression 2: got NaN, expected numbers"):
        write_predictions(path, [("1", [0.1]), ("2", [float("nan")])])
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_predictions_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prediction.txt: cannot be written"):
        write_predictions(tmp_path / "gone" / "prediction.txt", [("1", [0.1])])
