"""News and impressions, as token ids and row numbers, and batches of clicks to learn from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from datransformer.data.batches import Batch, as_ids
from datransformer.data.config import DataConfig
from datransformer.data.errors import BadRows, InputError
from datransformer.data.mind import Behaviors, read_behaviors, read_news
from datransformer.data.prepare import (
    Progress,
    cached,
    fingerprint,
    hash_file,
    no_progress,
    settings_key,
    word_tokenizer,
)
from datransformer.data.store import Array, Ragged, StoreWriter, open_store, spans, write_text
from datransformer.data.tokenizer import TextTokenizer, count_words, load_tokenizer

NEWS, BEHAVIORS = "news.tsv", "behaviors.tsv"
NO_NEWS = 0  # the row of titles that stands for news without an entry in news.tsv


@dataclass(frozen=True)
class Impressions:
    """What users had read, what they were shown, what they clicked.

    Args:
        titles: Token ids of each news item's title; row 0 is empty and stands for news that is not listed.
        names: The ids of the impressions, as bytes.
        history: Rows of ``titles`` for each impression, oldest first.
        candidates: Rows of ``titles`` for each impression.
        clicked: 1 or 0 for every entry of ``candidates.values``, None where that is not known.
        members: The impressions that belong to this split.
    """

    titles: Ragged
    names: Ragged
    history: Ragged
    candidates: Ragged
    clicked: npt.NDArray[np.int8] | None
    members: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.members)

    def name(self, impression: int) -> str:
        """The id of an impression."""
        return self.names[impression].tobytes().decode()

    @classmethod
    def open(cls, folder: Path) -> "Impressions":
        """Map what `encode_impressions` wrote."""
        titles = open_store(folder / "titles.arrow")[0]["titles"]
        columns, _ = open_store(folder / "impressions.arrow")
        names, history, candidates = columns["names"], columns["history"], columns["candidates"]
        clicked = columns.get("clicked")
        assert isinstance(titles, Ragged)
        assert isinstance(names, Ragged)
        assert isinstance(history, Ragged)
        assert isinstance(candidates, Ragged)
        flat = clicked.values if isinstance(clicked, Ragged) else None
        return cls(titles, names, history, candidates, flat, np.arange(len(names)))


@dataclass(frozen=True)
class NewsData:
    """A recommendation data set, ready for batches; fields as `TextData`."""

    tokenizer: TextTokenizer
    splits: Mapping[str, Impressions]
    notes: tuple[str, ...]
    fingerprint: str


def prepare_news(
    train: Path,
    dev: Path | None,
    test: Path | None,
    *,
    config: DataConfig,
    cache: Path,
    progress: Progress = no_progress,
) -> NewsData:
    """Encode folders with ``news.tsv`` and ``behaviors.tsv``, or map what an earlier call left in ``cache``.

    Args:
        train: Folder to train on; without ``dev`` a share of its impressions is held out.
        dev: Folder to choose by.
        test: Folder to report on.
        config: How titles and histories are cut.
        cache: Folder for encoded data, shared by all runs.
        progress: Called with a stage's name, rows done, and how many there are, if known.
    """
    folders = {name: path for name, path in (("train", train), ("dev", dev), ("test", test)) if path is not None}
    hashes = [hash_file(path / file, progress) for path in folders.values() for file in (NEWS, BEHAVIORS)]
    key = fingerprint(hashes, list(folders), "recommend", settings_key(config, progress))

    def build(target: Path) -> None:
        bad_rows = BadRows(skip=config.bad_rows == "skip")
        notes: list[str] = []
        tokenizer: TextTokenizer
        if config.tokenizer == "words":
            counts = count_words(pa.array(titles, pa.string()) for _, titles in read_news(train / NEWS, BadRows(True)))
            tokenizer = word_tokenizer(counts, config, notes, progress)
        else:
            tokenizer = load_tokenizer(Path(config.tokenizer))
        tokenizer.save(target / "tokenizer.json")
        for name, path in folders.items():
            encode_impressions(
                path, target / name, tokenizer=tokenizer, config=config, bad_rows=bad_rows, progress=progress
            )
        write_text(target / "about.json", json.dumps({"notes": notes + bad_rows.lines()}, ensure_ascii=False))

    def check(target: Path) -> None:
        json.loads((target / "about.json").read_text(encoding="utf-8"))
        load_tokenizer(target / "tokenizer.json")
        for name in folders:
            Impressions.open(target / name)

    folder, notes = cached(cache / key, build, check)
    notes += json.loads((folder / "about.json").read_text(encoding="utf-8"))["notes"]
    splits = {name: Impressions.open(folder / name) for name in folders}
    if dev is None:
        everything = splits["train"]
        count = len(everything)
        held = max(round(config.dev_share * count), 1)
        if held >= count:
            raise InputError(f"{train}: {count} impressions, expected at least 2: some are held out for development")
        order = np.random.default_rng(config.split_seed).permutation(count)
        splits["train"] = replace(everything, members=np.sort(order[held:]))
        splits["dev"] = replace(everything, members=np.sort(order[:held]))
        notes.append(f"held out {held:,} of {count:,} impressions for development, seed {config.split_seed}")
    count = len(splits["train"])
    idle = count - len(np.unique(find_clicks(splits["train"])[1]))
    if idle:
        notes.append(f"left out {idle:,} of {count:,} training impressions: nothing or everything in them was clicked")
    return NewsData(load_tokenizer(folder / "tokenizer.json"), splits, tuple(notes), key)


def encode_impressions(
    source: Path,
    target: Path,
    *,
    tokenizer: TextTokenizer,
    config: DataConfig,
    bad_rows: BadRows,
    labelled: bool = True,
    progress: Progress = no_progress,
) -> None:
    """Encode one folder of MIND files into another that `Impressions.open` maps."""
    if not source.is_dir():
        found = "is a file" if source.exists() else "there is no such folder"
        raise InputError(f"{source}: {found}, expected a folder with {NEWS} and {BEHAVIORS}")
    target.mkdir(parents=True, exist_ok=True)
    ids: list[str] = []
    with StoreWriter(target / "titles.arrow") as store:
        store.add(titles=Ragged.from_lengths(np.empty(0, np.int32), np.zeros(1, np.int32)))
        for news, titles in read_news(source / NEWS, bad_rows):
            encoded = tokenizer.encode(pa.array(titles, pa.string()))
            whole = Ragged.from_lengths(encoded.ids, encoded.lengths)
            lengths = np.minimum(encoded.lengths, config.max_title_length)
            store.add(titles=Ragged.from_lengths(whole.values[spans(whole.offsets[:-1], lengths)], lengths))
            ids += news
            progress(f"encoding {source.name} news", len(ids), None)
    known = pa.array(ids, pa.string())
    done = 0
    with StoreWriter(target / "impressions.arrow") as store:
        for behaviors in read_behaviors(source / BEHAVIORS, bad_rows, labelled=labelled):
            store.add(**_number(behaviors, known, config.max_history, str(source / BEHAVIORS), bad_rows))
            done += len(behaviors)
            progress(f"encoding {source.name} impressions", done, None)
    if not done:
        raise InputError(f"{source / BEHAVIORS}: no row can be used ({'; '.join(bad_rows.lines())})")


def _number(
    behaviors: Behaviors, known: pa.Array, max_history: int, name: str, bad_rows: BadRows
) -> dict[str, Array | Ragged]:
    """News ids to rows of titles. News that is not listed is left out of a history, and kept as a candidate."""
    read, shown = (_rows_of(ids, known) for ids in (behaviors.history, behaviors.candidates))
    for rows, what in ((read, "left out of a history"), (shown, "a candidate without a title")):
        if missing := int((rows == NO_NEWS).sum()):
            bad_rows.count(f"news that is not listed, {what}", name, missing)
    kept = np.concatenate(([0], np.cumsum(read != NO_NEWS)))[behaviors.history_offsets]
    history = Ragged(read[read != NO_NEWS], kept)
    lengths = np.minimum(history.lengths, max_history)
    newest = history.values[spans(history.offsets[1:] - lengths, lengths)]
    names = [text.encode() for text in behaviors.impression]
    columns: dict[str, Array | Ragged] = {
        "names": Ragged.from_lengths(np.frombuffer(b"".join(names), np.uint8), np.array([len(text) for text in names])),
        "history": Ragged.from_lengths(newest, lengths),
        "candidates": Ragged(shown, behaviors.candidate_offsets),
    }
    if behaviors.clicked is not None:
        columns["clicked"] = Ragged(behaviors.clicked, behaviors.candidate_offsets)
    return columns


def _rows_of(ids: pa.Array, known: pa.Array) -> npt.NDArray[np.int32]:
    index = pc.fill_null(pc.index_in(ids, value_set=known), NO_NEWS - 1)
    return np.asarray(index.to_numpy(zero_copy_only=False) + np.int32(1))


def find_clicks(impressions: Impressions) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The clicks that can be told from something: their places among all candidates, and their impressions.

    An impression in which everything was clicked, or nothing, has none of them.
    """
    if impressions.clicked is None:
        raise InputError("the impressions do not say what was clicked, so there is nothing to learn from")
    clicks = np.flatnonzero(impressions.clicked)  # not all candidates: there may be a hundred times as many
    of = np.searchsorted(impressions.candidates.offsets, clicks, side="right") - 1
    mine = np.zeros(len(impressions.names), bool)
    mine[impressions.members] = True
    mine &= np.bincount(of, minlength=len(mine)) < impressions.candidates.lengths
    impressions.candidates.release()
    return clicks[mine[of]], of[mine[of]].astype(np.int32)


class ClickBatches:
    """Clicks to learn from, each beside news that was shown with it and not clicked (NRMS: four).

    Args:
        impressions: The impressions.
        negatives: How many of those to draw, anew in every epoch. Where an impression has fewer they repeat.
    """

    def __init__(self, impressions: Impressions, negatives: int) -> None:
        self.impressions = impressions
        self.negatives = negatives
        self._clicks, self._of = find_clicks(impressions)
        if not len(self._clicks):
            raise InputError("no impression has a click and a candidate without one: there is nothing to learn from")
        mean_title = max(int(impressions.titles.lengths.mean()), 1)
        read = impressions.history.offsets[self._of + 1] - impressions.history.offsets[self._of]
        self.sizes: Array = ((read + 1 + negatives) * mean_title).astype(np.int32)

    def batch(self, indices: Array, key: tuple[int, ...], rank: int = 0, world: int = 1) -> Batch:
        """The share of one process in a batch of clicks; the clicked news is the first candidate of each."""
        impressions = self.impressions
        of, clicks = self._of[indices], self._clicks[indices]
        shown = impressions.candidates.take(of)
        assert impressions.clicked is not None
        flags = Ragged(impressions.clicked, impressions.candidates.offsets).take(of)
        # Drawn for the whole batch, so that it does not matter how many processes share it.
        drawn = _draw(Ragged(np.where(flags.values == 0, shown.values, -1), shown.offsets), self.negatives, key)
        candidates = np.concatenate((impressions.candidates.values[clicks][:, None], drawn), 1)[rank::world]
        history = impressions.history.take(of[rank::world]).padded(-1)
        inputs = name_news(impressions.titles, history, candidates)
        return Batch(
            inputs=inputs,
            targets=torch.zeros(len(candidates), dtype=torch.int64),
            rows=of[rank::world].astype(np.int64) + 1,
            tokens=int(np.count_nonzero(inputs["titles"].numpy())),
        )


def _draw(negatives: Ragged, count: int, key: tuple[int, ...]) -> Array:
    """``count`` of each row's entries that are not −1, none twice before all were drawn. Each row has some."""
    rows = negatives.padded(-1)
    # An order at random, with the entries that are none last.
    order = (np.random.default_rng(key).random(rows.shape) + (rows < 0)).argsort(1)
    available = (rows >= 0).sum(1, keepdims=True)
    turn = np.arange(count)[None, :] % available
    return np.take_along_axis(rows, np.take_along_axis(order, turn, 1), 1)


def name_news(titles: Ragged, history: Array, candidates: Array) -> dict[str, torch.Tensor]:
    """The titles that a batch names, each once, and history and candidates as rows of them, −1 = none."""
    named = np.concatenate((history.ravel(), candidates.ravel()))
    unique, places = np.unique(named, return_inverse=True)
    if unique[0] < 0:
        unique, places = unique[1:], places - 1
    first, second = np.split(places, [history.size])
    return {
        "titles": as_ids(titles.take(unique).padded(0)),
        "history": as_ids(first.reshape(history.shape)),
        "candidates": as_ids(second.reshape(candidates.shape)),
    }


def impression_batches(impressions: Impressions, size: int) -> Iterator[tuple[Array, Array, Array]]:
    """Impressions with about as many candidates together: their numbers, history and candidates, −1 = none."""
    members = impressions.members
    order = members[np.argsort(impressions.candidates.lengths[members], kind="stable")]
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield chosen, impressions.history.take(chosen).padded(-1), impressions.candidates.take(chosen).padded(-1)
