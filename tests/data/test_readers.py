import csv
import gzip
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datransformer.data import readers
from datransformer.data.errors import BadRows, InputError
from datransformer.data.readers import FORMATS, Columns, read_rows, tree_phrases

PAIR = Columns(("text",), "other", "label")
UNLABELLED = Columns(label=None)

AG = (
    '"3","Wall St. Bears Claw Back Into the Black (Reuters)",'
    '"Reuters - Short-sellers, Wall Street\'s dwindling\\band of ultra-cynics, are seeing green again."\n'
    '"4","A ""quoted"" title","oil prices\\near \\$46"\n'
    '"1","One","two\\nThree\\n"\n'
    '"2","","Only a description"\n'
)
TREES = (
    "(3 (2 (2 The) (2 Rock)) (4 (3 (2 is) (4 great)) (2 .)))\n"
    "(2 (2 Neutral) (2 film))\n"
    "(0 (2 -LRB-) (1 (2 1\\/2) (2 -RRB-)))\n"
    "(1 bad)\n"
    "(4 (3 caf\u00e9) (2 noir))\n"
)
SNLI_HEADER = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tcaptionID\tpairID\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5"
)
SNLI = [
    ("neutral", 'A "man" sleeps.', "He dreams."),
    ("-", "Nobody agrees.", "On this."),
    ("entailment", '"Hello" he says', "He speaks"),
    ("contradiction", "A dog runs.", "n/a"),
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


Write = Callable[[str, str | bytes], Path]


def read(
    path: Path,
    columns: Columns | None = None,
    bad_rows: BadRows | None = None,
    format: str = "auto",  # noqa: A002
) -> list[tuple[Any, ...]]:
    """Every row as a tuple, in the order of the batch's columns."""
    batches = list(read_rows(path, columns or Columns(), bad_rows or BadRows(), format=format))
    assert all(batch.num_rows for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def check_bad(
    path: Path,
    row: int,
    column: str,
    problem: str,
    left: list[int],
    columns: Columns | None = None,
    format: str = "auto",  # noqa: A002
) -> str:
    """Row ``row`` stops the reading with a message of one line or, skipped, is counted; ``left`` are then read."""
    where = f"^{re.escape(str(path))}, row {row}, column {re.escape(repr(column))}: {re.escape(problem)}, expected "
    with pytest.raises(InputError, match=where) as caught:
        read(path, columns, format=format)
    assert "\n" not in str(caught.value)
    bad_rows = BadRows(skip=True)
    assert [found[0] for found in read(path, columns, bad_rows, format)] == left
    assert bad_rows.counts == {problem: 1}
    return str(caught.value)


def as_csv(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    return table_bytes(pa.Table.from_pylist(rows))


def table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


class TestSchema:
    def test_columns_are_those_that_are_asked_for(self, write: Write) -> None:
        path = write("a.csv", "label,other,text\n1,b,a\n")
        (batch,) = read_rows(path, PAIR, BadRows())
        assert batch.schema == pa.schema(
            {"row": pa.int64(), "text": pa.string(), "text_pair": pa.string(), "label": pa.string()}
        )
        assert batch.to_pylist() == [{"row": 1, "text": "a", "text_pair": "b", "label": "1"}]
        (batch,) = read_rows(path, UNLABELLED, BadRows())
        assert batch.schema == pa.schema({"row": pa.int64(), "text": pa.string()})

    @pytest.mark.parametrize("name", ["csv", "tsv", "jsonl", "parquet"])
    def test_texts_of_several_columns_are_joined_and_blank_ones_left_out(self, write: Write, name: str) -> None:
        rows = [{"a": "x", "b": " y", "label": " 1 "}, {"a": "", "b": "z", "label": "2"}]
        content: dict[str, str | bytes] = {
            "csv": as_csv(rows),
            "tsv": as_csv(rows, "\t"),
            "jsonl": "\n".join(json.dumps(row) for row in rows),
            "parquet": as_parquet([rows[0], {"a": None, "b": "z", "label": "2"}]),
        }
        path = write(f"x.{name}", content[name])
        assert read(path, Columns(("a", "b"))) == [(1, "x  y", "1"), (2, "z", "2")]

    def test_one_column_may_be_read_as_two_things(self, write: Write) -> None:
        path = write("a.csv", "text\nx\n")
        assert read(path, Columns(("text",), "text", "text")) == [(1, "x", "x", "x")]

    def test_glue_sst2_is_a_plain_tsv(self, write: Write) -> None:
        path = write("train.tsv", "sentence\tlabel\nhide new secretions from the parental units \t0\n")
        columns = Columns(("sentence",))
        assert read(path, columns) == [(1, "hide new secretions from the parental units ", "0")]


class TestFiles:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"gone.csv: there is no such file"):
            read_rows(tmp_path / "gone.csv", Columns(), BadRows())

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a folder, expected a file"):
            read_rows(tmp_path, Columns(), BadRows())

    def test_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.csv")
        with pytest.raises(InputError, match=r"a.csv: is not a regular file, expected a file"):
            read_rows(tmp_path / "a.csv", Columns(), BadRows())

    @pytest.mark.parametrize("format", ["csv", "tsv", "snli_txt"])
    def test_blank_lines(self, write: Write, format: str) -> None:  # noqa: A002
        path = write("a", "\n\r\n \n")
        with pytest.raises(InputError, match=f"{path}: the file has nothing but blank lines, expected column names"):
            read(path, format=format)

    @pytest.mark.parametrize("format", FORMATS)
    def test_empty(self, write: Write, format: str) -> None:  # noqa: A002
        path = write("empty", "")
        with pytest.raises(InputError, match=f"{path}: the file is empty, expected something in it"):
            read(path, format=format)

    @pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
    def test_empty_inside_gzip(self, write: Write, name: str) -> None:
        with pytest.raises(InputError, match="the file is empty, expected rows"):
            read(write(f"{name}.gz", ""))

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.csv", "text,label"),
            ("a.csv", "text,label\n"),
            ("a.csv", "text,label\r\n\r\n"),
            ("a.tsv", "text\tlabel\n"),
            ("a.jsonl", "\n \n"),
            ("a.parquet", table_bytes(pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.int8())}))),
        ],
    )
    def test_no_rows(self, write: Write, name: str, content: str | bytes) -> None:
        path = write(name, content)
        with pytest.raises(InputError, match=f"{path}: the file has no rows, expected at least one"):
            read(path)

    def test_unknown_format(self, write: Write) -> None:
        path = write("a.csv", "text\nx\n")
        expected = f"{path}: unknown format 'xls', expected auto or one of: csv, tsv, jsonl, parquet, ag_news, "
        with pytest.raises(InputError, match=expected):
            read_rows(path, Columns(), BadRows(), format="xls")

    @pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "csv", "a.xlsx"])
    def test_name_that_does_not_tell(self, write: Write, name: str) -> None:
        path = write(name, "x")
        with pytest.raises(InputError, match=f"{path}: the name does not tell the format, expected .* csv, tsv, jsonl"):
            read(path)

    def test_no_text_column(self, write: Write) -> None:
        with pytest.raises(InputError, match="no text column is named"):
            read(write("a.csv", "text\nx\n"), Columns(()))

    @pytest.mark.parametrize("name", ["A.CSV", "a.csv.gz", "a.tsv.gz", "a.json", "a.ndjson", "a.jsonl.gz", "a.json.gz"])
    def test_format_by_name(self, write: Write, name: str) -> None:
        delimiter = "\t" if "tsv" in name else ","
        lines = '{"text": "a", "label": 1}\n' if "json" in name else f"text{delimiter}label\na{delimiter}1\n"
        assert read(write(name, lines)) == [(1, "a", "1")]

    @pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.jsonl"])
    def test_byte_order_mark(self, write: Write, name: str) -> None:
        delimiter = "\t" if "tsv" in name else ","
        lines = '{"text": "a", "label": 1}\n' if "json" in name else f"text{delimiter}label\na{delimiter}1\n"
        assert read(write(name, b"\xef\xbb\xbf" + lines.encode())) == [(1, "a", "1")]

    def test_utf16(self, write: Write) -> None:
        with pytest.raises(InputError, match=r"a.csv: the file is in UTF-16, expected UTF-8"):
            read(write("a.csv", "text,label\na,1\n".encode("utf-16")))

    @pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
    def test_truncated_gzip(self, write: Write, name: str) -> None:
        lines = "text,label\n" + "".join(f"{i * 7919},1\n" for i in range(9999))
        packed = gzip.compress(lines.encode())
        path = write(name, packed[: len(packed) // 2])
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            read(path, bad_rows=BadRows(skip=True))

    def test_damaged_gzip(self, write: Write) -> None:
        packed = bytearray(gzip.compress(b"text,label\na,1\n" * 99))
        packed[12:20] = b"\xff" * 8
        with pytest.raises(InputError, match=r"a.csv: cannot be read"):
            read(write("a.csv", bytes(packed)))

    @pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
    def test_missing_column_lists_those_there_are(self, write: Write, name: str) -> None:
        rows = [{"body": "x", "class": "1"}]
        content = as_parquet(rows) if "parquet" in name else as_csv(rows, "\t" if "tsv" in name else ",")
        path = write(name, content)
        with pytest.raises(InputError, match=f"{path}: no column 'text', expected another .* it has 'body', 'class'"):
            read(path)

    def test_many_columns_are_not_all_listed(self, write: Write) -> None:
        path = write("a.csv", ",".join(f"c{i}" for i in range(33)) + "\n")
        with pytest.raises(InputError, match=r"it has 'c0', .* 'c19' and 13 more"):
            read(path)

    def test_column_that_is_there_twice(self, write: Write) -> None:
        path = write("a.csv", "text,label,text\na,1,b\n")
        with pytest.raises(InputError, match=f"{path}: more than one column 'text'"):
            read(path)
        assert read(write("b.csv", "x,x,text\na,1,b\n"), UNLABELLED) == [(1, "b")]


class TestDelimited:
    def test_quotes_line_breaks_and_blank_lines(self, write: Write) -> None:
        path = write("a.csv", '"te\nxt",label\r\n"a ""b""\r\nc,d",1\r\n\r\nmid"dle, x \r\n')
        assert read(path, Columns(("te\nxt",))) == [(1, 'a "b"\r\nc,d', "1"), (2, 'mid"dle', "x")]

    def test_labels_stay_as_they_are_written(self, write: Write) -> None:
        path = write("a.csv", "text,label\na,01\nb,1.0\nc,NA\nd,null\nnull,true\n")
        assert [row[2] for row in read(path)] == ["01", "1.0", "NA", "null", "true"]

    @pytest.mark.parametrize(("ragged", "count"), [("only", 1), ("a,1,more", 3), ("a,1,,", 4), ('"x\ny"', 1)])
    def test_ragged_row_and_the_numbers_after_it(self, write: Write, ragged: str, count: int) -> None:
        path = write("a.csv", f'text,label\n"a\nb",1\n\n{ragged}\nc,1\nd,2\n')
        message = check_bad(path, 2, "label", "wrong number of fields", [1, 3, 4])
        assert f"expected 2 and not {count}" in message

    @pytest.mark.parametrize("size", [16, 19, 24, 40, 4096])
    def test_row_numbers_across_blocks(self, write: Write, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", size)
        lines = [f"t{i},{i}" if i % 3 else (f"t{i}" if i % 2 else "\n") for i in range(1, 60)]
        path = write("a.csv", "\n".join(["text,label", *lines]))
        records = [line for line in lines if line != "\n"]
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows) == [
            (row, *line.split(",")) for row, line in enumerate(records, 1) if "," in line
        ]
        assert bad_rows.counts == {"wrong number of fields": sum("," not in line for line in records)}

    def test_nothing_but_ragged_rows(self, write: Write) -> None:
        path = write("a.csv", "text,label\na\nb\n")
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows) == []
        assert bad_rows.counts == {"wrong number of fields": 2}
        with pytest.raises(InputError, match="row 1, column 'label': wrong number of fields"):
            read(path)

    def test_ragged_rows_at_the_end(self, write: Write) -> None:
        check_bad(write("a.csv", "text,label\na,1\nb"), 2, "label", "wrong number of fields", [1])

    def test_the_first_bad_row_is_the_one_that_stops(self, write: Write) -> None:
        path = write("a.csv", "text,label\n,1\nb\n")
        with pytest.raises(InputError, match="row 1, column 'text': empty text"):
            read(path)
        path = write("b.csv", "text,label\nb\n,1\n")
        with pytest.raises(InputError, match="row 1, column 'label': wrong number of fields"):
            read(path)

    def test_ragged_row_with_bytes_that_are_not_utf8(self, write: Write) -> None:
        check_bad(write("a.csv", b"text,label\na,1\n\xff\xfe\nc,2\n"), 2, "label", "wrong number of fields", [1, 3])

    @pytest.mark.parametrize("size", [16, 17, 18, 19, 20, 4096])
    def test_bytes_that_are_not_utf8(self, write: Write, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", size)
        content = b"text,label,more\n\xc3\xa9\xf0\x9f\x98\x80,1,\xff\nb\xe9b,1,\nc\xe2\x82\xac\xe2\x82\xac,2,\n"
        path = write("a.csv", content)
        check_bad(path, 2, "text", "bytes that are not UTF-8", [1, 3])
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows) == [(1, "é😀", "1"), (3, "c€€", "2")]

    def test_the_stand_in_for_bad_bytes_may_itself_be_in_a_text(self, write: Write) -> None:
        assert read(write("a.csv", "text,label\na\x1ab,1\n")) == [(1, "a\x1ab", "1")]

    def test_label_that_is_not_utf8_and_a_character_cut_off_by_the_end(self, write: Write) -> None:
        check_bad(write("a.csv", b"text,label\na,\xe9\nb,2\n"), 1, "label", "bytes that are not UTF-8", [2])
        check_bad(write("b.csv", b"text,label\na,1\nb,\xe2\x82"), 2, "label", "bytes that are not UTF-8", [1])

    def test_header_that_is_not_utf8(self, write: Write) -> None:
        with pytest.raises(InputError, match=r"a.csv: the header cannot be read .*, expected column names"):
            read(write("a.csv", b"t\xffxt,label\na,1\n"))

    def test_header_with_an_unclosed_quote(self, write: Write) -> None:
        with pytest.raises(InputError, match=r"a.csv: the header cannot be read .*, expected column names"):
            read(write("a.csv", '"text,label\na,1\n'))

    @pytest.mark.parametrize("row", ['b,"2', '"b,2', 'b,"2\nc,3\nd,4\n', '"b,2\nc,3\n', '"b""'])
    def test_quote_that_is_never_closed(self, write: Write, row: str) -> None:
        path = write("a.csv", f"text,label\na,1\n{row}")
        for skip in (False, True):
            with pytest.raises(InputError, match=f"{path}, row 2: a quote is never closed, expected a closing one"):
                read(path, bad_rows=BadRows(skip))

    def test_quote_that_swallows_more_than_a_block(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", 64)
        path = write("a.csv", 'text,label\na,1\nb,2\n"c,3\n' + "d,4\n" * 99)
        expected = f"{path}, row 3: a quote that is never closed, or more than 64 bytes, expected a shorter row"
        with pytest.raises(InputError, match=expected):
            read(path)

    def test_row_that_is_too_long_after_ragged_ones(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", 32)
        path = write("a.txt", "sentence1\tsentence2\tgold_label\na\tb\tneutral\nb\nc\n" + "d" * 99)
        with pytest.raises(InputError, match=f"{path}, row 4: more than 32 bytes, expected a shorter row"):
            read(path, bad_rows=BadRows(skip=True), format="snli_txt")

    @pytest.mark.parametrize("size", range(20, 40))
    def test_last_row_without_a_line_end_across_blocks(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", size)
        assert [row[0] for row in read(write("a.csv", "text,label\n" + "a,1\n" * 20 + "bcdef,1"))] == list(range(1, 22))

    def test_cell_of_50_000_words(self, write: Write) -> None:
        text = " ".join(f"word{i}" for i in range(50_000))
        for name, content in (
            ("a.csv", f'text,label\na,1\n"{text}",2\nb,3\n'),
            ("a.jsonl", json.dumps({"text": text, "label": 2})),
        ):
            assert text in [row[1] for row in read(write(name, content))]

    @pytest.mark.parametrize(
        ("row", "column", "problem"),
        [
            ("a\0b,x,1", "text", "NUL byte in text"),
            ("a,x\0,1", "other", "NUL byte in text_pair"),
            ("a,x,\0", "label", "NUL byte in label"),
            (",x,1", "text", "empty text"),
            (" \u00a0\t,x,1", "text", "empty text"),
            ("a,,1", "other", "empty text_pair"),
            ("a,x,", "label", "no label"),
            ("a,x,  ", "label", "no label"),
            (",,", "text", "empty text"),
        ],
    )
    def test_cells_that_cannot_be_used(self, write: Write, row: str, column: str, problem: str) -> None:
        check_bad(write("a.csv", f"text,other,label\na,b,1\n{row}\nc,d,2\n"), 2, column, problem, [1, 3], PAIR)

    def test_every_text_column_blank(self, write: Write) -> None:
        path = write("a.csv", "a,b,label\nx,y,1\n, ,1\n,y,1\n")
        check_bad(path, 2, "a, b", "empty text", [1, 3], Columns(("a", "b")))

    def test_the_first_row_of_each_problem_is_told(self, write: Write) -> None:
        path = write("a.csv", "text,label\n,1\nb,\n,2\nc,3\n")
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows) == [(4, "c", "3")]
        assert bad_rows.lines() == [
            f"2 rows: empty text (first: {path}, row 1, column 'text': empty text, expected some text)",
            f"1 rows: no label (first: {path}, row 2, column 'label': no label, expected a label)",
        ]

    def test_reading_may_stop_early(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", 64)
        batches = read_rows(write("a.csv", "text,label\n" + "a,1\n" * 9999), Columns(), BadRows())
        assert next(batches).num_rows < 99


class TestJson:
    @pytest.mark.parametrize(
        ("line", "column", "problem"),
        [
            ("{", "text", "not JSON"),
            ("[" * 100_000, "text", "not JSON"),
            ('{"text": "a", "label": NaN}', "text", "not JSON"),
            ('{"text": "a", "label": -Infinity}', "text", "not JSON"),
            ('{"text": "a", "label": ' + "9" * 5000 + "}", "text", "not JSON"),
            ('{"text": "a\0", "label": 1}', "text", "not JSON"),
            ('["a", 1]', "text", "not a JSON object"),
            ('"a"', "text", "not a JSON object"),
            ('{"text": "a"}', "label", "no such column"),
            ('{"label": "a"}', "text", "no such column"),
            ('{"text": ["a"], "label": 1}', "text", "neither a string nor a number"),
            ('{"text": "a", "label": {}}', "label", "neither a string nor a number"),
            ('{"text": "a", "label": true}', "label", "neither a string nor a number"),
            ('{"text": "a", "label": 1e999}', "label", "a number that is not finite"),
            ('{"text": null, "label": 1}', "text", "empty text"),
            ('{"text": " ", "label": 1}', "text", "empty text"),
            ('{"text": "a", "label": null}', "label", "no label"),
            ('{"text": "a\\u0000", "label": 1}', "text", "NUL byte in text"),
            ('{"text": "a\\ud800", "label": 1}', "text", "bytes that are not UTF-8"),
            (b'{"text": "\xff", "label": 1}', "text", "bytes that are not UTF-8"),
        ],
    )
    def test_bad_line(self, write: Write, line: str | bytes, column: str, problem: str) -> None:
        middle = line.encode() if isinstance(line, str) else line
        good = b'{"text": "a", "label": 1}\n'
        check_bad(write("a.jsonl", good + b"\n" + middle + b"\n" + good), 2, column, problem, [1, 3])

    def test_nothing_but_bad_lines(self, write: Write) -> None:
        bad_rows = BadRows(skip=True)
        assert read(write("a.jsonl", "{\n{\n"), bad_rows=bad_rows) == []
        assert bad_rows.counts == {"not JSON": 2}

    def test_missing_column_lists_those_there_are(self, write: Write) -> None:
        with pytest.raises(InputError, match="column 'text': no such column, expected one of: 'body', 'label'"):
            read(write("a.jsonl", '{"body": "a", "label": 1}'))

    def test_numbers(self, write: Write) -> None:
        labels = ["3", "3.0", "2.5", "-1", "1e2", '" x "', "12345678901234567890"]
        path = write("a.jsonl", "".join(f'{{"text": 7.0, "label": {label}}}\r\n' for label in labels))
        assert [row[1:] for row in read(path)] == [
            ("7", label) for label in ("3", "3", "2.5", "-1", "100", "x", "12345678901234567890")
        ]

    def test_blocks(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "BLOCK_SIZE", 50)
        path = write("a.jsonl", "".join(f'{{"text": "t{i}", "label": {i}}}\n' for i in range(10)))
        assert len(list(read_rows(path, Columns(), BadRows()))) == 5
        assert read(path) == [(i + 1, f"t{i}", str(i)) for i in range(10)]

    def test_line_that_is_too_long(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "LONGEST_LINE", 30)
        path = write("a.jsonl", '{"text": "a", "label": 1}\n' + '{"text": "aaaaaaaaaaaaa", "label": 1}\n')
        with pytest.raises(InputError, match=f"{path}, row 2: more than 30 bytes, expected a shorter line"):
            read(path)


class TestParquet:
    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
    )
    def test_texts(self, write: Write, kind: pa.DataType) -> None:
        table = pa.table({"text": pa.array(["a", "é", "a"]).cast(kind), "label": pa.array(["x", "y", "z"]).cast(kind)})
        assert read(write("a.parquet", table_bytes(table))) == [(1, "a", "x"), (2, "é", "y"), (3, "a", "z")]

    @pytest.mark.parametrize(
        ("labels", "expected"),
        [
            (pa.array([3, -1], pa.int8()), ["3", "-1"]),
            (pa.array([3, 2**63], pa.uint64()), ["3", str(2**63)]),
            (pa.array([3.0, 2.5], pa.float32()), ["3", "2.5"]),
            (pa.array([1e2, -4.0], pa.float64()), ["100", "-4"]),
            (pa.array([True, False]), ["true", "false"]),
            (pa.array([3, 4]).dictionary_encode(), ["3", "4"]),
        ],
    )
    def test_labels(self, write: Write, labels: pa.Array, expected: list[str]) -> None:
        path = write("a.parquet", table_bytes(pa.table({"text": ["a", "b"], "label": labels})))
        assert [row[2] for row in read(path)] == expected

    @pytest.mark.parametrize("label", [None, float("nan"), float("inf")])
    def test_label_that_is_missing(self, write: Write, label: float | None) -> None:
        path = write("a.parquet", table_bytes(pa.table({"text": ["a", "b", "c"], "label": [1.0, label, 2.0]})))
        check_bad(path, 2, "label", "no label", [1, 3])

    @pytest.mark.parametrize(
        ("text", "problem"), [(None, "empty text"), ("", "empty text"), ("\0", "NUL byte in text")]
    )
    def test_text_that_cannot_be_used(self, write: Write, text: str | None, problem: str) -> None:
        table = pa.table({"text": ["a", text, "c"], "label": ["1", "2", "3"]})
        check_bad(write("a.parquet", table_bytes(table)), 2, "text", problem, [1, 3])

    def test_strings_that_are_not_utf8(self, write: Write) -> None:
        raw = pa.array([b"a", b"\xff", b"", None], pa.binary())
        text = pa.StringArray.from_buffers(4, *raw.buffers()[1:], raw.buffers()[0])
        path = write("a.parquet", table_bytes(pa.table({"text": text, "label": [1, 2, 3, 4]})))
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows) == [(1, "a", "1")]
        assert bad_rows.counts == {"bytes that are not UTF-8": 1, "empty text": 2}
        with pytest.raises(InputError, match="row 2, column 'text': bytes that are not UTF-8"):
            read(path)

    def test_row_numbers_across_batches(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "PARQUET_ROWS", 7)
        path = write("a.parquet", as_parquet([{"text": f"t{i}", "label": i} for i in range(1, 31)]))
        assert read(path) == [(i, f"t{i}", str(i)) for i in range(1, 31)]

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ({"text": [1], "label": [1]}, "column 'text': holds int64, expected strings"),
            ({"text": [["a"]], "label": [1]}, "column 'text': holds list<.*>, expected strings"),
            ({"text": [b"a"], "label": [1]}, "column 'text': holds binary, expected strings"),
            ({"text": ["a"], "label": [[1]]}, "column 'label': holds list<.*>, expected strings, integers, floats or"),
        ],
    )
    def test_types_that_cannot_be_read(self, write: Write, table: dict[str, Any], message: str) -> None:
        path = write("a.parquet", table_bytes(pa.table(table)))
        with pytest.raises(InputError, match=f"{path}, {message}"):
            read(path)

    def test_damaged_files(self, write: Write) -> None:
        content = as_parquet([{"text": f"t{i}", "label": i} for i in range(999)])
        bad_name = content.replace(b"text", b"t\xffxt")
        for damaged in (b"PAR", b"no magic at all", content[:-99], content[99:], content[:-4] + b"PARE", bad_name):
            path = write("a.parquet", damaged)
            with pytest.raises(InputError, match=f"^{path}: cannot be read as parquet") as caught:
                read(path)
            assert "\n" not in str(caught.value)
        path = write("a.parquet", content[:4] + b"\xff" * 400 + content[404:])
        with pytest.raises(InputError, match=f"^{path}: cannot be read as parquet"):
            read(path)


class TestOriginals:
    def test_ag_news(self, write: Write) -> None:
        path = write("train.csv", AG)
        assert read(path, format="ag_news") == [
            (
                1,
                "Wall St. Bears Claw Back Into the Black (Reuters) Reuters - Short-sellers, Wall Street's dwindling "
                "band of ultra-cynics, are seeing green again.",
                "Business",
            ),
            (2, 'A "quoted" title oil prices near  $46', "Sci/Tech"),
            (3, "One two Three ", "World"),
            (4, "Only a description", "Sports"),
        ]
        assert [len(row) for row in read(path, UNLABELLED, format="ag_news")] == [2] * 4

    @pytest.mark.parametrize("label", ["0", "5", "x"])
    def test_ag_news_with_another_class(self, write: Write, label: str) -> None:
        path = write("train.csv", AG + f'"{label}","a","b"\n')
        check_bad(path, 5, "class", "unknown label", [1, 2, 3, 4], format="ag_news")

    def test_trees(self, write: Write) -> None:
        path = write("train.txt", TREES)
        bad_rows = BadRows()
        assert read(path, bad_rows=bad_rows, format="sst_trees") == [
            (1, "The Rock is great .", "positive"),
            (3, "( 1/2 )", "negative"),
            (4, "bad", "negative"),
            (5, "café noir", "positive"),
        ]
        assert bad_rows.counts == {"label '2' is left out": 1}
        assert bad_rows.first == {"label '2' is left out": f"{path}, row 2, column 'root': label '2' is left out"}

    def test_phrases_of_a_tree(self) -> None:
        assert tree_phrases("(3 (2 The) (4 (2 good) (3 film)))") == [
            ("The", "2"), ("good", "2"), ("film", "3"), ("good film", "4"), ("The good film", "3"),
        ]  # fmt: skip

    def test_trees_of_five_classes(self, write: Write) -> None:
        bad_rows = BadRows()
        rows = read(write("train.txt", TREES), bad_rows=bad_rows, format="sst_trees_5")
        assert [row[2] for row in rows] == ["3", "2", "0", "1", "4"]
        assert not bad_rows.counts

    def test_trees_without_labels_keep_the_neutral_ones(self, write: Write) -> None:
        assert len(read(write("train.txt", TREES), UNLABELLED, format="sst_trees")) == 5

    def test_a_deep_tree(self, write: Write) -> None:
        depth = 20_000
        path = write("train.txt", "(3 " * depth + "deep" + ")" * depth)
        assert read(path, format="sst_trees") == [(1, "deep", "positive")]

    @pytest.mark.parametrize(
        "tree",
        ["(", ")", "a", "3 a", "(3 a", "(3 a))", "(3)", "()", "(3 a b)", "(5 a)", "(x a)", "(3 a) (3 b)", "(3 (2 a) b)",
         "(3 a (2 b))", "((2 a))", "(3 a)b", "(3 (2 a)"],
    )  # fmt: skip
    def test_malformed_tree(self, write: Write, tree: str) -> None:
        check_bad(write("train.txt", f"(1 a)\n{tree}\n(4 b)\n"), 2, "tree", "not a tree", [1, 3], format="sst_trees")

    @pytest.mark.parametrize("name", ["snli_1.0_dev.jsonl", "snli_1.0_dev.txt", "snli_1.0_dev.txt.gz"])
    def test_snli(self, write: Write, name: str) -> None:
        if "jsonl" in name:
            keys = ("gold_label", "sentence1", "sentence2")
            lines = [json.dumps({"annotator_labels": [], **dict(zip(keys, row, strict=True))}) for row in SNLI]
        else:
            rows = [
                f"{gold}\t( A )\t( B )\t(R A)\t(R B)\t{a}\t{b}\t1.jpg#0\t1.jpg#0r1\t{gold}\t\t\t\t"
                for gold, a, b in SNLI
            ]
            lines = [SNLI_HEADER, *rows]
        path = write(name, "\n".join(lines))
        format_name = "snli_jsonl" if "jsonl" in name else "auto"
        bad_rows = BadRows()
        assert read(path, bad_rows=bad_rows, format=format_name) == [
            (number, first, second, gold) for number, (gold, first, second) in enumerate(SNLI, 1) if gold != "-"
        ]
        assert bad_rows.counts == {"label '-' is left out": 1}
        assert len(read(path, UNLABELLED, format=format_name)) == 4

    def test_snli_with_another_label(self, write: Write) -> None:
        path = write("a.txt", "gold_label\tsentence1\tsentence2\nneutral\ta\tb\nmaybe\ta\tb\n-\t\t\n")
        with pytest.raises(InputError, match="row 2, column 'gold_label': unknown label, expected one of: entailment"):
            read(path, format="snli_txt")
        bad_rows = BadRows(skip=True)
        assert len(read(path, bad_rows=bad_rows, format="snli_txt")) == 1
        assert bad_rows.counts == {"unknown label": 1, "label '-' is left out": 1}

    @pytest.mark.parametrize("name", ["reviews.json", "reviews.json.gz"])
    def test_amazon(self, write: Write, name: str) -> None:
        record = {"reviewerID": "A1", "asin": "B0", "helpful": [0, 0], "reviewText": "Works.", "overall": 5.0}
        records = [record, record | {"overall": 1}, record | {"reviewText": ""}, record | {"overall": 2.5}]
        path = write(name, "\n".join(map(json.dumps, records)))
        with pytest.raises(InputError, match="row 3, column 'reviewText': empty text"):
            read(path, format="amazon")
        bad_rows = BadRows(skip=True)
        assert read(path, bad_rows=bad_rows, format="amazon") == [(1, "Works.", "5"), (2, "Works.", "1")]
        assert bad_rows.counts == {"empty text": 1, "unknown label": 1}


texts = st.text(
    st.one_of(
        st.sampled_from(list("\"',\t\n\r\\ab \u00e9\u3042\U0001f600")),
        st.characters(codec="utf-8", exclude_characters="\0"),
    ),
    min_size=1,
).filter(lambda text: bool(text.strip(" \t\n\r")))


@given(
    rows=st.lists(st.tuples(texts, texts, st.sampled_from(["a", "1", 'x"y'])), min_size=1, max_size=7), data=st.data()
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_every_format_reads_the_same(write: Write, rows: list[tuple[str, str, str]], data: st.DataObject) -> None:
    records = [dict(zip(("text", "other", "label"), row, strict=True)) for row in rows]
    contents: dict[str, str | bytes] = {
        "a.csv": as_csv(records),
        "a.tsv": as_csv(records, "\t"),
        "a.jsonl": "\n".join(json.dumps(record, ensure_ascii=data.draw(st.booleans())) for record in records),
        "a.parquet": as_parquet(records),
    }
    found = []
    for name, content in contents.items():
        bad_rows = BadRows(skip=True)
        found.append((read(write(name, content), PAIR, bad_rows), bad_rows.counts))
    assert all(other == found[0] for other in found)
    assert not found[0][1].keys() - {"empty text", "empty text_pair"}  # white space beyond ASCII
    if not found[0][1]:
        assert found[0][0] == [(number, *row) for number, row in enumerate(rows, 1)]
