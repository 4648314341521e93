"""One run of an experiment, a normal run directory, and its record: one small JSON file for the tables."""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from datransformer.data.batches import TextBatches
from datransformer.data.encode import Examples
from datransformer.data.errors import BadRows, InputError
from datransformer.data.forms import check_form
from datransformer.data.news import Impressions
from datransformer.data.prepare import Progress, TextData, hash_file, no_progress
from datransformer.data.store import write_text
from datransformer.data.vectors import WordVectors, read_vectors
from datransformer.experiments.heads import draw_maps, measure_heads, without_distances
from datransformer.experiments.linear import Texts, fit_linear
from datransformer.experiments.machine import commit
from datransformer.experiments.paper import OURS
from datransformer.experiments.studies import LINEAR, STUDIES, Planned
from datransformer.experiments.turns import take_turns
from datransformer.train.config import RunConfig, to_dict
from datransformer.train.errors import Interrupted, TrainingError
from datransformer.train.fit import Data, Fitted, Sources, differences, fit_stepwise, load_data
from datransformer.train.graphs import Packed
from datransformer.train.loop import stop_signals
from datransformer.train.metrics import rank_impressions
from datransformer.train.optimizer import VECTORS
from datransformer.train.run import CONFIG, read_json
from datransformer.train.tasks import RANKING_METRICS, Task, clicks_of

RUNS, RESULTS = "runs", "results"
LOOKED_AT = 256  # dev texts in which the attention of a trained model is measured
LOOKED_AT_ONCE = 16  # of them, of like length: all weights between all words of a text are there at a time
LOOKED_AT_CLICKS = 64  # of a recommender
SHOWN_WORDS = (12, 32)  # least and most in the text whose attention is drawn
SHOWN = ("vanilla", OURS)  # of which methods
PACKED = 4  # data sets and seeds whose batches a process keeps
PACKED_BYTES = 2**30  # of each, in memory that cannot be swapped out
KEPT = (
    "metrics", "unknown_words", "best_step", "steps", "epochs", "parameters", "distances", "examples",
    "training_seconds", "wall_seconds", "device", "versions",
)  # fmt: skip
MADE_OF = {"data_fingerprint": "rows", "vectors_fingerprint": "word vectors"}  # by what names them in a record
DISTANCES = {str: {"distance_weight": [float], "distance_shift": [float]}}  # w and v by level
SETTINGS = {"model?": {"attention_options?": dict}, "data?": dict, "train?": dict}
FINISHED = {
    "settings?": SETTINGS, "caveat?": str, "metrics": {"dev": {str: float}, "test?": {str: float}},
    "wall_seconds": float, "training_seconds?": (float,), "together?": int, **{f"{name}?": str for name in MADE_OF},
}  # fmt: skip
AS_IT_PLEASES = ("log_every", "checkpoint_every", "checkpoint_seconds", "tensorboard")  # settings that change nothing
Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where runs happen.

    Args:
        out: Folder for runs, results and data brought into form.
        cache: Folder for encoded data.
        device: ``auto``, ``cpu`` or ``cuda``.
        together: Runs that take turns in a process.
        test: Whether models see the test set.
    """

    out: Path
    cache: Path
    device: str
    together: int
    test: bool = True


class Kept(dict[tuple[int, int], Packed]):
    """Batches for other runs, as many as there is room for."""

    _bytes = 0

    def __setitem__(self, place: tuple[int, int], packed: Packed) -> None:
        self._bytes += packed.memory.nbytes
        if self._bytes <= PACKED_BYTES:
            super().__setitem__(place, packed)


class Shelf:
    """Data and word vectors that were read before, for runs on the same data.

    Args:
        test: Whether the test set is among them.
    """

    def __init__(self, test: bool = True) -> None:
        self._test = test
        self._data: dict[str, Data] = {}
        self._vectors: dict[tuple[Path, int], WordVectors] = {}
        self._packed: dict[str, Kept] = {}
        self._hashes: dict[str, str] = {}
        self.sources = Sources(self.load, self.read, self.packed)

    def load(self, config: RunConfig, cache: Path, progress: Progress = no_progress) -> Data:
        """As `load_data`, once."""
        key = _data_key(config)
        if key not in self._data:
            data = load_data(config, cache, progress)
            kept = {name: split for name, split in data.splits.items() if self._test or name != "test"}
            self._data[key] = replace(data, splits=kept)  # type: ignore[arg-type]
        return self._data[key]

    def packed(self, config: RunConfig) -> Kept:
        """The batches of a run so far, which others have too; those of the last few are kept."""
        train = config.train
        key = json.dumps([_data_key(config), train.batch_size, train.max_tokens, train.negatives, train.seed])
        self._packed[key] = self._packed.pop(key, Kept())
        for old in list(self._packed)[:-PACKED]:
            del self._packed[old]
        return self._packed[key]

    def read(self, path: Path, words: Sequence[str], bad_rows: BadRows, *, progress: Any = None) -> WordVectors:
        """As `read_vectors`, once."""
        key = path, hash(tuple(words))
        if key not in self._vectors:
            self._vectors[key] = read_vectors(path, words, bad_rows, progress=progress)
        return self._vectors[key]

    def made_of(self, config: RunConfig, cache: Path) -> dict[str, str]:
        """What names the rows that a run is made of, and the file of its word vectors."""
        found = {"data_fingerprint": self.load(config, cache).fingerprint}
        if (vectors := config.data.vectors) is not None:
            if vectors not in self._hashes:
                self._hashes[vectors] = hash_file(Path(vectors))
            found["vectors_fingerprint"] = self._hashes[vectors]
        return found


def _data_key(config: RunConfig) -> str:
    values = to_dict(config)
    return json.dumps([config.shape, config.rating, values["files"], values["data"]])


def run_all(
    todo: Iterable[Planned],
    place: Place,
    shelf: Shelf,
    begin: Callable[[Planned], None] = lambda planned: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Planned, Record]]:
    """Run in this process until a signal or ``stop``; each with its record, which is on disk by then, as they end."""

    def start(planned: Planned) -> Callable[[], Generator[None, None, Record]]:
        def run() -> Generator[None, None, Record]:
            begin(planned)
            return run_one(planned, place, shelf, lambda: asked() or stop())

        return run

    with stop_signals() as asked:
        for planned, record in take_turns(((planned, start(planned)) for planned in todo), place.together):
            write_record(record_path(place.out, planned), record)
            yield planned, record


def run_one(
    planned: Planned, place: Place, shelf: Shelf, asked: Callable[[], bool] | None = None
) -> Generator[None, None, Record]:
    """Train, test and look at one model, step by step; a failure is a result too."""
    folder = place.out / RUNS / planned.name
    began = time.time()
    try:
        if planned.variant == LINEAR:
            result = run_linear(planned.config, place.cache, shelf)
            return {**_about(planned), **result, "wall_seconds": round(time.time() - began, 3)}
        fitted = yield from fit_stepwise(
            planned.config,
            folder,
            cache=place.cache,
            device=place.device,
            resume=(folder / CONFIG).exists(),
            sources=shelf.sources,
            asked=asked,
        )
        kept = {name: fitted.result[name] for name in KEPT}
        width = fitted.model.get_parameter(VECTORS).shape[1]  # which a file of vectors decides, not the settings
        length = mean_length(shelf.load(planned.config, place.cache))
        made_of = shelf.made_of(planned.config, place.cache)
        about = {**_about(planned), **made_of, "vector_width": width, "mean_length": length}
        return {**about, **kept, "together": place.together, **look_at(fitted, planned)}
    except (InputError, TrainingError) as error:
        why = str(error)
    except Interrupted:
        raise
    except Exception as error:  # out of memory, say: the others go on
        why = f"{type(error).__name__}: {error}"
    return {**failed_record(planned, why), "wall_seconds": round(time.time() - began, 3)}


def _about(planned: Planned) -> Record:
    return {
        "study": planned.study,
        "variant": planned.variant,
        "seed": planned.seed,
        "caveat": planned.caveat,
        "settings": settings_of(planned.config),
        "commit": commit(),
    }


def finished_record(out: Path, planned: Planned) -> Record | None:
    """What is on disk of a run, unless it failed."""
    path = record_path(out, planned)
    record = read_json(path) if path.is_file() else {}
    try:
        check_form("", record, FINISHED if "metrics" in record else {"settings?": SETTINGS, "caveat?": str})
    except InputError as error:
        raise InputError(f"{path}: {error}; it can be deleted") from error
    return record if "metrics" in record else None


def failed_record(planned: Planned, why: str) -> Record:
    """The record of a run that failed."""
    return {**_about(planned), "failed": why}


def run_linear(config: RunConfig, cache: Path, shelf: Shelf) -> Record:
    """The linear model on the words that the others get, split as theirs."""
    data = shelf.load(config, cache)
    assert isinstance(data, TextData)
    words = np.array(data.tokenizer.words, dtype=object)
    texts = {}
    for name, split in data.splits.items():
        assert split.labels is not None
        rows = np.split(words[np.asarray(split.tokens.values)], np.asarray(split.tokens.offsets)[1:-1])
        texts[name] = Texts([" ".join(row) for row in rows], np.asarray(split.labels).tolist())
    result = fit_linear(texts["train"], texts["dev"], texts.get("test", texts["dev"]))
    return {
        "metrics": {"dev": dict(result.dev), "test": dict(result.test)},
        "examples": {name: len(split) for name, split in data.splits.items()},
        "parameters": result.features * len(result.classes),
        "strength": result.strength,
        "answers": _digits(result.predicted),
        "truth": _digits(result.labels),
        "data_fingerprint": data.fingerprint,
        "device": "cpu",
    }


def mean_length(data: Data) -> float:
    """Tokens of a training text as models get them, of both texts of a pair, of a title where users click news."""
    train = data.splits["train"]
    lengths = train.titles.lengths[1:] if isinstance(train, Impressions) else train.tokens.lengths
    return round(float(lengths.mean()), 2)


def _digits(classes: npt.NDArray[Any]) -> str:
    return "".join(map(str, classes.tolist()))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a run but for where its files are, which is another place on every machine."""
    values = to_dict(config)
    del values["files"]
    values["data"]["vectors"] = None if config.data.vectors is None else Path(config.data.vectors).name
    return values


def changed_settings(record: Record, config: RunConfig) -> list[str]:
    """How the settings of ``config`` are unlike those of a run that is done, where that decides what comes out."""
    return differences(decisive(record.get("settings", {})), decisive(settings_of(config)))


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what comes out, as they are in a file; one that it does not know has its default."""
    found: dict[str, Any] = settings_of(RunConfig())
    for name, value in settings.items():
        found[name] = {**found[name], **value} if isinstance(found.get(name), dict) else value
    for name in AS_IT_PLEASES:
        del found["train"][name]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As `decisive`, without what is unlike in the runs of one method."""
    found = decisive(settings)
    del found["train"]["seed"]
    return found


def look_at(fitted: Fitted, planned: Planned) -> Record:
    """What a trained model answered to each test item, and what its attention looks like."""
    task, model, device = fitted.task, fitted.model, fitted.worker.device
    name = "test" if "test" in task.splits else "dev"
    if name not in task.answers:  # a run that had ended in an earlier call
        task.evaluate(model, name, fitted.worker)
    looked = _answers(task, name, planned.config)
    dev = task.splits["dev"]
    if isinstance(dev, Examples):
        source = TextBatches(dev, planned.config.shape)
        by_length = np.argsort(dev.tokens.lengths[:LOOKED_AT], kind="stable")
        parts = np.split(by_length, np.arange(LOOKED_AT_ONCE, len(by_length), LOOKED_AT_ONCE))
        batches = [source.batch(part, ()).inputs for part in parts]
    else:
        batches = [task.train.batch(np.arange(min(LOOKED_AT_CLICKS, len(task.train.sizes))), (0,)).inputs]
    heads = measure_heads(model, (_moved(inputs, device) for inputs in batches))
    looked["heads"] = {
        name: {key: [round(number, 4) for number in numbers] for key, numbers in values.items()}
        for name, values in heads.items()
    }
    if planned.variant == OURS:
        # A model that cannot answer without them is no failure of the run.
        with contextlib.suppress(InputError), without_distances(model):
            metrics = task.evaluate(model, name, fitted.worker)
            looked["without_distances"] = {metric: metrics[metric] for metric in STUDIES[planned.study].metrics}
    if planned.variant in SHOWN and planned.seed == 0 and planned.config.shape == "sentence":
        looked |= _maps(fitted, task.splits[name])
    return looked


def _maps(fitted: Fitted, split: Examples | Impressions) -> Record:
    """The attention between the words of the shortest test text that has a few."""
    assert isinstance(split, Examples)
    lengths = np.where(split.tokens.lengths < SHOWN_WORDS[0], SHOWN_WORDS[1] + 1, split.tokens.lengths)
    if lengths.min() > SHOWN_WORDS[1]:
        return {}
    inputs = TextBatches(split, "sentence").batch(np.array([lengths.argmin()]), ()).inputs
    words = [fitted.words[token] for token in inputs["tokens"][0].tolist()]
    return {"maps": draw_maps(fitted.model, _moved(inputs, fitted.worker.device), words)}


def _answers(task: Task, name: str, config: RunConfig) -> Record:
    answers, split = task.answers[name], task.splits[name]
    if isinstance(split, Impressions):
        metrics = rank_impressions(answers[0], clicks_of(split), answers[1])
        thousandths = np.rint(1000 * metrics).astype(int).tolist()
        return {"items": dict(zip(RANKING_METRICS, thousandths, strict=True))}
    truth = np.asarray(split.labels)
    if config.rating:
        return {"answers": np.round(answers.astype(float), 2).tolist(), "truth": truth.astype(float).tolist()}
    return {"answers": _digits(answers.argmax(1)), "truth": _digits(truth)} if task.classes <= 10 else {}


def _moved(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def record_path(out: Path, planned: Planned) -> Path:
    """Where the record of a run lies."""
    return out / RESULTS / f"{planned.name}.json"


def write_record(path: Path, record: Record) -> None:
    """Write a record as JSON."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_form(path: Path, empty: Mapping[str, Any], form: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file that experiments add to, on top of what an ``empty`` one has; not of its form is an error."""
    found = {**empty, **(read_json(path) if path.exists() else {})}
    try:
        check_form("", found, form)
    except InputError as error:
        raise InputError(f"{path}: {error}; it can be deleted") from error
    return found


def reported(record: Record) -> dict[str, float]:
    """The metrics that count: on test, or where there is no test set on dev."""
    metrics: dict[str, dict[str, float]] = record["metrics"]
    return metrics.get("test", metrics["dev"])
