"""The paper's experiments as a plan of runs, and a board of how far they have come."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from datransformer.data.errors import InputError
from datransformer.data.readers import check_file
from datransformer.experiments.machine import machine
from datransformer.experiments.paper import RUNS as SEEDS
from datransformer.experiments.processes import STOPPED, process_count, share_out
from datransformer.experiments.runs import (
    MADE_OF,
    RESULTS,
    RUNS,
    Place,
    Record,
    Shelf,
    changed_settings,
    finished_record,
    read_form,
    record_path,
    reported,
    run_all,
    write_record,
)
from datransformer.experiments.studies import (
    LINEAR,
    STUDIES,
    VARIANTS,
    VECTORS,
    Planned,
    find_data,
    plan_study,
    studies_of,
)
from datransformer.ops.checks import check_positive_int
from datransformer.train.errors import Interrupted
from datransformer.train.launch import launch
from datransformer.train.progress import Reporter
from datransformer.train.run import CONFIG, locked

DATA, CALLS = "data", "calls.json"
SEARCH, BEYOND = "search.json", "beyond.json"  # what was tried, whose runs are not those of a reproduction
CALLED = {
    "calls": [
        {
            "runs": int,
            "seconds": float,
            "names?": [str],
            "together?": int,
            "processes?": int,
            "device?": str,
        }
    ]
}
# As it stands in the record of a run for which there was no memory: from torch's allocator, from CUDA, from cuBLAS.
NO_MEMORY = (torch.cuda.OutOfMemoryError.__name__, "CUDA error: out of memory", "ALLOC_FAILED")
LANES = 4  # runs that take turns on a GPU; more add little but memory


def reproduce(
    groups: Sequence[str],
    out: Path,
    *,
    cache: Path,
    data_dir: Path | None = None,
    vectors: Path | None = None,
    seeds: int = SEEDS,
    methods: Collection[str] = (),
    device: str = "auto",
    together: int | None = None,
    processes: int | None = None,
    reporter: Reporter | None = None,
) -> list[Record]:
    """Run what the paper's Section 4 describes; what came of every run, which also lies below ``out/results``.

    A run that is there already is not run again, one that was killed goes on, and one that fails is reported and does
    not keep the others from running.

    Args:
        groups: Keys of `GROUPS` or of `STUDIES`, or ``all``.
        out: Folder for runs, results and data brought into form.
        cache: Folder for encoded data.
        data_dir: Folder with the data.
        vectors: Word vectors, random ones if None.
        seeds: How often each method is trained.
        methods: Keys of `VARIANTS`; all that a data set is run with if there are none.
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
    for name in methods:
        if name not in VARIANTS:
            raise InputError(f"--method: got {name!r}, expected one of: {', '.join(VARIANTS)}")
    if vectors is not None:
        check_file(vectors)
    for name in (SEARCH, BEYOND):
        if (out / name).exists():
            raise InputError(f"{out}: holds what was tried, {name}, expected another --out for a reproduction")
    where = launch(device, "32-true").device.type  # one that is not there should not come up after an hour
    if together is None:
        together = LANES if where == "cuda" else 1
    if processes is None:
        processes = process_count(where)
    place = Place(out, cache, where, together)
    with locked(out):  # before data are written there
        plan: list[Planned] = []
        for study in studies_of(tuple(groups)):
            found, caveat = find_data(study, data_dir, out / DATA, vectors)
            plan += plan_study(study, seeds, found, caveat, where)
        every, plan = plan, [planned for planned in plan if not methods or planned.variant in methods]
        if not plan:
            raise InputError(f"--method: got {', '.join(methods)}, which {' and '.join(groups)} is not run with")
        _check_finished(every, place)  # those of other methods too: one page is made of all
        if vectors is None and data_dir is not None:
            reporter.say(
                f"{data_dir}: no word vectors found, expected one of: {', '.join(VECTORS)}; starting from random ones, "
                f"which the paper does not. `datransformer data get glove.6B --out {data_dir}` downloads them"
            )
        plan.sort(key=lambda planned: planned.seed)  # what is there after an hour are whole tables with fewer seeds
        return carry_out(plan, place, processes, reporter, began)


def carry_out(plan: Sequence[Planned], place: Place, processes: int, reporter: Reporter, began: float) -> list[Record]:
    """Run what is not done yet, and note how long it took since it ``began``."""
    out, together = place.out, place.together
    # How long they took, to their end or until they were stopped.
    calls = read_form(out / RESULTS / CALLS, {"calls": []}, CALLED)["calls"]
    records = {planned.name: _read_finished(out, planned) for planned in plan}
    todo = [planned for planned in plan if records[planned.name] is None]
    begun = sum((out / RUNS / planned.name / CONFIG).exists() for planned in todo)
    goes_on = f" and {begun} begun" if begun else ""
    parts = Counter(planned.study for planned in plan)
    named = f" ({', '.join(f'{study} {count}' for study, count in parts.items())})" if len(parts) > 1 else ""
    reporter.say(
        f"{len(plan)} {'run' if len(plan) == 1 else 'runs'}{named}, {len(plan) - len(todo)} of them done{goes_on}; "
        f"{together} at a time in {processes} {'process' if processes == 1 else 'processes'}. Ctrl-C stops, the same "
        "command goes on"
    )
    with Board(plan, reporter, together, processes) as board:
        for planned in plan:
            if (record := records[planned.name]) is not None:
                board.end(planned, record, now=False)
        ended = _run_twice(todo, place, processes, board.begin)
        done: list[str] = []
        try:
            for planned, record in ended:
                records[planned.name] = record
                board.end(planned, record)
                done += [planned.name] if "failed" not in record else []
        except Interrupted as error:
            raise Interrupted(STOPPED) from error
        finally:
            if todo:
                about = {
                    "runs": len(done),
                    "names": done,
                    "seconds": round(time.time() - began, 1),
                    "together": together,
                }
                calls.append({**about, "processes": processes, **machine(torch.device(place.device))})
                write_record(out / RESULTS / CALLS, {"calls": calls})
    return [record for record in records.values() if record is not None]


def _run_twice(
    todo: Sequence[Planned], place: Place, processes: int, begin: Callable[[Planned], None]
) -> Iterator[tuple[Planned, Record]]:
    """Run them all; what ran out of memory beside others runs once more at the end, alone."""

    def run(todo: Sequence[Planned], place: Place, count: int) -> Iterator[tuple[Planned, Record]]:
        return share_out(todo, place, count) if processes > 1 else run_all(todo, place, Shelf(), begin)

    again = []
    for planned, record in run(todo, place, processes):
        if any(told in record.get("failed", "") for told in NO_MEMORY) and processes * place.together > 1:
            again.append(planned)
        else:
            yield planned, record
    yield from run(again, replace(place, together=1), 1)


def _check_finished(plan: Sequence[Planned], place: Place) -> None:
    """Raise if runs that are done had other settings or data than are planned now."""
    shelf, looked_at = Shelf(), set[tuple[str, int]]()
    for planned in plan:
        record = _read_finished(place.out, planned)
        known = {} if record is None else {name: record[name] for name in MADE_OF if name in record}
        if (planned.study, len(known)) in looked_at or not known:
            continue
        looked_at.add((planned.study, len(known)))  # a linear model has no word vectors
        found = shelf.made_of(planned.config, place.cache)
        for name, value in known.items():
            if found.get(name) != value:
                path = record_path(place.out, planned)
                what = MADE_OF[name]
                raise InputError(f"{path}: was made with other {what}; expected another --out, or {what} as they were")


def _read_finished(out: Path, planned: Planned) -> Record | None:
    """What an earlier call left of this very run, unless it failed then."""
    record = finished_record(out, planned)
    if record is None:
        return None
    path = record_path(out, planned)
    if changed := changed_settings(record, planned.config):
        raise InputError(f"{path}: was made with another {changed[0]}; expected another --out, or the same settings")
    if (data := record.get("caveat", planned.caveat)) != planned.caveat:
        raise InputError(f"{path}: was made with other data ({data}); expected another --out, or the same data")
    return record


class Board:
    """The tables as far as they have come: live on a terminal, a line a run elsewhere.

    Args:
        plan: All runs.
        reporter: Gets told.
        together: Runs that take turns in a process.
        processes: Processes that share the runs.
    """

    def __init__(self, plan: Sequence[Planned], reporter: Reporter, together: int = 1, processes: int = 1) -> None:
        self._plan, self._reporter = plan, reporter
        self._together, self._processes = together, processes
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
            done = f"{len(self._records)} of {len(self._plan)}, {planned.name}: {_in_words(record)}"
            self._reporter.say(done + self._time_left())
        self._last = planned.study
        self._draw()

    def _time_left(self) -> str:
        seconds = seconds_left(self._plan, self._records, self._together, self._processes)
        return f", {_about_time(seconds)} left" if seconds else ""

    def _draw(self) -> None:
        if self._live is None:
            return
        self._live.update(self._table(self._last), refresh=True)

    def _table(self, study: str) -> Table:
        metrics = STUDIES[study].metrics
        running = f"training {', '.join(self._running)}" if self._running else ""
        title = f"{STUDIES[study].title}: {len(self._records)} of {len(self._plan)} runs done{self._time_left()}"
        table = Table("method", "runs", *metrics, title=title, caption=running)
        for variant in STUDIES[study].variants:
            mine = [self._records.get(run.name) for run in self._plan if (run.study, run.variant) == (study, variant)]
            if not mine:
                continue
            done = [reported(record) for record in mine if record is not None and "failed" not in record]
            cells = [_mean([numbers[metric] for numbers in done]) for metric in metrics]
            table.add_row(VARIANTS[variant].label, f"{len(done)}/{len(mine)}", *cells)
        return table


def seconds_left(plan: Sequence[Planned], records: Mapping[str, Record], together: int, processes: int) -> float | None:
    """How long the runs without a record will take, if each takes the mean of the finished ones of its kind.

    A kind is a study, and whether the model is linear. None where a kind has no finished run that shared its process
    with as many others. Runs that have begun count as whole ones.

    Args:
        plan: All runs.
        records: What came of those that have ended, by name.
        together: Runs that take turns in a process.
        processes: Processes that share the runs.
    """
    seconds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for planned in plan:
        record = records.get(planned.name, {})
        if "metrics" in record and record.get("together", together) == together:
            # One that was stopped and went on has the time of its last call alone, but that of all its training.
            seconds[_kind(planned)].append(max(record["wall_seconds"], record.get("training_seconds") or 0))
    left = [_kind(planned) for planned in plan if planned.name not in records]
    if not seconds.keys() >= set(left):
        return None
    return sum(float(np.mean(seconds[kind])) for kind in left) / max(min(together * processes, len(left)), 1)


def _kind(planned: Planned) -> tuple[str, bool]:
    return planned.study, planned.variant == LINEAR


def _about_time(seconds: float) -> str:
    if seconds < 60:
        return "less than a minute"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.0f} h"


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
