"""Pre-trained word vectors. A file is streamed, and only the rows of the vocabulary are parsed and kept."""

import gzip
import itertools
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from datransformer.data.errors import BadRows, InputError
from datransformer.data.store import atomic_path

Progress = Callable[[int, int], None]

FLOAT32_MAX = float(np.finfo(np.float32).max)
CHUNK = 1 << 18
LONGEST_LINE = 1 << 24
LONGEST_WORD_LIST = 80_000_000  # safetensors reads no header beyond 100 MB
TEXT_SUFFIXES = (".txt", ".vec")
WORDS = "words.txt"  # beside a matrix without words: its name, or what it ends in
UNUSABLE, FINITE = "a value is no number, NaN, infinite or too large", "finite float32 numbers"


@dataclass(frozen=True)
class WordVectors:
    """The rows of a vocabulary.

    Args:
        rows: [words, dim] float32, zeros where the file has no row.
        found: [words] bool.
        skipped_lines: How many bad rows were left out.
    """

    rows: torch.Tensor
    found: torch.Tensor
    skipped_lines: int


def read_vectors(
    path: Path, words: Sequence[str], bad_rows: BadRows, *, progress: Progress | None = None
) -> WordVectors:
    """The vectors of ``words``, from whichever of these ``path`` is; a word must match exactly, its first row counts.

    - GloVe, word2vec or fastText text, plain, gzipped or zipped; of several texts in a zip the largest is read
    - safetensors: ``vectors`` [n, dim], its words a JSON list under ``words`` in the metadata or ``<stem>.words.txt``
    - ``.npy``: [n, dim] beside a ``words.txt``

    Args:
        path: The file.
        words: The vocabulary, each word once.
        bad_rows: What becomes of a row that cannot be used. Rows are counted from 1 and leave out a header. Outside
            the vocabulary only the word and the number of values are looked at.
        progress: Called with the bytes read so far and their total.
    """
    rows = _Rows(Path(path), words, bad_rows)
    _read(rows, progress, _read_text, _read_matrix)
    return rows.finish()


def read_words(path: Path, bad_rows: BadRows, *, progress: Progress | None = None) -> list[str]:
    """All words of such a file, each once and in its order.

    If bad rows are skipped, those with bad values are too, as `UNUSABLE`; otherwise `read_vectors` stops at them.
    """
    found: dict[str, None] = {}
    rows = _Rows(Path(path), (), bad_rows)

    def take(row: int, word: str, usable: bool) -> None:
        if usable or not bad_rows.skip:
            found[word] = None
        else:
            rows.bad(row, UNUSABLE, FINITE)

    def read_text(lines: Iterator[bytes], rows: _Rows) -> None:
        for row, word, numbers in _text_rows(lines, rows):
            take(row, word, not bad_rows.skip or _are_usable(numbers))

    def read_matrix(matrix: NDArray[np.floating], words: Sequence[str | None], rows: _Rows) -> None:
        usable = np.isfinite(matrix).all(axis=1)
        for row, word in _matrix_rows(matrix, words, rows):
            take(row, word, bool(usable[row - 1]))

    _read(rows, progress, read_text, read_matrix)
    return list(found)


def files_of_vectors(path: Path) -> list[Path]:
    """The file and, where there is one, the list of its words beside it."""
    if not path.is_file():
        return [path]
    lists = {".npy": path.with_name(WORDS), ".safetensors": path.with_suffix(f".{WORDS}")}
    beside = lists.get(_kind(path))
    return [path] if beside is None or not beside.is_file() else [path, beside]


def _read(
    rows: "_Rows",
    progress: Progress | None,
    read_text: Callable[[Iterator[bytes], "_Rows"], None],
    read_matrix: Callable[[NDArray[np.floating], Sequence[str | None], "_Rows"], None],
) -> None:
    """Open a file of any kind, have it read, and put what goes wrong in words."""
    path = rows.path
    progress = progress or (lambda done, total: None)
    try:
        total = path.stat().st_size
        if total == 0:
            raise InputError(f"{path}: the file is empty, expected word vectors")
        kind = _kind(path)
        if kind in _MATRICES:
            read_matrix(*_MATRICES[kind](path, rows), rows)
            progress(total, total)
        else:
            with ExitStack() as stack:
                read_text(_lines(path, *_TEXTS[kind](path, stack), progress), rows)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected word vectors") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cut short or corrupt ({error}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def write_vectors(path: Path, words: Sequence[str], rows: torch.Tensor) -> None:
    """Write the safetensors form of `read_vectors`, so that ``path`` is either whole or as it was.

    Args:
        path: The file, ``.safetensors``.
        words: One a row.
        rows: [words, dim] float32 or float16.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path: got {path.name!r}, expected a name that ends in .safetensors")
    if rows.dim() != 2 or rows.shape[0] != len(words) or rows.dtype not in (torch.float32, torch.float16):
        raise ValueError(
            f"rows: got {rows.dtype} of shape {tuple(rows.shape)}, expected float32 or float16 ({len(words)}, dim)"
        )
    if not rows.isfinite().all():
        raise ValueError("rows: some values are NaN or infinite")
    listed = json.dumps(list(words), ensure_ascii=False)
    if len(listed.encode()) > LONGEST_WORD_LIST:
        raise ValueError(f"words: {len(words):,} words are too long a list for the header of a safetensors file")
    try:
        with atomic_path(path) as temporary:
            save_file({"vectors": rows.detach().cpu().contiguous()}, temporary, metadata={"words": listed})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written ({error})") from error


class _Rows:
    """Rows as they are found, and the bad ones as they are met."""

    def __init__(self, path: Path, words: Sequence[str], bad_rows: BadRows) -> None:
        self.path = path
        self.words = words
        self.bad_rows = bad_rows
        self.place = {word: place for place, word in enumerate(words)}
        if len(self.place) != len(words):
            raise ValueError(
                f"words: {len(words) - len(self.place)} of {len(words)} are there twice, expected each once"
            )
        self.found = np.zeros(len(words), np.bool_)
        self.values = np.zeros((len(words), 0), np.float32)  # made as wide as the first row that is found
        self.skipped = 0

    def bad(self, row: int, problem: str, expected: str, path: Path | None = None) -> None:
        self.bad_rows.meet(path or self.path, row, "vector", problem, expected)
        self.skipped += 1

    def put(self, row: int, place: int, values: NDArray[np.floating]) -> None:
        values = values.astype(np.float64)  # the limit below is none that float16 knows
        if not (np.abs(values) <= FLOAT32_MAX).all():
            self.bad(row, "a value is NaN, infinite or too large", FINITE)
            return
        if self.values.shape[1] == 0:
            self.values = np.zeros((len(self.words), len(values)), np.float32)
        self.values[place] = values
        self.found[place] = True

    def finish(self) -> WordVectors:
        if not self.found.any():
            some = ", ".join(repr(word) for word in self.words[:3])
            raise InputError(f"{self.path}: has none of the {len(self.words):,} words looked for (such as {some})")
        return WordVectors(torch.from_numpy(self.values), torch.from_numpy(self.found), self.skipped)


def _kind(path: Path) -> str:
    """What the first bytes say; a name that promises something else is an error, not a guess."""
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"\x1f\x8b"):
        return ".gz"
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return ".zip"
    if start.startswith(b"\x93NUMPY"):
        return ".npy"
    # A safetensors file starts with the length of its header, 8 bytes that no text would make this small.
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return ".safetensors"
    if path.suffix in (".gz", ".zip", *_MATRICES):
        raise InputError(f"{path}: cut short or corrupt (not a {path.suffix} file inside); fetch it again")
    return ".txt"


def _open_plain(path: Path, stack: ExitStack) -> tuple[BinaryIO, Callable[[], int], int]:
    """A stream of text, how many bytes of the file it has taken, and how many there are."""
    file = stack.enter_context(path.open("rb"))
    return file, file.tell, path.stat().st_size


def _open_gzip(path: Path, stack: ExitStack) -> tuple[BinaryIO, Callable[[], int], int]:
    file, tell, total = _open_plain(path, stack)
    return cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file))), tell, total


def _open_zip(path: Path, stack: ExitStack) -> tuple[BinaryIO, Callable[[], int], int]:
    file, _, _ = _open_plain(path, stack)
    try:
        archive = stack.enter_context(zipfile.ZipFile(file))
    except (RuntimeError, UnicodeError) as error:  # a feature or a name that zipfile does not know
        raise InputError(f"{path}: not a zip that can be read ({error})") from error
    members = [m for m in archive.infolist() if not m.filename.endswith("/") and not m.filename.startswith("__MACOSX/")]
    if len(members) > 1:
        members = [member for member in members if member.filename.endswith(TEXT_SUFFIXES)]
    if not members:
        raise InputError(f"{path}: has no text inside, expected a .txt or .vec file")
    member = max(members, key=lambda member: member.file_size)
    try:
        stream = stack.enter_context(archive.open(member))
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, a password
        raise InputError(f"{path}: {member.filename!r} cannot be unpacked ({error})") from error
    begin = file.tell()
    return cast(BinaryIO, stream), lambda: file.tell() - begin, member.compress_size


def _lines(path: Path, stream: BinaryIO, tell: Callable[[], int], total: int, progress: Progress) -> Iterator[bytes]:
    """Lines that are not blank, without their ends. Line by line, a file without line ends would fill the memory."""
    rest = b""
    while chunk := stream.read(CHUNK):
        if b"\0" in chunk:
            raise InputError(f"{path}: is binary inside, expected text, .safetensors or .npy (convert a word2vec .bin)")
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > LONGEST_LINE:
            raise InputError(f"{path}: has a line of over {LONGEST_LINE:,} bytes, expected a word and its vector")
        for line in lines:
            if line := line.rstrip(b" \r"):
                yield line
        progress(min(tell(), total), total)
    if rest := rest.rstrip(b" \r"):
        yield rest


def _text_rows(lines: Iterator[bytes], rows: _Rows) -> Iterator[tuple[int, str, bytes]]:
    """The row, the word and the numbers of each line ``word f f f …``.

    A word may have spaces (GloVe 840B has '. . .'), so the vector is cut off from the right. The width comes from a
    first line "count dim" where there is one, else from the numbers the first line ends in.
    """
    first = next(lines, b"").removeprefix(b"\xef\xbb\xbf")
    fields = first.split(b" ")
    count = None
    if len(fields) == 2 and len(first) < 40 and all(field.isdigit() for field in fields):
        count, width = int(fields[0]), int(fields[1])
    else:
        width = len(list(itertools.takewhile(_is_number, reversed(fields[1:]))))
        lines = itertools.chain([first], lines)
    if width == 0:
        raise InputError(f"{rows.path}: line 1 has no vector, expected a word and numbers, or a count and a width")
    expected = f"a word and {width} numbers, each after one space"
    row = 0
    for row, line in enumerate(lines, start=1):
        spaces = line.count(b" ")
        word = line[: line.find(b" ")] if spaces == width else line.rsplit(b" ", width)[0]
        if spaces < width or (spaces > width and _is_number(word[word.rfind(b" ") + 1 :] or b"0")):
            rows.bad(row, "the wrong number of values", expected)
            continue
        try:
            text = word.decode()
        except UnicodeDecodeError:
            rows.bad(row, "a word that is not UTF-8", expected)
            continue
        yield row, text, line[len(word) + 1 :]
    if count is not None and row < count:
        rows.bad_rows.meet(
            rows.path, row + 1, "vector", "the file ends early", f"{count:,} rows, as its first line says"
        )


def _read_text(lines: Iterator[bytes], rows: _Rows) -> None:
    for row, word, numbers in _text_rows(lines, rows):
        place = rows.place.get(word)
        if place is not None and not rows.found[place]:
            try:
                values = np.array(_numbers(numbers))  # [width]
            except ValueError:
                expected = f"a word and {numbers.count(b' ') + 1} numbers, each after one space"
                rows.bad(row, "a value that is not a number", expected)
            else:
                rows.put(row, place, values)


def _numbers(text: bytes) -> list[float]:
    if b"_" in text:
        raise ValueError("Python reads 1_0 as 10, a vector file does not mean it")
    return [float(field) for field in text.split(b" ")]


def _are_usable(text: bytes) -> bool:
    """Whether the numbers of a row are such as `_Rows.put` takes."""
    try:
        return all(abs(number) <= FLOAT32_MAX for number in _numbers(text))
    except ValueError:
        return False


def _is_number(field: bytes) -> bool:
    try:
        _numbers(field)
    except ValueError:
        return False
    return True


def _check_matrix(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] == 0 or dtype not in ("float32", "float16"):
        raise InputError(f"{path}: holds {dtype} of shape {shape}, expected float32 or float16 [words, dim]")


def _matrix_rows(matrix: NDArray[np.floating], words: Sequence[str | None], rows: _Rows) -> Iterator[tuple[int, str]]:
    """The row of each word, but for those that could not be read."""
    if len(words) != len(matrix):
        raise InputError(f"{rows.path}: has {len(matrix):,} rows and {len(words):,} words, expected as many")
    return ((row, word) for row, word in enumerate(words, start=1) if word is not None)


def _read_matrix(matrix: NDArray[np.floating], words: Sequence[str | None], rows: _Rows) -> None:
    for row, word in _matrix_rows(matrix, words, rows):
        place = rows.place.get(word)
        if place is not None and not rows.found[place]:
            rows.put(row, place, matrix[row - 1])


def _word_list(path: Path, rows: _Rows) -> list[str | None]:
    """The words of a file beside the matrix, one a line; None for one that cannot be read and is to be skipped."""
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected the words of {rows.path.name}, one a line") from None
    words: list[str | None] = []
    for row, line in enumerate(lines, start=1):
        try:
            words.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            rows.bad(row, "a word that is not UTF-8", "a word", path)
            words.append(None)
    return words


def _open_npy(path: Path, rows: _Rows) -> tuple[NDArray[np.floating], Sequence[str | None]]:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:  # what a broken header may raise
        raise InputError(f"{path}: not an array that can be read ({error}); objects are never unpickled") from error
    _check_matrix(path, str(matrix.dtype), matrix.shape)
    return matrix, _word_list(path.with_name(WORDS), rows)


def _open_safetensors(path: Path, rows: _Rows) -> tuple[NDArray[np.floating], Sequence[str | None]]:
    try:
        with safe_open(path, framework="pt") as file:
            if "vectors" not in file.keys():  # noqa: SIM118
                raise InputError(f"{path}: has no tensor 'vectors', only {sorted(file.keys())}")
            listed = (file.metadata() or {}).get("words")
            tensor = file.get_tensor("vectors")
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file that can be read ({error})") from error
    _check_matrix(path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    matrix = tensor.numpy()
    if listed is None:
        return matrix, _word_list(path.with_suffix(f".{WORDS}"), rows)
    try:
        words = json.loads(listed)
        "".join(words).encode()  # half of a character, which JSON can escape, is no text
    except (ValueError, TypeError, RecursionError):
        words = None
    if not isinstance(words, list):
        raise InputError(f"{path}: 'words' in its metadata is not a JSON list of strings")
    return matrix, words


_TEXTS = {".txt": _open_plain, ".gz": _open_gzip, ".zip": _open_zip}
_MATRICES = {".npy": _open_npy, ".safetensors": _open_safetensors}
