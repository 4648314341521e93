"""The paper's experiments as a plan of runs: each a normal run directory, and one small JSON file for the tables."""

import contextlib
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

from datransformer.data.batches import TextBatches
from datransformer.data.encode import Examples
from datransformer.data.errors import BadRows, InputError
from datransformer.data.news import Impressions
from datransformer.data.prepare import Progress, TextData, no_progress
from datransformer.data.store import write_text
from datransformer.data.vectors import WordVectors, read_vectors
from datransformer.experiments.heads import draw_maps, measure_heads
from datransformer.experiments.linear import Texts, fit_linear
from datransformer.experiments.machine import commit, machine
from datransformer.experiments.paper import OURS
from datransformer.experiments.paper import RUNS as SEEDS
from datransformer.experiments.studies import LINEAR, STUDIES, VARIANTS, Planned, find_data, plan_study, studies_of
from datransformer.experiments.turns import take_turns
from datransformer.ops.checks import check_positive_int
from datransformer.train.config import RunConfig, to_dict
from datransformer.train.errors import Interrupted, TrainingError
from datransformer.train.fit import Data, Fitted, Sources, differences, fit_stepwise, load_data
from datransformer.train.graphs import Packed
from datransformer.train.launch import launch
from datransformer.train.loop import stop_signals
from datransformer.train.metrics import rank_impressions
from datransformer.train.progress import Reporter
from datransformer.train.run import CONFIG, read_json
from datransformer.train.tasks import RANKING_METRICS, Task, clicks_of

RUNS, RESULTS, DATA, CALLS = "runs", "results", "data", "calls.json"
LOOKED_AT = 256  # dev texts in which the attention of a trained model is measured
LOOKED_AT_CLICKS = 64  # of a recommender
SHOWN_WORDS = (12, 32)  # least and most in the text whose attention is drawn
SHOWN = ("vanilla", OURS)  # of which methods
LANES = 4  # runs that take turns on a GPU; more add little but memory
CORES = 4  # of the computer for each process: Python, not the GPU, is what many small runs wait for
MOST_PROCESSES = 4
STOPPED = "stopped; the same command goes on from there"
ROOM, DONE, STOP = "room", "done", "stop"  # what processes tell each other beside runs and records
PACKED = 8  # data sets and seeds whose batches a process keeps
PATIENCE = 60.0  # seconds that a process has to end
AS_IT_PLEASES = ("log_every", "checkpoint_every", "checkpoint_seconds", "tensorboard")  # settings that change nothing
KEPT = (
    "metrics", "unknown_words", "best_step", "steps", "epochs", "parameters", "distances", "examples",
    "data_fingerprint", "training_seconds", "wall_seconds", "device", "versions",
)  # fmt: skip
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


class Shelf:
    """Data and word vectors that were read before, for runs on the same data.

    Args:
        test: Whether the test set is among them.
    """

    def __init__(self, test: bool = True) -> None:
        self._test = test
        self._data: dict[str, Data] = {}
        self._vectors: dict[tuple[Path, int], WordVectors] = {}
        self._packed: dict[str, dict[tuple[int, int], Packed]] = {}
        self.sources = Sources(self.load, self.read, self.packed)

    def load(self, config: RunConfig, cache: Path, progress: Progress = no_progress) -> Data:
        """As `load_data`, once."""
        key = _data_key(config)
        if key not in self._data:
            data = load_data(config, cache, progress)
            kept = {name: split for name, split in data.splits.items() if self._test or name != "test"}
            self._data[key] = replace(data, splits=kept)  # type: ignore[arg-type]
        return self._data[key]

    def packed(self, config: RunConfig) -> dict[tuple[int, int], Packed]:
        """The batches of a run so far, which others have too; those of the last few are kept."""
        train = config.train
        key = json.dumps([_data_key(config), train.batch_size, train.max_tokens, train.negatives, train.seed])
        self._packed[key] = self._packed.pop(key, {})
        for old in list(self._packed)[:-PACKED]:
            del self._packed[old]
        return self._packed[key]

    def read(self, path: Path, words: Sequence[str], bad_rows: BadRows, *, progress: Any = None) -> WordVectors:
        """As `read_vectors`, once."""
        key = path, hash(tuple(words))
        if key not in self._vectors:
            self._vectors[key] = read_vectors(path, words, bad_rows, progress=progress)
        return self._vectors[key]


def _data_key(config: RunConfig) -> str:
    values = to_dict(config)
    return json.dumps([config.shape, config.rating, values["files"], values["data"]])


def reproduce(
    groups: Sequence[str],
    out: Path,
    *,
    cache: Path,
    data_dir: Path | None = None,
    vectors: Path | None = None,
    seeds: int = SEEDS,
    device: str = "auto",
    together: int | None = None,
    processes: int | None = None,
    reporter: Reporter | None = None,
) -> list[Record]:
    """Run what the paper's Section 4 describes; what came of every run, which also lies below ``out/results``.

    A run that is there already is not run again, one that was killed goes on, and one that fails is reported and does
    not keep the others from running.

    Args:
        groups: Keys of `GROUPS`, or ``all``.
        out: Folder for runs, results and data brought into form.
        cache: Folder for encoded data.
        data_dir: Folder with the data.
        vectors: Word vectors, random ones if None.
        seeds: How often each method is trained.
        device: ``auto``, ``cpu`` or ``cuda``.
        together: Runs that take turns in a process; None: `LANES` on a GPU, 1 on a CPU.
        processes: Processes that share the runs; None: one to each `CORES` cores with a GPU, 1 on a CPU.
        reporter: Gets told; None: nobody.
    """
    reporter = reporter or Reporter(enabled=False)
    began = time.time()
    for name, value in (("together", together), ("processes", processes)):
        if value is not None:
            check_positive_int(name, value)
    where = launch(device, "32-true").device.type  # one that is not there should not come up after an hour
    if together is None:
        together = LANES if where == "cuda" else 1
    if processes is None:
        processes = process_count(where)
    place = Place(out, cache, device, together)
    plan: list[Planned] = []
    for study in studies_of(tuple(groups)):
        found, caveat = find_data(study, data_dir, out / DATA, vectors)
        plan += plan_study(study, seeds, found, caveat, where)
    plan.sort(key=lambda planned: planned.seed)  # what is there after an hour are whole tables with fewer seeds
    records = {planned.name: _read_finished(out, planned) for planned in plan}
    todo = [planned for planned in plan if records[planned.name] is None]
    reporter.say(
        f"{len(plan)} runs, {len(plan) - len(todo)} of them done; {together} at a time in "
        f"{processes} {'process' if processes == 1 else 'processes'}. Ctrl-C stops, the same command goes on"
    )
    with Board(plan, reporter) as board:
        for planned in plan:
            if (record := records[planned.name]) is not None:
                board.end(planned, record, now=False)
        ended = share_out(todo, place, processes) if processes > 1 else run_all(todo, place, Shelf(), board.begin)
        try:
            for planned, record in ended:
                records[planned.name] = record
                board.end(planned, record)
        except Interrupted as error:
            raise Interrupted(STOPPED) from error
    if todo:
        about = {"runs": len(todo), "seconds": round(time.time() - began, 1), "together": together}
        path = out / RESULTS / CALLS
        calls = read_json(path)["calls"] if path.exists() else []
        calls.append({**about, "processes": processes, **machine(torch.device(where))})
        _write(path, {"calls": calls})
    return [record for record in records.values() if record is not None]


def process_count(device: str) -> int:
    """How many processes should share the runs on a device."""
    return max(min((os.cpu_count() or 1) // CORES, MOST_PROCESSES), 1) if device == "cuda" else 1


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
            _write(_path(place.out, planned), record)
            yield planned, record


def share_out(todo: Sequence[Planned], place: Place, processes: int) -> Iterator[tuple[Planned, Record]]:
    """Run in several processes; each with its record, which is on disk by then, as they end.

    A process asks for a run whenever it has room for one. One that dies takes the runs that it was at with it, and
    another takes its place. Linear models take no turns: they have processes of their own.
    """
    linear = [planned for planned in todo if planned.variant == LINEAR]
    rest = [planned for planned in todo if planned.variant != LINEAR]
    queues = [queue for queue in (linear, rest) for _ in range(min(processes, len(queue)))]
    workers = [_Worker(place, queue) for queue in queues]
    stopping = False
    try:
        with stop_signals() as asked:
            while busy := {worker.connection: worker for worker in workers if worker.busy}:
                for connection in multiprocessing.connection.wait(list(busy), timeout=1):
                    worker = busy[connection]  # type: ignore[index]
                    yield from worker.receive()
                    if not worker.busy and worker.queue:  # it died
                        workers[workers.index(worker)] = _Worker(place, worker.queue)
                if asked() and not stopping:
                    stopping = True
                    left = bool(rest or linear or any(worker.held for worker in workers))
                    linear.clear()
                    rest.clear()
                    for worker in workers:
                        worker.stop()
            if stopping and left:
                raise Interrupted(STOPPED)
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """A process that asks for runs, seen from the one that started it.

    Args:
        place: Where runs happen.
        queue: What is still to be run, shared with others.
    """

    def __init__(self, place: Place, queue: list[Planned]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self._place, self.queue = place, queue
        self._process = spawn.Process(target=_work, args=(theirs, place), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed
        self.held: list[Planned] = []  # what it was given and has not told of yet
        self.busy = True

    def receive(self) -> Iterator[tuple[Planned, Record]]:
        """What it has to tell: that it has room, that it is done, or that a run has ended."""
        try:
            message = self.connection.recv()
            if message == ROOM:
                self.held += self.queue[:1]
                self.connection.send(self.queue.pop(0) if self.queue else DONE)
            elif message == DONE:
                self.busy = False
            else:
                name, record = message
                planned = next(one for one in self.held if one.name == name)
                self.held.remove(planned)
                yield planned, record
        except (EOFError, OSError):
            self.busy = False
            self._process.join()
            # Without one of the queue a process that dies at its start would be started for ever.
            lost, self.held = self.held or self.queue[:1], []
            self.queue[:] = [planned for planned in self.queue if planned not in lost]
            for planned in lost:
                record = _failed(planned, f"its process ended with exit code {self._process.exitcode}")
                _write(_path(self._place.out, planned), record)
                yield planned, record

    def stop(self) -> None:
        """Ask it to stop after the step that it is at; a linear model has no steps to go on from."""
        if any(planned.variant == LINEAR for planned in self.held):
            self.held.clear()
            self._process.kill()
        with contextlib.suppress(OSError):
            self.connection.send(STOP)

    def close(self) -> None:
        """End it."""
        self.stop()
        self.connection.close()
        self._process.join(PATIENCE)
        self._process.kill()


def _work(connection: Any, place: Place) -> None:
    """What a process of `share_out` does until nothing is left, it is told to stop, or nobody is there to tell it."""
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):  # comes with scikit-learn
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all; the first process passes it on

    told: list[Any] = []

    def asked_for() -> Iterator[Planned]:
        while told[-1:] not in ([DONE], [STOP]):
            connection.send(ROOM)
            told.append(connection.recv())
            if isinstance(told[-1], Planned):
                yield told[-1]

    def stopped() -> bool:
        return told[-1:] == [STOP] or connection.poll()

    with contextlib.suppress(EOFError, OSError):
        with contextlib.suppress(Interrupted):
            for planned, record in run_all(asked_for(), place, Shelf(place.test), stop=stopped):
                connection.send((planned.name, record))
        connection.send(DONE)


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
        return {**_about(planned), **kept, "together": place.together, **look_at(fitted, planned)}
    except (InputError, TrainingError) as error:
        why = str(error)
    except Interrupted:
        raise
    except Exception as error:  # out of memory, say: the others go on
        why = f"{type(error).__name__}: {error}"
    return {**_failed(planned, why), "wall_seconds": round(time.time() - began, 3)}


_commit = functools.cache(commit)


def _about(planned: Planned) -> Record:
    return {
        "study": planned.study,
        "variant": planned.variant,
        "seed": planned.seed,
        "caveat": planned.caveat,
        "settings": settings_of(planned.config),
        "commit": _commit(),
    }


def _failed(planned: Planned, why: str) -> Record:
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


def _digits(classes: npt.NDArray[Any]) -> str:
    return "".join(map(str, classes.tolist()))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a run but for where its files are, which is another place on every machine."""
    values = to_dict(config)
    del values["files"]
    values["data"]["vectors"] = None if config.data.vectors is None else Path(config.data.vectors).name
    return values


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
        inputs = source.batch(np.arange(min(LOOKED_AT, len(dev))), ()).inputs
    else:
        inputs = task.train.batch(np.arange(min(LOOKED_AT_CLICKS, len(task.train.sizes))), (0,)).inputs
    heads = measure_heads(model, [_moved(inputs, device)])
    looked["heads"] = {
        name: {key: [round(number, 4) for number in numbers] for key, numbers in values.items()}
        for name, values in heads.items()
    }
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


def _path(out: Path, planned: Planned) -> Path:
    return out / RESULTS / f"{planned.name}.json"


def _write(path: Path, record: Record) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what comes out, as they are in a file."""
    train = {name: value for name, value in settings.get("train", {}).items() if name not in AS_IT_PLEASES}
    decisive: dict[str, Any] = json.loads(json.dumps({**settings, "train": train}))
    return decisive


def _read_finished(out: Path, planned: Planned) -> Record | None:
    """What an earlier call left of this very run, unless it failed then."""
    path = _path(out, planned)
    if not path.is_file():
        return None
    record = read_json(path)
    if "metrics" not in record:
        return None
    before, now = (_decisive(one) for one in (record.get("settings", {}), settings_of(planned.config)))
    if changed := differences(before, now):
        raise InputError(f"{path}: was made with another {changed[0]}; expected another --out, or the same settings")
    return record


def reported(record: Record) -> dict[str, float]:
    """The metrics that count: on test, or where there is no test set on dev."""
    metrics: dict[str, dict[str, float]] = record["metrics"]
    return metrics.get("test", metrics["dev"])


class Board:
    """The tables as far as they have come: live on a terminal, a line a run elsewhere."""

    def __init__(self, plan: Sequence[Planned], reporter: Reporter) -> None:
        self._plan, self._reporter = plan, reporter
        self._last = plan[0].study if plan else ""
        self._records: dict[str, Record] = {}
        self._running: dict[str, None] = {}
        console: Console = reporter.console
        self._live = Live(console=console, auto_refresh=False) if reporter.enabled and console.is_terminal else None

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, planned: Planned) -> None:
        """A run starts."""
        self._running[planned.name] = None
        self._draw()

    def end(self, planned: Planned, record: Record, *, now: bool = True) -> None:
        """A run has ended, ``now`` or in an earlier call."""
        self._records[planned.name] = record
        self._running.pop(planned.name, None)
        if self._live is None and now:
            self._reporter.say(f"{len(self._records)} of {len(self._plan)}, {planned.name}: {_in_words(record)}")
        self._last = planned.study
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        self._live.update(self._table(self._last), refresh=True)

    def _table(self, study: str) -> Table:
        metrics = STUDIES[study].metrics
        running = f"training {', '.join(self._running)}" if self._running else ""
        title = f"{STUDIES[study].title}: {len(self._records)} of {len(self._plan)} runs done"
        table = Table("method", "runs", *metrics, title=title, caption=running)
        for variant in STUDIES[study].variants:
            mine = [self._records.get(run.name) for run in self._plan if (run.study, run.variant) == (study, variant)]
            done = [reported(record) for record in mine if record is not None and "failed" not in record]
            cells = [_mean([numbers[metric] for numbers in done]) for metric in metrics]
            table.add_row(VARIANTS[variant].label, f"{len(done)}/{len(mine)}", *cells)
        return table


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _in_words(record: Record) -> str:
    if "failed" in record:
        return f"failed: {record['failed']}"
    study = STUDIES[record["study"]]
    numbers = ", ".join(f"{name} {reported(record)[name]:.4f}" for name in study.metrics)
    return f"{numbers} ({record['wall_seconds']:.0f} s)"
