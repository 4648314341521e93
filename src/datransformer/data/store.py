"""Columns of unequal length on disk: written as a stream, read by memory map, never whole in memory."""

import contextlib
import errno
import io
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
RELEASE_AFTER = 4  # batches: the system maps up to 64 KiB around each row that is read


class Ragged:
    """Rows of unequal length, one after the other.

    Args:
        values: All rows, joined.
        offsets: ``[rows + 1]``, where each row starts, and where the last ends.
        source: The mapped file that they lie in, if they do.
    """

    def __init__(self, values: Array, offsets: npt.NDArray[np.int64], source: mmap.mmap | None = None) -> None:
        self.values = values
        self.offsets = offsets
        self._source = source
        self._taken = 0

    @classmethod
    def from_lengths(cls, values: Array, lengths: Array) -> "Ragged":
        """The rows of ``values`` that have the given lengths."""
        return cls(values, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @property
    def lengths(self) -> Array:
        """The length of each row."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Array) -> "Ragged":
        """Some rows, in the given order."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        taken = Ragged.from_lengths(self.values[spans(starts, lengths)], lengths)
        self._taken += 1
        if self._taken % RELEASE_AFTER == 0:
            self.release()
        return taken

    def release(self) -> None:
        """Let go of the pages that were read, if they are a mapped file's."""
        if self._source is not None:
            release(self._source)

    def padded(self, fill: int, width: int | None = None) -> Array:
        """[rows, longest] with ``fill`` behind the end of each row."""
        lengths = self.lengths
        longest = max(int(lengths.max(initial=0)), 1) if width is None else width
        rows = np.full((len(self), longest), fill, self.values.dtype)
        rows[np.arange(longest) < lengths[:, None]] = self.values[self.offsets[0] : self.offsets[-1]]
        return rows


def release(mapped: mmap.mmap) -> None:
    """Let go of the pages of a mapped file that were read. They stay in the system's cache, but not in this process."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def spans(starts: Array, lengths: Array) -> npt.NDArray[np.int64]:
    """The indices start, start + 1, … of several spans, joined."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


class StoreWriter:
    """Write columns to one Arrow file, in pieces. The file appears, whole, when the ``with`` block ends well.

    Args:
        path: The file to write.
        metadata: Text kept beside the columns.
    """

    def __init__(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._metadata = dict(metadata or {})
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self._lengths: dict[str, list[Array]] = {}
        self._maps: list[mmap.mmap] = []

    def add(self, **columns: Array | Ragged) -> None:
        """Append the same number of rows to every column."""
        for name, column in columns.items():
            values = column
            if isinstance(column, Ragged):
                self._lengths.setdefault(name, []).append(column.lengths.astype(np.int32))
                values = column.values[column.offsets[0] : column.offsets[-1]]
            values = np.ascontiguousarray(values)
            if name not in self._files:
                self._files[name] = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115, closed in __exit__
                self._types[name] = values.dtype
            self._files[name].write(values.astype(self._types[name], copy=False).data)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._write()
        finally:
            for file in self._files.values():
                file.close()

    def _write(self) -> None:
        arrays = {name: self._column(name) for name in self._files}
        batch = pa.RecordBatch.from_pydict(arrays)
        batch = batch.replace_schema_metadata(self._metadata)
        with (
            atomic_path(self._path) as temporary,
            temporary.open("wb", buffering=0) as file,
            pa.ipc.new_file(_Sink(file, self._maps), batch.schema) as writer,
        ):
            writer.write_batch(batch)

    def _column(self, name: str) -> pa.Array:
        file = self._files[name]
        file.flush()
        count = os.fstat(file.fileno()).st_size // self._types[name].itemsize
        flat = np.empty(0, self._types[name])
        if count:  # a map, not a read: a column may be larger than memory
            self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            flat = np.frombuffer(self._maps[-1], self._types[name])
        values = pa.array(flat)
        if name not in self._lengths:
            return values
        lengths = np.concatenate(self._lengths[name])
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)


class _Sink(io.RawIOBase):
    """Writes to ``file`` piece by piece, and releases the pages of ``maps`` that were read for each."""

    PIECE = 1 << 23

    def __init__(self, file: IO[bytes], maps: list[mmap.mmap]) -> None:
        self._file, self._maps = file, maps

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self.PIECE):
            piece = view[start : start + self.PIECE]
            while piece:
                piece = piece[self._file.write(piece) :]
            for mapped in self._maps:
                release(mapped)
        return len(view)


def open_store(path: Path) -> tuple[dict[str, Array | Ragged], dict[str, str]]:
    """The columns that a `StoreWriter` wrote, mapped into memory, and the text beside them.

    Raises ``pa.ArrowInvalid`` or ``OSError`` if the file is not whole.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise OSError(errno.ENODATA, "the file is empty", str(path))
        source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    batch = pa.ipc.open_file(pa.py_buffer(source)).get_batch(0)
    columns: dict[str, Array | Ragged] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if isinstance(column, pa.LargeListArray):
            columns[name] = Ragged(column.values.to_numpy(), column.offsets.to_numpy(), source)
        else:
            columns[name] = column.to_numpy()
    metadata = batch.schema.metadata or {}
    return columns, {key.decode(): value.decode() for key, value in metadata.items()}


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, which it replaces, safe on disk, when the block ends well, and goes if not."""
    path = path.resolve()  # behind a link is the file that is meant
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file, which could be replaced", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
