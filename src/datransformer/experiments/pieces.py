"""Parts of the paper's data sets as they are to be had in Parquet, brought into one form: train, dev and test.

Whoever has the published files needs none of this: `datransformer.data.datasets` reads them as they come. These are
subsets and stand-ins, and every table that is made from them says so.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datransformer.data.datasets import MIND_FILES, SST_FILES, find_mind, locate, under
from datransformer.data.errors import InputError
from datransformer.data.readers import RowError, numbered_lines, tree_phrases
from datransformer.data.store import atomic_path

SEED = 2021  # of every split that is drawn here
SPLITS = ("train", "dev", "test")
NEUTRAL = "2"  # of the classes of a tree, 0 to 4
AMAZON_HELD_OUT = 5_000  # reviews for dev, and as many for test, as in the paper
DEV_DAY = "11/14/2019"  # the last day of the training impressions; the paper too holds out the last day
MIND_NEWS = ("news_small_train", "news_dev_extra")
MIND_WHOLE = ("full", "as_shown")  # candidates that are not a sample; the second kind look as if they were all
Tables = dict[str, pa.Table]


@dataclass(frozen=True)
class Pieces:
    """A data set in parts.

    Args:
        files: What has to be in the folder.
        caveat: How it differs from what the paper used.
        read: From the folder to one table a split, with the columns text, perhaps text_pair, and label.
    """

    files: tuple[str, ...]
    caveat: str
    read: Callable[[Path], Tables]


def read_ag(folder: Path) -> Tables:
    """Title and description in one text. There is no dev set: a seeded tenth of train is one."""
    train, test = (pq.read_table(folder / f"{name}.parquet") for name in ("train_subset", "test"))
    train, dev = _hold_out(_as_texts(train, ("title", "description", "text"), "label"), train.num_rows // 10)
    return {"train": train, "dev": dev, "test": _as_texts(test, ("title", "description"), "label")}


def read_amazon(folder: Path) -> Tables:
    """One file; dev and test are drawn from it."""
    rows = _as_texts(pq.read_table(folder / "reviews_1to5.parquet"), ("text",), "stars")
    rest, test = _hold_out(rows, AMAZON_HELD_OUT)
    train, dev = _hold_out(rest, AMAZON_HELD_OUT)
    return {"train": train, "dev": dev, "test": test}


def read_sst(folder: Path) -> Tables:
    """Sentences that are positive or negative; neutral ones have no label of two."""
    parts = {name: pq.read_table(folder / f"{name}.parquet") for name in SPLITS}
    return {
        name: _as_texts(part.filter(pc.is_valid(part["label2"])), ("text",), "label2") for name, part in parts.items()
    }


def read_sst_phrases(folder: Path) -> Tables:
    """As `read_sst`, and every phrase of the training trees that is not neutral is a training text of its own."""
    tables = read_sst(folder)
    phrases = pq.read_table(folder / "train_phrases.parquet")
    phrases = phrases.filter(pc.not_equal(phrases["label5"], 2))
    sign = pc.cast(pc.greater(phrases["label5"], 2), pa.int8())
    phrases = _as_texts(phrases.append_column("label2", sign), ("text",), "label2")
    known = pc.is_in(phrases["text"], value_set=tables["train"]["text"].combine_chunks())
    return {**tables, "train": pa.concat_tables([tables["train"], phrases.filter(pc.invert(known))])}


def read_sst_trees(folder: Path) -> Tables:
    """As `read_sst_phrases`, from the trees as they are published."""
    sentences: dict[str, list[tuple[str, str]]] = {}
    phrases: dict[str, str] = {}
    for split, path in zip(SPLITS, locate(folder, under("trees", SST_FILES)), strict=True):
        sentences[split] = []
        for number, line in numbered_lines(path):
            try:
                *nodes, root = tree_phrases(line.decode())
            except (RowError, UnicodeDecodeError):
                raise InputError(f"{path}, row {number}: not a tree, expected one as (3 (2 a) (3 b))") from None
            sentences[split].append(root)
            if split == "train":
                phrases.update(nodes)
    known = {text for text, label in sentences["train"] if label != NEUTRAL}
    sentences["train"] += [(text, label) for text, label in phrases.items() if text not in known]
    return {
        split: pa.table({name: [row[at] for row in signed] for at, name in enumerate(("text", "label"))})
        for split, rows in sentences.items()
        for signed in [[(text, str(int(label > NEUTRAL))) for text, label in rows if label != NEUTRAL]]
    }


def read_snli(folder: Path, keep: tuple[str, ...] | None = None) -> Tables:
    """Pairs; ``keep`` leaves rows with other labels out."""
    tables = {}
    for name, file in zip(SPLITS, ("train_subset", "dev", "test"), strict=True):
        rows = pq.read_table(folder / f"{file}.parquet")
        if keep is not None:
            rows = rows.filter(pc.is_in(rows["label"], value_set=pa.array(keep)))
        tables[name] = _as_texts(rows, ("premise",), "label").append_column("text_pair", rows["hypothesis"])
    return tables


def read_mind(folder: Path) -> Tables:
    """Impressions, whose news are written beside them: see `write_pieces`.

    Test are dev impressions with all of their candidates. Histories that are sets stay out: they have no distances.
    """
    train = pq.read_table(folder / "behaviors_train.parquet")
    dev = pq.read_table(folder / "behaviors_dev_pieces.parquet")
    last = pc.starts_with(train["time"], DEV_DAY)
    whole = pc.is_in(dev["candidates"], value_set=pa.array(MIND_WHOLE))
    test = dev.filter(pc.and_(whole, pc.equal(dev["history_order"], "original")))
    return {"train": train.filter(pc.invert(last)), "dev": train.filter(last), "test": test}


PIECES: dict[str, Pieces] = {
    "ag": Pieces(
        ("ag_news/train_subset.parquet", "ag_news/test.parquet"),
        "62 % of the official training set, the whole test set; a tenth of the training rows is the dev set",
        lambda folder: read_ag(folder / "ag_news"),
    ),
    "amazon": Pieces(
        ("amazon_reviews/reviews_1to5.parquet",),
        "a stand-in: reviews of many kinds of goods, 77 tokens on average, where the paper's of Electronics have 133",
        lambda folder: read_amazon(folder / "amazon_reviews"),
    ),
    "sst": Pieces(
        ("sst/train.parquet", "sst/dev.parquet", "sst/test.parquet"),
        "complete, the binary rows: 6,920 / 872 / 1,821",
        lambda folder: read_sst(folder / "sst"),
    ),
    "sst_phrases": Pieces(
        ("sst/train.parquet", "sst/dev.parquet", "sst/test.parquet", "sst/train_phrases.parquet"),
        "complete, the binary rows, with the phrases of the training trees, of which the paper says nothing",
        lambda folder: read_sst_phrases(folder / "sst"),
    ),
    "snli": Pieces(
        ("snli/train_subset.parquet", "snli/dev.parquet", "snli/test.parquet"),
        "16 % of the official training set, 3 classes; dev and test are whole",
        lambda folder: read_snli(folder / "snli"),
    ),
    "snli2": Pieces(
        ("snli/train_subset.parquet", "snli/dev.parquet", "snli/test.parquet"),
        "16 % of the official training set, of which the pairs of 2 classes, entailment and contradiction: as many as "
        "the paper's 55k, whose classes it does not name; of dev and test two thirds",
        lambda folder: read_snli(folder / "snli", ("contradiction", "entailment")),
    ),
    "mind": Pieces(
        tuple(f"mind/{name}.parquet" for name in (*MIND_NEWS, "behaviors_train", "behaviors_dev_pieces")),
        "4 % of MINDsmall; dev is the last day of its training impressions, test is 908 impressions of its published "
        "dev set, which is not used otherwise: those with all candidates and with histories in order",
        lambda folder: read_mind(folder / "mind"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A data set whose splits are not the files that it is published in.

    Args:
        write: From the folder with those to files, or for MIND folders, below another; where they are, by split.
        note: What is to be said of it.
    """

    write: Callable[[Path, Path], Mapping[str, Path]]
    note: str = ""


def split_mind(folder: Path, out: Path) -> Mapping[str, Path]:
    """The last day of the training impressions for dev, as in the paper, and the published dev set for test.

    The clicks of the published test set are not published.
    """
    splits = find_mind(folder)
    assert splits.dev is not None
    train, test = splits.train[0].path, splits.dev.path
    targets = {split: out / split for split in ("train", "dev")}
    if {target.resolve() for target in targets.values()} & {train.resolve(), test.resolve()}:
        raise InputError(f"--out: {train} would be overwritten, expected another folder")
    news, behaviors = (train / name for name in MIND_FILES)
    days = {day for day, _ in _days(behaviors)}
    if len(days) < 2:
        raise InputError(f"{behaviors}: all impressions are of one day, expected several: the last one is for dev")
    last = max(days)
    for split, target in targets.items():
        target.mkdir(parents=True, exist_ok=True)
        with atomic_path(target / news.name) as part:
            shutil.copyfile(news, part)
        with atomic_path(target / behaviors.name) as part, part.open("wb") as file:
            file.writelines(line for day, line in _days(behaviors) if (day == last) == (split == "dev"))
    return {**targets, "test": test}


def _days(behaviors: Path) -> Iterator[tuple[date, bytes]]:
    """The day of each impression, and its line."""
    known: dict[bytes, date] = {}
    for number, line in numbered_lines(behaviors):
        day = b"".join(line.split(b"\t", 3)[2:3]).partition(b" ")[0]
        if day not in known:
            try:
                month, date_of_month, year = map(int, day.split(b"/"))
                known[day] = date(year, month, date_of_month)
            except (ValueError, OverflowError):
                raise InputError(
                    f"{behaviors}, row {number}: time: got {day[:20].decode(errors='replace')!r}, expected one as "
                    "11/14/2019 8:30:00 AM in the third of its fields"
                ) from None
        yield known[day], line if line.endswith(b"\n") else line + b"\n"


MADE: dict[str, Made] = {
    "sst_phrases": Made(lambda folder, out: write_tables(read_sst_trees(folder), out)),
    "mind": Made(
        split_mind,
        "; dev is the last day of the training impressions, test the published dev set, since the clicks of the "
        "published test set are not to be had",
    ),
}


def has_pieces(name: str, folder: Path) -> bool:
    """Whether ``folder`` holds the parts of a data set."""
    return name in PIECES and all((folder / file).is_file() for file in PIECES[name].files)


def write_pieces(name: str, folder: Path, out: Path) -> Mapping[str, Path]:
    """Bring the parts of a data set into files, for MIND folders, that training reads; where they are, by split.

    The same parts give the same bytes, and so the same encoded data in the cache.
    """
    if not has_pieces(name, folder):
        raise InputError(f"{folder}: expected {', '.join(PIECES[name].files)}")
    written = {(out / f"{split}.parquet").resolve() for split in SPLITS}
    for file in PIECES[name].files:
        if (folder / file).resolve() in written:
            raise InputError(f"--out: {folder / file} would be overwritten, expected another folder")
    try:
        tables = PIECES[name].read(folder)
    except (pa.ArrowException, KeyError) as error:
        files = ", ".join(PIECES[name].files)
        raise InputError(f"{folder}: {files}: cannot be read ({' '.join(str(error).split())})") from error
    out.mkdir(parents=True, exist_ok=True)
    if name == "mind":
        news = all_news(folder / "mind")
        return {split: write_mind(out / split, news, table) for split, table in tables.items()}
    return write_tables(tables, out)


def write_tables(tables: Tables, out: Path) -> Mapping[str, Path]:
    """A file for each split."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {}
    for split, table in tables.items():
        paths[split] = out / f"{split}.parquet"
        with atomic_path(paths[split]) as part:
            pq.write_table(table, part)
    return paths


def _as_texts(rows: pa.Table, text: tuple[str, ...], label: str) -> pa.Table:
    """The columns text and label; a text is joined from those of its parts that are there."""
    parts = [pc.fill_null(rows[name], "") for name in text]
    joined = pc.utf8_trim_whitespace(pc.binary_join_element_wise(*parts, " "))
    return pa.table({"text": joined, "label": pc.cast(rows[label], pa.string())})


def _hold_out(rows: pa.Table, count: int) -> tuple[pa.Table, pa.Table]:
    """All rows but ``count``, and those, drawn with `SEED`; both in the order they had."""
    chosen = np.zeros(rows.num_rows, dtype=bool)
    chosen[np.random.default_rng(SEED).permutation(rows.num_rows)[:count]] = True
    mask = pa.array(chosen)
    return rows.filter(pc.invert(mask)), rows.filter(mask)


def all_news(folder: Path) -> list[dict[str, Any]]:
    """Every news item once."""
    news: dict[str, dict[str, Any]] = {}
    for name in MIND_NEWS:
        for item in pq.read_table(folder / f"{name}.parquet").to_pylist():
            news.setdefault(item["news_id"], item)
    return list(news.values())


def write_mind(folder: Path, news: list[dict[str, Any]], impressions: pa.Table) -> Path:
    """The two files of a split as MIND publishes them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: tuple[list[tuple[Any, ...]], ...] = (
        [(item["news_id"], item["category"], "", item["title"], "", "", "[]", "[]") for item in news],
        [
            (row["impression_id"], row["user_id"], row["time"], row["history"] or "", row["impressions"])
            for row in impressions.to_pylist()
        ],
    )
    for name, rows in zip(MIND_FILES, lines, strict=True):
        with atomic_path(folder / name) as part, part.open("w", encoding="utf-8", newline="") as file:
            file.writelines("\t".join(" ".join(str(field).split()) for field in row) + "\n" for row in rows)
    return folder
