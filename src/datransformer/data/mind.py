"""The files of MIND, the Microsoft News Dataset (Wu et al. 2020): news, impressions, and the predictions it takes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datransformer.data.errors import BadRows, InputError
from datransformer.data.readers import Block, Columns, Sieve, delimited_blocks, is_blank, open_bytes
from datransformer.data.store import atomic_path

NEWS_COLUMNS = ("id", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
NEWS_FEWEST = 4
BEHAVIORS_COLUMNS = ("impression", "user", "time", "history", "impressions")


@dataclass(frozen=True)
class Behaviors:
    """Some impressions. Those of impression i are ``candidates[candidate_offsets[i] : candidate_offsets[i + 1]]``.

    Args:
        impression: Ids, as they are written in the file.
        history: News ids that the users had clicked before, as an Arrow array of strings.
        history_offsets: Where each impression's history starts and, one more, where the last one ends.
        candidates: News ids that were shown.
        candidate_offsets: Where each impression's candidates start and, one more, where the last ones end.
        clicked: 1 for each candidate that was clicked and 0 for the others; None where the file does not say.
    """

    impression: list[str]
    history: pa.Array
    history_offsets: npt.NDArray[np.int64]
    candidates: pa.Array
    candidate_offsets: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.int8] | None

    def __len__(self) -> int:
        return len(self.impression)


def read_news(path: Path, bad_rows: BadRows) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and titles of news.tsv, some at a time.

    A news item without a title is kept, and of two with the same id the first one is; both are counted.
    """
    with open_bytes(path) as file:
        fields = file.readline().count(b"\t") + 1
    if fields < NEWS_FEWEST:
        expected = f"at least {NEWS_FEWEST} tab-separated fields: {', '.join(NEWS_COLUMNS)}"
        raise InputError(f"{path}, row 1: the number of fields is {fields}, expected {expected}")
    names = [*NEWS_COLUMNS[:fields], *(f"column {number}" for number in range(len(NEWS_COLUMNS) + 1, fields + 1))]
    seen: set[str] = set()
    for block in delimited_blocks(
        path, Columns(("id", "title"), label=None), delimiter="\t", names=names, quoted=False
    ):
        sieve = Sieve(block)
        for name in ("id", "title"):
            sieve.flag_characters(block, name, name)
        sieve.flag(is_blank(block.columns["id"]), "id", "empty news id", "an id")
        sieve.settle(path, bad_rows)
        ids = sieve.keep(pc.utf8_trim_whitespace(block.columns["id"])).to_pylist()
        titles = sieve.keep(pc.utf8_trim_whitespace(block.columns["title"])).to_pylist()
        chunk: dict[str, str] = {}
        for row, identity, title in zip(block.rows[~sieve.dropped], ids, titles, strict=True):
            if identity in seen:
                bad_rows.count("duplicate news id", f"{path}, row {row}, column 'id': {identity!r} came before")
                continue
            if not title:
                bad_rows.count("empty title", f"{path}, row {row}, column 'title': empty title")
            seen.add(identity)
            chunk[identity] = title
        if chunk:
            yield list(chunk), list(chunk.values())
    if not seen:
        raise InputError(f"{path}: the file has no news that can be used, expected at least one")


def read_behaviors(path: Path, bad_rows: BadRows, *, labelled: bool = True) -> Iterator[Behaviors]:
    """The impressions of behaviors.tsv, some at a time.

    Args:
        path: The file.
        bad_rows: What becomes of rows that cannot be used.
        labelled: Whether the candidates say, as ``N1-0`` or ``N1-1``, if they were clicked. The test set's do not.
    """
    columns = Columns(("impression", "history", "impressions"), label=None)
    number = 0
    for block in delimited_blocks(path, columns, delimiter="\t", names=BEHAVIORS_COLUMNS, quoted=False):
        number += len(block.rows) + len(block.flaws)
        behaviors = split_behaviors(path, block, bad_rows, labelled)
        if len(behaviors):
            yield behaviors
    if not number:
        raise InputError(f"{path}: the file has no rows, expected at least one")


def split_behaviors(path: Path, block: Block, bad_rows: BadRows, labelled: bool) -> Behaviors:
    """The impressions of ``block`` that can be used."""
    sieve = Sieve(block)
    for name in ("impression", "history", "impressions"):
        sieve.flag_characters(block, name, name)
    sieve.flag(is_blank(block.columns["impression"]), "impression", "empty impression id", "an id")
    sieve.flag(is_blank(block.columns["impressions"]), "impressions", "no candidates", "news ids")
    shown, offsets = split_ids(block.columns["impressions"])
    if labelled:
        unclear = np.asarray(pc.invert(pc.match_substring_regex(shown, "^.+-[01]$"))).astype(np.int64)
        rows_unclear = np.diff(np.concatenate([[0], unclear.cumsum()])[offsets]) > 0
        expected = "ids that end in -0 or -1, as in N1-0 N2-1"
        sieve.flag(pa.array(rows_unclear), "impressions", "a candidate without its click", expected)
    sieve.settle(path, bad_rows)
    if sieve.dropped.any():
        shown, offsets = split_ids(sieve.keep(block.columns["impressions"]))
    history, history_offsets = split_ids(sieve.keep(block.columns["history"]))
    clicked = None
    if labelled:
        clicked = np.asarray(pc.ends_with(shown, "-1")).astype(np.int8)
        shown = pc.binary_slice(shown.cast(pa.binary()), 0, -2).cast(pa.string())
    impression = sieve.keep(pc.utf8_trim_whitespace(block.columns["impression"])).to_pylist()
    return Behaviors(impression, history, history_offsets, shown, offsets, clicked)


def split_ids(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The words of all elements, one after the other, and where each element's start."""
    lists = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(array))
    offsets = np.asarray(lists.offsets).astype(np.int64)
    words = lists.flatten()
    blank = np.asarray(pc.equal(words, ""))
    if blank.any():  # an empty element is split into one empty word
        offsets -= np.concatenate([[0], blank.cumsum()])[offsets]
        words = words.filter(pa.array(~blank))
    return words, offsets


def write_predictions(path: Path, impressions: Iterable[tuple[str, Sequence[float]]]) -> None:
    """Write MIND's prediction.txt: a line an impression with its id and the rank of each candidate, 1 for the best.

    Of two candidates with the same score the earlier one ranks better. The file appears when it is complete.

    Args:
        path: The file to write.
        impressions: Ids, and the scores of the candidates in their order.
    """
    try:
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            for impression, scores in impressions:
                file.write(f"{impression} [{','.join(map(str, rank(impression, scores)))}]\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error


def rank(impression: str, scores: Sequence[float]) -> list[int]:
    """The place of each score among all, from 1 for the highest."""
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(f"scores of impression {impression}: got NaN, expected numbers")
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    ranked: list[int] = ranks.tolist()
    return ranked
