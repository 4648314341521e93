"""A file to a stream of Arrow record batches, in constant memory. Rows that cannot be used are named, one by one."""

import codecs
import csv
import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from datransformer.data.errors import BadRows, InputError

BLOCK_SIZE = 1 << 20
"""Bytes that are read at once; a row of a delimited file has to fit."""
LONGEST_LINE = 64 << 20
PARQUET_ROWS = 1024

NOT_UTF8 = "bytes that are not UTF-8"
SUBSTITUTE = "\x1a"
REPLACEMENT = "\ufffd"  # what a reader of UTF-8 shows for bytes that are none
"""ASCII's own stand-in for a character that cannot be represented."""


@dataclass(frozen=True)
class Columns:
    """Which of a file's columns mean what.

    Args:
        text: Columns that make up the text, joined with a space; blank ones are left out.
        text_pair: Column of the second text, None if there is none.
        label: Column of the label, None if the file has no labels.
    """

    text: tuple[str, ...] = ("text",)
    text_pair: str | None = None
    label: str | None = "label"

    def names(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        others = (name for name in (self.text_pair, self.label) if name is not None)
        return tuple(dict.fromkeys((*self.text, *others)))


class Flaw(NamedTuple):
    """What is wrong with a row: the arguments of `BadRows.meet` after the path."""

    row: int
    column: str
    problem: str
    expected: str


@dataclass(frozen=True)
class Block:
    """Some rows of a file, as they were read.

    Args:
        rows: The record numbers of the rows, from 1.
        columns: A string array a column, as long as ``rows``.
        not_utf8: For a column with bytes that are not UTF-8: which rows have them.
        flaws: Rows of this part of the file that could not be read at all, and are not in ``rows``.
    """

    rows: npt.NDArray[np.int64]
    columns: dict[str, pa.Array]
    not_utf8: dict[str, pa.Array] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows one by one: their numbers and values."""
        marked = {
            name: pc.replace_substring(array, SUBSTITUTE, REPLACEMENT) if name in self.not_utf8 else array
            for name, array in self.columns.items()
        }
        values = (_plain(array) for array in marked.values())
        for row, *cells in zip(self.rows.tolist(), *values, strict=True):
            present = (None if cell != cell else cell for cell in cells)  # NaN is a missing number
            yield row, dict(zip(self.columns, present, strict=True))


def _plain(array: pa.Array) -> list[Any]:
    """Values of Python's; text, where it has none, as for a nanosecond or the year 10,000."""
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return array.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


class Sieve:
    """Collects what is wrong with the rows of a block, whole columns at a time; a row's first flaw is its only one."""

    def __init__(self, block: Block) -> None:
        self.rows = block.rows
        self.flaws = list(block.flaws)
        self.dropped = np.zeros(len(block.rows), dtype=bool)

    def drop(self, mask: pa.Array) -> npt.NDArray[np.int64]:
        """Leave out the rows where ``mask`` is true, and return the numbers of those that were still in."""
        if not mask.true_count:
            return self.rows[:0]
        fresh = np.asarray(mask) & ~self.dropped
        self.dropped |= fresh
        return self.rows[fresh]

    def flag(self, mask: pa.Array, column: str, problem: str, expected: str) -> None:
        """Note ``problem`` for the rows where ``mask`` is true."""
        self.flaws.extend(Flaw(int(row), column, problem, expected) for row in self.drop(mask))

    def flag_characters(self, block: Block, column: str, role: str) -> None:
        """Note the rows where ``column`` holds what no text holds: bytes that are not UTF-8, or a NUL."""
        if column in block.not_utf8:
            self.flag(block.not_utf8[column], column, NOT_UTF8, "text in UTF-8")
        self.flag(holds(block.columns[column], "\0"), column, f"NUL byte in {role}", "text without it")

    def settle(self, path: Path, bad_rows: BadRows) -> None:
        """Hand the flaws to ``bad_rows`` in the order of the file."""
        for flaw in sorted(self.flaws, key=lambda flaw: flaw.row):
            bad_rows.meet(path, *flaw)

    def keep(self, array: pa.Array) -> pa.Array:
        """The elements of the rows that were not left out."""
        return array.filter(pa.array(~self.dropped)) if self.dropped.any() else array


def is_blank(array: pa.Array) -> pa.Array:
    """Which elements are null, empty or nothing but white space."""
    return pc.fill_null(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(array)), 0), True)


def holds(array: pa.Array, character: str) -> pa.Array:
    """Which elements contain the ASCII ``character``; null ones do not."""
    data = array.buffers()[2]
    if not data or not (np.frombuffer(data, np.uint8) == ord(character)).any():  # faster than to search each element
        return pa.repeat(pa.scalar(False), len(array))
    return pc.fill_null(pc.match_substring(array, character), False)


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """``path``, gunzipped where it is gzipped, after its byte order mark; what goes wrong is an `InputError`."""
    check_file(path)
    try:
        with path.open("rb") as plain:
            packed = plain.peek(2)[:2] == b"\x1f\x8b"
            file = gzip.GzipFile(fileobj=plain) if packed else plain
            start = file.peek(4)[:4]
            if not start:
                raise InputError(f"{path}: the file is empty, expected rows")
            if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise InputError(f"{path}: the file is in UTF-16, expected UTF-8")
            if start.startswith(codecs.BOM_UTF8):
                file.read(len(codecs.BOM_UTF8))
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def check_file(path: Path) -> None:
    """Refuse what is not a file with something in it."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: holds a NUL byte, expected the name of a file")
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    if not path.is_file():
        raise InputError(f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}, expected a file")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty, expected something in it")


def check_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a file that lacks a column, or has it twice."""
    for name in wanted:
        if names.count(name) != 1:
            found = "no column" if name not in names else "more than one column"
            raise InputError(
                f"{path}: {found} {name!r}, expected another --text-column or --label-column: it has {listed(names)}"
            )


def unlike(names: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """The names with as many underscores behind each as it takes for no two, and none of ``taken``, to be alike."""
    known = dict.fromkeys(taken)
    before = len(known)
    for name in names:
        while name in known:
            name += "_"
        known[name] = None
    return tuple(known)[before:]


def listed(names: Iterable[str]) -> str:
    """The names of columns, on one line that a person can read."""
    known = [repr(name[:99]) for name in names]
    return ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")


class Utf8Stream(io.RawIOBase):
    """The bytes of a file with `SUBSTITUTE` for each that is not UTF-8, and with ``tail`` after the last.

    The lengths stay the same, so that one bad byte spoils no more than its own cell: pyarrow gives up on a whole file
    when it comes upon a row that has such a byte and the wrong number of fields as well.
    """

    def __init__(self, file: io.BufferedReader | gzip.GzipFile, tail: bytes) -> None:
        super().__init__()
        self.file = file
        self.tail = tail
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.damaged = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        # Up to three bytes of a character may be waiting in the decoder. The tail comes with the last bytes: pyarrow
        # takes a block without a line end, if it is not the last, for the middle of a row that is too long.
        size = max(size - 3 - len(self.tail), 4)
        data = self.file.read(size)
        final = len(data) < size
        read = self.encode(self.decoder.decode(data, final))
        if final:
            read, self.tail = read + self.tail, b""
        return read

    def encode(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.damaged = True
            return re.sub("[\ud800-\udfff]", SUBSTITUTE, text).encode()


def delimited_blocks(
    path: Path, columns: Columns | None, *, delimiter: str, names: Sequence[str] | None = None, quoted: bool = True
) -> Iterator[Block]:
    """Rows of a delimited file. Blank lines are no rows.

    Args:
        path: The file.
        columns: The columns to read; None: all, by names of which no two are alike.
        delimiter: What stands between two fields.
        names: The names of all columns, where the file has no header.
        quoted: Whether a field that starts with a double quote ends at the next one, and may hold line breaks.
    """
    with open_bytes(path) as file:
        if names is None:
            names = read_header(path, file, delimiter, quoted)
        if columns is None:
            wanted = names = unlike(names)
        else:
            wanted = columns.names()
            check_columns(path, wanted, names)
        # A last row with a field too many tells whether pyarrow, which does not say so, ended inside a quote.
        last = SUBSTITUTE + delimiter * len(names)
        stream = Utf8Stream(file, f"\n{last}".encode())
        ragged: deque[Flaw] = deque()  # filled while pyarrow parses, on whichever thread that is
        waiting: list[Flaw] = []
        ended, unclosed = False, 0

        def meet_ragged(row: Any) -> str:
            nonlocal ended, unclosed
            if row.text == last:
                ended = True
            elif row.text.endswith(last):
                unclosed = row.number
            else:
                column = names[min(row.actual_columns, len(names) - 1)]
                expected = f"{len(names)} and not {row.actual_columns}"
                ragged.append(Flaw(row.number, column, "wrong number of fields", expected))
            return "skip"

        following = 1
        try:
            with pyarrow.csv.open_csv(
                stream,
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=BLOCK_SIZE, column_names=[str(i) for i in range(len(names))]
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=delimiter,
                    quote_char='"' if quoted else False,
                    newlines_in_values=quoted,
                    invalid_row_handler=meet_ragged,
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    check_utf8=False,
                    column_types={str(names.index(name)): pa.string() for name in wanted},
                    include_columns=[str(names.index(name)) for name in wanted],
                    strings_can_be_null=False,
                ),
            ) as reader:
                for batch in reader:
                    while ragged:
                        waiting.append(ragged.popleft())
                    rows, flaws, waiting = number_rows(following, batch.num_rows, waiting)
                    following += len(rows) + len(flaws)
                    arrays = dict(zip(wanted, batch.columns, strict=True))
                    damaged = arrays if stream.damaged else {}
                    not_utf8 = {name: holds(array, SUBSTITUTE) for name, array in damaged.items()}
                    yield Block(rows, arrays, not_utf8, flaws)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                reason = " ".join(str(error).split())
                raise InputError(f"{path}, after row {following - 1}: cannot be read ({reason})") from error
            problem = f"{'a quote that is never closed, or ' if quoted else ''}more than {BLOCK_SIZE:,} bytes"
            row = following + len(waiting) + len(ragged)
            raise InputError(f"{path}, row {row}: {problem}, expected a shorter row") from error
        waiting.extend(ragged)
        if waiting:
            yield Block(np.empty(0, np.int64), dict.fromkeys(wanted, pa.array([], pa.string())), flaws=waiting)
        if not ended:
            row = unclosed or following - 1
            raise InputError(f"{path}, row {row}: a quote is never closed, expected a closing one before the file ends")


def number_rows(first: int, count: int, ragged: list[Flaw]) -> tuple[npt.NDArray[np.int64], list[Flaw], list[Flaw]]:
    """The numbers of ``count`` rows from ``first`` on, where ``ragged`` rows lie between; those before, those after."""
    if not ragged:
        return np.arange(first, first + count), [], []
    numbers = np.setdiff1d(np.arange(first, first + count + len(ragged)), [flaw.row for flaw in ragged])[:count]
    end = numbers[-1] if count else first - 1
    return numbers, [flaw for flaw in ragged if flaw.row <= end], [flaw for flaw in ragged if flaw.row > end]


def read_header(path: Path, file: io.BufferedReader | gzip.GzipFile, delimiter: str, quoted: bool) -> list[str]:
    """The first record of ``file``, which is left at the second."""
    lines = (line.decode("utf-8") for line in iter(partial(file.readline, BLOCK_SIZE), b"") if line.strip())
    try:
        records = (
            csv.reader(lines, delimiter=delimiter, strict=True)
            if quoted
            else (line.rstrip("\r\n").split(delimiter) for line in lines)
        )
        header = next(records, None)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the header cannot be read ({error}), expected column names") from error
    if header is None:
        raise InputError(f"{path}: the file has nothing but blank lines, expected column names and rows")
    return header


@dataclass
class BlockBuilder:
    """Gathers rows that come one by one into blocks of about `BLOCK_SIZE` bytes."""

    names: Sequence[str]
    rows: list[int] = field(default_factory=list)
    values: list[tuple[str | None, ...]] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    size: int = 0

    def take(self) -> Block:
        """The rows so far, as a block; start anew."""
        columns, not_utf8 = {}, {}
        transposed = zip(*self.values, strict=True) if self.values else ((),) * len(self.names)
        for name, values in zip(self.names, transposed, strict=True):
            try:
                columns[name] = pa.array(values, pa.string())
            except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot hold
                not_utf8[name] = pa.array([value is not None and not encodable(value) for value in values])
                columns[name] = pa.array([value and value.encode("utf-8", "replace").decode() for value in values])
        block = Block(np.array(self.rows, np.int64), columns, not_utf8, self.flaws)
        self.rows, self.values, self.flaws, self.size = [], [], [], 0
        return block


def encodable(text: str) -> bool:
    """Whether UTF-8 can hold ``text``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class RowError(Exception):
    """A line that is no row: the column, the problem, and what was expected."""


def line_blocks(
    path: Path, columns: Columns, *, parse: Callable[[str, Sequence[str]], tuple[str | None, ...]]
) -> Iterator[Block]:
    """Rows of a file with one a line. Blank lines are no rows. ``parse`` gives a line's values, or a `RowError`."""
    wanted = columns.names()
    builder = BlockBuilder(wanted)
    for number, line in numbered_lines(path):
        try:
            builder.values.append(parse(line.decode(), wanted))
            builder.rows.append(number)
        except UnicodeDecodeError:
            builder.flaws.append(Flaw(number, wanted[0], NOT_UTF8, "text in UTF-8"))
        except RowError as error:
            builder.flaws.append(Flaw(number, *error.args))
        builder.size += len(line)
        if builder.size >= BLOCK_SIZE:
            yield builder.take()
    yield builder.take()


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, from 1."""
    number = 0
    with open_bytes(path) as file:
        for line in iter(partial(file.readline, LONGEST_LINE), b""):
            if not line.strip():
                continue
            number += 1
            if len(line) == LONGEST_LINE:
                raise InputError(f"{path}, row {number}: more than {LONGEST_LINE:,} bytes, expected a shorter line")
            yield number, line


def json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line that is a JSON object, with all that it holds."""
    for number, line in numbered_lines(path):
        with suppress(ValueError, RecursionError):
            record = JSON.decode(line.decode())
            if isinstance(record, dict):
                yield number, record


def refuse_constant(name: str) -> NoReturn:
    """JSON has no NaN and no Infinity, Python's parser has."""
    raise ValueError(name)


JSON = json.JSONDecoder(parse_constant=refuse_constant)


def parse_json(line: str, wanted: Sequence[str]) -> tuple[str | None, ...]:
    """The ``wanted`` fields of an object in JSON."""
    try:
        record = JSON.decode(line)
    except (ValueError, RecursionError):
        raise RowError(wanted[0], "not JSON", "one JSON object a line") from None
    if not isinstance(record, dict):
        raise RowError(wanted[0], "not a JSON object", "one JSON object a line")
    values = []
    for name in wanted:
        if name not in record:
            raise RowError(name, "no such column", f"one of: {listed(record)}")
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise RowError(name, "neither a string nor a number", "a string or a number")
        values.append(value if isinstance(value, str | None) else spell(name, value))
    return tuple(values)


def spell(column: str, number: float) -> str:
    """A number as a label: 3.0 and 3 are the same one."""
    if isinstance(number, int):
        return str(number)
    if not math.isfinite(number):
        raise RowError(column, "a number that is not finite", "a string or a finite number")
    return str(int(number) if number.is_integer() else number)


TREE_TOKEN = re.compile(r"[()]|[^\s()]+")
TREE_ESCAPES = {"-LRB-": "(", "-RRB-": ")"}


def parse_tree(line: str, wanted: Sequence[str]) -> tuple[str | None, ...]:
    """The words and the root's class of a tree: ``(3 (2 The) (4 Rock))``, where each node has its class first."""
    words, nodes = _read_tree(line)
    values = {"tree": " ".join(words), "root": nodes[-1][2]}
    return tuple(values[name] for name in wanted)


def tree_phrases(line: str) -> list[tuple[str, str]]:
    """The words and the class of every node of a tree, the root's last."""
    words, nodes = _read_tree(line)
    return [(" ".join(words[begin:end]), label) for begin, end, label in nodes]


def _read_tree(line: str) -> tuple[list[str], list[tuple[int, int, str]]]:
    """The words of a tree, and of each node where its words begin and end and its class, the root's last."""
    words: list[str] = []
    open_nodes: list[tuple[int, str]] = []  # where the words of each begin, and its class
    nodes: list[tuple[int, int, str]] = []
    depth, before = 0, ""
    tokens = TREE_TOKEN.findall(line)
    for position, token in enumerate(tokens):
        if token == "(":  # noqa: S105
            fits = before in {"class", ")"} if depth else position == 0
            depth, before = depth + 1, token
        elif token == ")":  # noqa: S105
            fits = before in {"word", ")"} and depth > 0
            depth, before = depth - 1, token
            if fits:
                begin, label = open_nodes.pop()
                nodes.append((begin, len(words), label))
        elif before == "(":
            fits = token in {"0", "1", "2", "3", "4"}
            before = "class"
            open_nodes.append((len(words), token))
        else:
            fits = before == "class"
            words.append(TREE_ESCAPES.get(token, token).replace("\\/", "/").replace("\\*", "*"))
            before = "word"
        if not fits:
            break
    else:
        if depth == 0 and tokens:
            return words, nodes
    raise RowError(
        "tree", "not a tree", "brackets in pairs, a class from 0 to 4 in each, and words, as (3 (2 a) (3 b))"
    )


def tree_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The words and the class of each tree."""
    for block in line_blocks(path, Columns(("tree",), None, "root"), parse=parse_tree):
        yield from block.records()


def parquet_blocks(path: Path, columns: Columns | None) -> Iterator[Block]:
    """Rows of a parquet file. Texts have to be strings, labels may be numbers; without ``columns`` all, as they are."""
    check_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            following = 1
            if columns is None:
                for batch in file.iter_batches(PARQUET_ROWS, use_threads=False):
                    rows = np.arange(following, following + batch.num_rows)
                    following += batch.num_rows
                    whole = (as_strings(c)[0] if is_text(value_type(c.type)) else c for c in batch.columns)
                    yield Block(rows, dict(zip(unlike(schema.names), whole, strict=True)))
                return
            wanted = columns.names()
            check_columns(path, wanted, schema.names)
            for name in wanted:
                check_type(path, name, schema.field(name).type, name in (*columns.text, columns.text_pair))
            for batch in file.iter_batches(PARQUET_ROWS, columns=list(wanted), use_threads=False):
                rows = np.arange(following, following + batch.num_rows)
                following += batch.num_rows
                arrays, not_utf8 = {}, {}
                for name in wanted:
                    arrays[name], not_utf8[name] = as_strings(batch.column(name))
                yield Block(rows, arrays, not_utf8)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as parquet ({reason})") from error


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a column, dictionary-encoded or not."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return kind in {pa.string(), pa.large_string(), pa.string_view()}


def check_type(path: Path, column: str, kind: pa.DataType, text: bool) -> None:
    """Refuse a column that holds no text and, where a label may stand, no numbers either."""
    values = value_type(kind)
    number = pa.types.is_integer(values) or pa.types.is_floating(values) or pa.types.is_boolean(values)
    if not (is_text(values) or (number and not text)):
        expected = "strings" if text else "strings, integers, floats or booleans"
        raise InputError(f"{path}, column {column!r}: holds {kind}, expected {expected}")


def as_strings(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Strings for an array of strings or numbers, and which of them are not UTF-8: parquet files are not checked."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        array = pa.array([spell_or_none(value) for value in array.to_pylist()], pa.string())
    elif not is_text(array.type):
        array = array.cast(pa.string())
    raw = array.cast(pa.binary())
    try:
        return raw.cast(pa.string()), pa.repeat(pa.scalar(False), len(raw))
    except pa.ArrowInvalid:
        values = raw.to_pylist()
        texts = [value and value.decode("utf-8", "replace") for value in values]
        bad = [bool(value) and text.encode() != value for value, text in zip(values, texts, strict=True)]
        return pa.array([text or None for text in texts], pa.string()), pa.array(bad)


def spell_or_none(number: float | None) -> str | None:
    """A label of a column of floats; NaN, which stands for a missing one there, is none."""
    return None if number is None or not math.isfinite(number) else spell("", number)


def join_line_breaks(text: pa.Array) -> pa.Array:
    r"""AG's line breaks to spaces. Its readme says they are written ``\n``, the files have a lone backslash.

    So ``\n`` before a small letter is a line break and a word with n: ``oil prices\near``.
    """
    return pc.replace_substring(pc.replace_substring_regex(text, r"\\n([^a-z]|$)", r" \1"), "\\", " ")


@dataclass(frozen=True)
class Reader:
    """How a format is read.

    Args:
        blocks: Reads the columns of a file.
        columns: The format's own columns, None where the user names them.
        labels: What each label of the format is called; None: rows that have it are left out, and counted.
        mend: What the format needs done to a text.
        records: Reads rows with all that they hold, where a file has no list of its columns.
    """

    blocks: Callable[..., Iterator[Block]]
    columns: Columns | None = None
    labels: Mapping[str, str | None] | None = None
    mend: Callable[[pa.Array], pa.Array] | None = None
    records: Callable[[Path], Iterator[tuple[int, dict[str, Any]]]] | None = None

    def whole_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each row that can be read at all, and its columns, also those that nobody asked for."""
        if self.records is not None:
            return self.records(path)
        return (record for block in self.blocks(path, None) for record in block.records())

    def read(self, path: Path, columns: Columns, bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that can be used."""
        if self.columns is not None:
            columns = self.columns if columns.label is not None else replace(self.columns, label=None)
        number = 0
        for block in self.blocks(path, columns):
            number += len(block.rows) + len(block.flaws)
            batch = self.sift(path, block, columns, bad_rows)
            if batch.num_rows:
                yield batch
        if not number:
            raise InputError(f"{path}: the file has no rows, expected at least one")

    def sift(self, path: Path, block: Block, columns: Columns, bad_rows: BadRows) -> pa.RecordBatch:
        """The rows of ``block`` that can be used."""
        sieve = Sieve(block)
        if columns.label is not None:
            label = pc.utf8_trim_whitespace(block.columns[columns.label])
            self.leave_out(path, label, columns.label, sieve, bad_rows)
        text = self.join_texts(block, columns.text, sieve)
        result = {"row": pa.array(block.rows), "text": text}
        if columns.text_pair is not None:
            result["text_pair"] = self.join_texts(block, (columns.text_pair,), sieve, "text_pair")
        if columns.label is not None:
            result["label"] = self.name_labels(block, label, columns.label, sieve)
        sieve.settle(path, bad_rows)
        return pa.RecordBatch.from_pydict({name: sieve.keep(array) for name, array in result.items()})

    def join_texts(self, block: Block, names: Sequence[str], sieve: Sieve, role: str = "text") -> pa.Array:
        """The texts of one or more columns."""
        for name in names:
            sieve.flag_characters(block, name, role)
        texts = [block.columns[name] for name in names]
        blanks = [is_blank(text) for text in texts]
        blank = reduce(pc.and_, blanks)
        sieve.flag(blank, ", ".join(names), f"empty {role}", "some text")
        if len(texts) > 1:
            parts = [pc.if_else(mask, None, text) for mask, text in zip(blanks, texts, strict=True)]
            parts[0] = pc.if_else(blank, "", parts[0])  # pyarrow loses a row where every part is null
            text = pc.binary_join_element_wise(*parts, " ", null_handling="skip")
        else:
            text = texts[0]
        return text if self.mend is None else self.mend(text)

    def leave_out(self, path: Path, label: pa.Array, column: str, sieve: Sieve, bad_rows: BadRows) -> None:
        """Drop the rows whose label the format itself leaves out."""
        for name in [name for name, called in (self.labels or {}).items() if called is None]:
            rows = sieve.drop(pc.fill_null(pc.equal(label, name), False))
            if len(rows):
                problem = f"label {name!r} is left out"
                bad_rows.count(problem, f"{path}, row {rows[0]}, column {column!r}: {problem}", len(rows))

    def name_labels(self, block: Block, label: pa.Array, column: str, sieve: Sieve) -> pa.Array:
        """The labels by the names that the format gives them."""
        sieve.flag_characters(block, column, "label")
        sieve.flag(is_blank(label), column, "no label", "a label")
        if self.labels is None:
            return label
        index = pc.index_in(label, pa.array(list(self.labels), pa.string()))
        sieve.flag(pc.is_null(index), column, "unknown label", f"one of: {', '.join(self.labels)}")
        return pa.array(list(self.labels.values()), pa.string()).take(index)


SNLI_COLUMNS = Columns(("sentence1",), "sentence2", "gold_label")
SNLI_LABELS = {"entailment": "entailment", "neutral": "neutral", "contradiction": "contradiction", "-": None}
TREE_COLUMNS = Columns(("tree",), None, "root")

FORMATS: dict[str, Reader] = {
    "csv": Reader(partial(delimited_blocks, delimiter=",")),
    "tsv": Reader(partial(delimited_blocks, delimiter="\t")),
    "jsonl": Reader(partial(line_blocks, parse=parse_json), records=json_records),
    "parquet": Reader(parquet_blocks),
    "ag_news": Reader(
        partial(delimited_blocks, delimiter=",", names=("class", "title", "description")),
        Columns(("title", "description"), None, "class"),
        {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"},
        join_line_breaks,
    ),
    "sst_trees": Reader(
        partial(line_blocks, parse=parse_tree),
        TREE_COLUMNS,
        {"0": "negative", "1": "negative", "2": None, "3": "positive", "4": "positive"},
        records=tree_records,
    ),
    "sst_trees_5": Reader(partial(line_blocks, parse=parse_tree), TREE_COLUMNS, records=tree_records),
    "snli_jsonl": Reader(partial(line_blocks, parse=parse_json), SNLI_COLUMNS, SNLI_LABELS, records=json_records),
    "snli_txt": Reader(partial(delimited_blocks, delimiter="\t", quoted=False), SNLI_COLUMNS, SNLI_LABELS),
    "amazon": Reader(
        partial(line_blocks, parse=parse_json),
        Columns(("reviewText",), None, "overall"),
        {rating: rating for rating in "12345"},
        records=json_records,
    ),
}
"""Formats by name. In csv and tsv a field that starts with a double quote is quoted; GLUE's SST-2 is a tsv."""

FILE_NAMES = {
    "*.csv": "csv",
    "*.tsv": "tsv",
    "*.jsonl": "jsonl",
    "*.json": "jsonl",
    "*.ndjson": "jsonl",
    "*.parquet": "parquet",
    "snli_1.0_*.txt": "snli_txt",
}
"""Which format a file's name, less .gz, stands for."""


def guess_format(path: Path) -> str:
    """The format that the name of ``path`` stands for."""
    name = path.name.lower().removesuffix(".gz")
    for pattern, known in FILE_NAMES.items():
        if fnmatch(name, pattern):
            return known
    raise InputError(f"{path}: the name does not tell the format, expected format to be one of: {', '.join(FORMATS)}")


def read_rows(
    path: Path,
    columns: Columns,
    bad_rows: BadRows,
    *,
    format: str = "auto",  # noqa: A002, the word for it
) -> Iterator[pa.RecordBatch]:
    """The rows of a file as batches of ``row`` (from 1, the header left out), ``text``, ``text_pair`` and ``label``.

    There is a text_pair if ``columns`` or the format has one, and a label unless ``columns.label`` is None.

    Args:
        path: The file, gzipped or not.
        columns: Which columns to read. A format with columns of its own heeds only whether labels are wanted.
        bad_rows: What becomes of rows that cannot be used.
        format: One of `FORMATS`, or auto: by the file's name.
    """
    check_file(path)
    if not columns.text:
        raise InputError(f"{path}: no text column is named, expected at least one")
    return find_reader(path, format).read(path, columns, bad_rows)


def find_reader(path: Path, name: str) -> Reader:
    """The reader of a format, or for auto of the one that the name of ``path`` stands for."""
    name = guess_format(path) if name == "auto" else name
    if name not in FORMATS:
        raise InputError(f"{path}: unknown format {name!r}, expected auto or one of: {', '.join(FORMATS)}")
    return FORMATS[name]


def read_whole_rows(
    path: Path,
    rows: Sequence[int],
    *,
    format: str = "auto",  # noqa: A002, as above
) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """The names of all columns of a file, and their values, of whatever type, in ``rows``, which must ascend.

    Where two columns have the same name, one gets an underscore behind it.
    """
    reader = find_reader(path, format)
    alike = reader.records is None  # lines of JSON need not have the same columns
    records = itertools.islice(reader.whole_rows(path), 1 if alike else None)
    names = list(dict.fromkeys(name for _, record in records for name in record))

    def chosen() -> Iterator[dict[str, Any]]:
        records = reader.whole_rows(path)
        for row in rows:
            record = next((record for number, record in records if number == row), None)
            if record is None:
                raise InputError(f"{path}: row {row} is gone, expected a file that does not change while it is read")
            yield record

    return names, chosen()
