"""Files to examples on disk: read once, split, build the vocabulary on the training rows, encode, keep by content."""

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datransformer.data.config import DataConfig
from datransformer.data.datasets import Source
from datransformer.data.encode import Examples, Labels, encode_rows, save_examples
from datransformer.data.errors import BadRows, InputError
from datransformer.data.probe import Probe
from datransformer.data.readers import check_file, guess_format, read_rows
from datransformer.data.store import Array, write_text
from datransformer.data.tokenizer import SPECIAL, TextTokenizer, WordTokenizer, count_words, load_tokenizer
from datransformer.data.vectors import UNUSABLE, files_of_vectors, read_words

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

LEFTOVER_SECONDS = 24 * 3600
FORMAT = 3  # of what is kept on disk; another number is another key

Progress = Callable[[str, int, int | None], None]


def no_progress(stage: str, done: int, total: int | None) -> None:
    """For those who do not want to know."""


@dataclass(frozen=True)
class Rows:
    """Rows to read, from a file or from memory.

    Args:
        name: What to call them in messages.
        identity: Changes when the content does.
        read: Starts reading; batches as `read_rows` gives them.
        small: Whether they are one batch, which needs no disk to be encoded.
    """

    name: str
    identity: str
    read: Callable[[BadRows], Iterator[pa.RecordBatch]]
    small: bool = False


def file_rows(source: Source, progress: Progress = no_progress) -> Rows:
    """The rows of a file, identified by its content and by how it is read."""
    content = hash_file(source.path, progress)
    form = guess_format(source.path) if source.format == "auto" else source.format
    identity = f"{content} {form} {source.columns}"
    return Rows(
        str(source.path),
        identity,
        lambda bad_rows: read_rows(source.path, source.columns, bad_rows, format=source.format),
    )


def probe_rows(probe: Probe) -> Rows:
    """The rows of the built-in probe."""
    return Rows("probe", repr(probe), lambda bad_rows: probe.batches())


@dataclass(frozen=True)
class RowSplits:
    """Rows to train on, to choose by and to report on.

    Args:
        train: The training rows; dev and test rows are held out of them where they have none of their own.
        dev: Development rows.
        test: Test rows.
        train_rows: Draw so many of the training rows; None: all that are left.
        dev_rows: Hold out so many rows, or such a share of them, where ``dev`` is None.
        test_rows: Hold out so many rows where ``test`` is None; None: no test rows.
        keep_labels: Leave out rows with any other label.
    """

    train: Rows
    dev: Rows | None = None
    test: Rows | None = None
    train_rows: int | None = None
    dev_rows: int | float = 0.1
    test_rows: int | None = None
    keep_labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TextData:
    """A data set, ready for batches.

    Args:
        tokenizer: Cuts and numbers the words.
        labels: What the labels mean.
        splits: ``train``, ``dev`` and perhaps ``test``.
        notes: What there is to say about the rows: which were held out, left out or cut.
        fingerprint: Changes when the content of any file, or how it is read, does.
    """

    tokenizer: TextTokenizer
    labels: Labels
    splits: Mapping[str, Examples]
    notes: tuple[str, ...]
    fingerprint: str


def prepare_texts(
    splits: RowSplits, *, shape: str, rating: bool, config: DataConfig, cache: Path, progress: Progress = no_progress
) -> TextData:
    """Encode a data set, or map what an earlier call left in ``cache``.

    Args:
        splits: Where the rows come from.
        shape: A key of `CUTS`.
        rating: Whether labels are numbers to be predicted rather than classes.
        config: How texts are cut.
        cache: Folder for encoded data, shared by all runs.
        progress: Called with a stage's name, rows done, and how many there are, if known.
    """
    sources = [None if rows is None else rows.identity for rows in (splits.train, splits.dev, splits.test)]
    counts = (splits.train_rows, splits.dev_rows, splits.test_rows, splits.keep_labels)
    key = fingerprint(sources, counts, shape, rating, settings_key(config, progress))

    def build(folder: Path) -> None:
        _build(folder, splits, shape=shape, rating=rating, config=config, progress=progress)

    folder, notes = cached(cache / key, build, _check_texts)
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return TextData(
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        labels=Labels(None if about["classes"] is None else tuple(about["classes"])),
        splits={name: Examples.open(folder / f"{name}.arrow") for name in about["splits"]},
        notes=(*notes, *about["notes"]),
        fingerprint=key,
    )


def encode_texts(
    rows: Rows,
    *,
    shape: str,
    tokenizer: TextTokenizer,
    labels: Labels | None,
    config: DataConfig,
    folder: Path,
    progress: Progress = no_progress,
) -> tuple[Examples, Array, list[str]]:
    """Encode rows with a tokenizer and labels that are already there.

    Returns:
        The examples, in ``folder`` unless they are few; which of them lost their end; what there is to say about them.
    """
    bad_rows = BadRows(skip=config.bad_rows == "skip")
    batches = encode_rows(
        _watched(rows.read(bad_rows), "encoding", None, progress),
        source=rows.name,
        shape=shape,
        tokenizer=tokenizer,
        labels=labels,
        config=config,
        bad_rows=bad_rows,
    )
    examples = None
    if rows.small:
        examples, cut = next(batches)
    else:
        cut = save_examples(batches, folder / "rows.arrow")
    if not len(cut):
        raise InputError(f"{rows.name}: no row can be used ({'; '.join(bad_rows.lines())})")
    return examples or Examples.open(folder / "rows.arrow"), cut, bad_rows.lines()


def _build(
    folder: Path, splits: RowSplits, *, shape: str, rating: bool, config: DataConfig, progress: Progress
) -> None:
    bad_rows = BadRows(skip=config.bad_rows == "skip")
    notes: list[str] = []
    parsed = {
        name: _parse(rows, folder / f"{name}.rows", splits.keep_labels, config, bad_rows, progress)
        for name, rows in (("train", splits.train), ("dev", splits.dev), ("test", splits.test))
        if rows is not None
    }
    labels, codes = _find_labels(parsed["train"], splits.train.name, rating, config)
    members = _split(codes, splits, config, notes)
    total = int((members == 0).sum())

    tokenizer: TextTokenizer
    if config.tokenizer == "words":
        texts = (
            batch[name]
            for batch in _watched(_members(parsed["train"], members, 0), "counting words", total, progress)
            for name in ("text", "text_pair")
            if name in batch.schema.names
        )
        counts = count_words(texts)
        tokenizer = word_tokenizer(counts, config, notes, progress)
    else:
        tokenizer = load_tokenizer(Path(config.tokenizer))
    tokenizer.save(folder / "tokenizer.json")

    names = ["train", "dev", "test"] if "test" in parsed or (members == 2).any() else ["train", "dev"]
    for number, name in enumerate(names):
        own = name in parsed
        rows = _batches(parsed[name]) if own and number else _members(parsed["train"], members, number)
        batches = encode_rows(
            _watched(rows, f"encoding {name}", None if own and number else int((members == number).sum()), progress),
            source=getattr(splits, name).name if own else splits.train.name,
            shape=shape,
            tokenizer=tokenizer,
            labels=labels,
            config=config,
            bad_rows=bad_rows,
        )
        if not len(save_examples(batches, folder / f"{name}.arrow")):
            raise InputError(
                f"{(getattr(splits, name) or splits.train).name}: no row can be used ({'; '.join(bad_rows.lines())})"
            )
    for path in parsed.values():
        path.unlink()
    about = {"classes": labels.classes, "splits": names, "notes": notes + bad_rows.lines()}
    write_text(folder / "about.json", json.dumps(about, ensure_ascii=False))


def _parse(
    rows: Rows, path: Path, keep: tuple[str, ...] | None, config: DataConfig, bad_rows: BadRows, progress: Progress
) -> Path:
    """Read the rows once, into a file: what follows looks at them two or three times."""
    writer = None
    try:
        for batch in _watched(rows.read(bad_rows), f"reading {Path(rows.name).name}", None, progress):
            if keep is not None:
                kept = pc.is_in(batch["label"], value_set=pa.array(keep, batch["label"].type))
                left_out = batch.num_rows - pc.sum(kept).as_py()
                if left_out:
                    first = batch["row"].filter(pc.invert(kept))[0].as_py()
                    bad_rows.count("label not asked for", f"{rows.name}, row {first}", left_out)
                    batch = batch.filter(kept)
            writer = writer or pa.ipc.new_file(str(path), batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    if writer is None or not sum(batch.num_rows for batch in _batches(path)):
        raise InputError(f"{rows.name}: no row can be used ({'; '.join(bad_rows.lines())})")
    return path


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as source:  # read once in order: a map would only fill memory with its pages
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _members(path: Path, members: npt.NDArray[np.int8], wanted: int) -> Iterator[pa.RecordBatch]:
    """The rows that belong to one split."""
    start = 0
    for batch in _batches(path):
        mine = members[start : start + batch.num_rows] == wanted
        start += batch.num_rows
        if mine.any():
            yield batch if mine.all() else batch.filter(pa.array(mine))


def _find_labels(path: Path, name: str, rating: bool, config: DataConfig) -> tuple[Labels, npt.NDArray[np.int32]]:
    """The classes of the training rows, and the class of each."""
    if rating:
        return Labels(None), np.zeros(sum(batch.num_rows for batch in _batches(path)), np.int32)
    counts: Counter[str] = Counter()
    for batch in _batches(path):
        values, numbers = pc.value_counts(batch["label"]).flatten()
        counts.update(dict(zip(values.to_pylist(), numbers.to_pylist(), strict=True)))
    classes = tuple(sorted(counts, key=_label_order))
    if len(classes) < 2:
        raise InputError(
            f"{name}, column {config.label_column!r}: every row has the label {classes[0]!r}, "
            "expected at least two classes"
        )
    labels = Labels(classes)
    codes = np.concatenate([labels.encode(batch["label"])[0] for batch in _batches(path)])
    for rare in classes:
        if counts[rare] < config.min_examples_per_class:
            place = int(np.flatnonzero(codes == classes.index(rare))[0])
            row = _row_at(path, place)
            raise InputError(
                f"{name}, row {row}, column {config.label_column!r}: {counts[rare]} example of the class {rare!r}, "
                f"expected at least {config.min_examples_per_class}: a typing mistake? "
                f"(--set data.min_examples_per_class={counts[rare]} allows it)"
            )
    return labels, codes


def _label_order(label: str) -> tuple[int, float, str]:
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def _row_at(path: Path, place: int) -> int:
    for batch in _batches(path):
        if place < batch.num_rows:
            return int(batch["row"][place].as_py())
        place -= batch.num_rows
    raise IndexError(place)


def _split(
    codes: npt.NDArray[np.int32], splits: RowSplits, config: DataConfig, notes: list[str]
) -> npt.NDArray[np.int8]:
    """0, 1, 2 for each row of the training file: train, dev, test; −1 for a row that is not drawn."""
    count = len(codes)
    shuffled = np.random.default_rng(config.split_seed).permutation(count)
    # One example of each class stays in training, whatever is held out.
    _, first = np.unique(codes[shuffled], return_index=True)
    order = np.concatenate((shuffled[first], np.delete(shuffled, first)))
    dev = splits.dev_rows if isinstance(splits.dev_rows, int) else max(round(splits.dev_rows * count), 1)
    held = {1: 0 if splits.dev is not None else dev, 2: 0 if splits.test is not None else splits.test_rows or 0}
    train = count - held[1] - held[2] if splits.train_rows is None else splits.train_rows
    if train < len(first) or train + held[1] + held[2] > count:
        wanted = max(train, len(first)) + held[1] + held[2]
        raise InputError(
            f"{splits.train.name}: {count:,} rows, expected at least {wanted:,}: "
            f"{held[1]:,} are held out for development, {held[2]:,} for the test, and one of each class must remain"
        )
    members = np.full(count, -1, np.int8)
    end = count
    for number in (2, 1):
        members[order[end - held[number] : end]] = number
        end -= held[number]
    members[order[:train]] = 0
    for number, purpose in ((1, "for development"), (2, "for the test")):
        if held[number]:
            notes.append(f"held out {held[number]:,} of {count:,} rows {purpose}, seed {config.split_seed}")
    if train + held[1] + held[2] < count:
        notes.append(f"drew {train:,} of {count:,} rows for training, seed {config.split_seed}")
    return members


def _watched(
    batches: Iterator[pa.RecordBatch], stage: str, total: int | None, progress: Progress
) -> Iterator[pa.RecordBatch]:
    done = 0
    progress(stage, 0, total)
    for batch in batches:
        yield batch
        done += batch.num_rows
        progress(stage, done, total)


def cached(folder: Path, build: Callable[[Path], None], check: Callable[[Path], None]) -> tuple[Path, list[str]]:
    """``folder``, filled by ``build`` unless an earlier call did; what there is to say about it.

    It is built under another name and renamed, so that it is whole or not there. One that ``check`` cannot read is
    built anew.
    """
    notes: list[str] = []
    if folder.exists():
        try:
            check(folder)
        except Exception as error:
            notes.append(f"{folder}: the cache is damaged ({error}) and was made anew")
            if folder.is_dir():
                shutil.rmtree(folder)
            else:
                folder.unlink()
        else:
            return folder, notes
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _remove_leftovers(folder.parent)
        with _claim(temporary, alone=False):
            build(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster, and its folder is as good
                raise
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder, notes


def _remove_leftovers(cache: Path) -> None:
    """Remove what killed processes left half built: a day old, and claimed by none that is alive."""
    for left in cache.glob(".*.part"):
        with suppress(OSError), _claim(left, alone=True) as free:  # another process may be quicker
            if free and time.time() - left.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(left)


@contextmanager
def _claim(folder: Path, *, alone: bool) -> Iterator[bool]:
    """Lock a folder until the block, or the process, ends; whether that could be done."""
    if fcntl is None:  # not a POSIX system
        yield False
        return
    handle, free = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), False
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_NB | (fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            free = True
        yield free
    finally:
        os.close(handle)


def _check_texts(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    load_tokenizer(folder / "tokenizer.json")
    if not {"classes", "notes"} <= set(about):
        raise KeyError("about.json")
    for name in about["splits"]:
        Examples.open(folder / f"{name}.arrow")


def fingerprint(*parts: object) -> str:
    """A name for content: the start of a SHA-256."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode()).hexdigest()[:32]


def hash_file(path: Path, progress: Progress = no_progress) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    check_file(path)
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
                progress(f"hashing {path.name}", file.tell(), total)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def word_tokenizer(counts: Counter[str], config: DataConfig, notes: list[str], progress: Progress) -> WordTokenizer:
    """The vocabulary of the training rows, with the words of the vectors if they are asked for, of which notes tell."""
    further: Sequence[str] = ()
    if config.vector_words:
        assert config.vectors is not None
        path = Path(config.vectors)
        bad_rows = BadRows(skip=config.bad_rows == "skip")  # of most of them whoever reads the vectors tells
        further = read_words(path, bad_rows, progress=lambda done, total: progress(f"reading {path.name}", done, total))
    tokenizer = WordTokenizer.from_counts(counts, further, limit=config.vocabulary, min_count=config.min_count)
    if further:
        words = tokenizer.words[len(SPECIAL) :]
        count = sum(counts[word] < config.min_count for word in words)
        full = f"; it is full: data.vocabulary is {config.vocabulary:,}" if len(words) == config.vocabulary else ""
        notes.append(f"words of {path.name} in the vocabulary beside those of training: {count:,}{full}")
    if config.vector_words and (unusable := bad_rows.counts[UNUSABLE]):
        notes.append(f"{unusable:,} words of {path.name} left out: {UNUSABLE} (first: {bad_rows.first[UNUSABLE]})")
    return tokenizer


def settings_key(config: DataConfig, progress: Progress = no_progress) -> dict[str, Any]:
    """What of ``config`` decides how the encoded data look."""
    fields = asdict(config)
    vectors, with_words = fields.pop("vectors"), fields.pop("vector_words")
    if with_words:
        fields["vector_words"] = [hash_file(path, progress) for path in files_of_vectors(Path(vectors))]
    if config.tokenizer != "words":
        fields["tokenizer"] = hash_file(Path(config.tokenizer))
    return fields
