"""Processes that share the runs of an experiment."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from datransformer.experiments.runs import (
    PACKED,
    Place,
    Record,
    Shelf,
    failed_record,
    finished_record,
    record_path,
    run_all,
    write_record,
)
from datransformer.experiments.studies import LINEAR, Planned
from datransformer.train.errors import Interrupted
from datransformer.train.loop import stop_signals
from datransformer.train.signals import handled

CORES = 4  # of the computer for each process: Python, not the GPU, is what many small runs wait for
MOST_PROCESSES = 4
STOPPED = "stopped; the same command goes on from there"
BROKEN = "CUDA error"  # of a kind that leaves no device to the process
ROOM, DONE, STOP = "room", "done", "stop"  # what processes tell each other beside runs and records
PATIENCE = 60.0  # seconds that a process has to end


def process_count(device: str) -> int:
    """How many processes should share the runs on a device."""
    return max(min((os.cpu_count() or 1) // CORES, MOST_PROCESSES), 1) if device == "cuda" else 1


def share_out(todo: Sequence[Planned], place: Place, processes: int) -> Iterator[tuple[Planned, Record]]:
    """Run in several processes; each with its record, which is on disk by then, as they end.

    A process asks for a run whenever it has room for one, and gets one of the data and seed that it has already, as
    long as there are such: they share their batches. One that dies takes the runs that it was at with it, and another
    takes its place. Linear models take no turns: they have processes of their own.
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
                    others = [other for other in workers if other is not worker and other.queue is worker.queue]
                    yield from worker.receive({group for other in others for group in other.groups})
                    if not worker.busy and worker.queue:  # it died, or was stopped by somebody else
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


Group = tuple[str, int]


def _group(planned: Planned) -> Group:
    """Study and seed: runs that have these in common have the same batches."""
    return planned.study, planned.config.train.seed


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
        # A terminal sends Ctrl-C to all; this process passes it on, and those that it starts do not hear it.
        with handled(signal.SIGINT, signal.SIG_IGN):
            self._process.start()
        theirs.close()  # or its end would not be noticed
        self.held: list[Planned] = []  # what it was given and has not told of yet
        self.groups: list[Group] = []  # of the runs that it was given last, whose batches it keeps
        self.busy, self._told = True, False

    def receive(self, others: Collection[Group]) -> Iterator[tuple[Planned, Record]]:
        """What it has to tell: that it has room, that it is done, or that a run has ended.

        Args:
            others: The groups that other processes are at.
        """
        try:
            message = self.connection.recv()
            if message == ROOM and self.queue:
                planned = self._choose(others)
                self.queue.remove(planned)
                self.held.append(planned)
                self.connection.send(planned)
            elif message == ROOM:
                self.connection.send(DONE)
            elif message == DONE:
                self.busy = False
                if not self._told:  # it ended of itself: what it was at is for another
                    self.queue[:0], self.held = self.held, []
            else:
                name, record = message
                for ended in [one for one in self.held if one.name == name]:  # none if it was given up for lost
                    self.held.remove(ended)
                    yield ended, record
        except (EOFError, OSError):
            self.busy = False
            self._process.join()
            # Without one of the queue a process that dies at its start would be started for ever.
            lost, self.held = self.held or self.queue[:1], []
            self.queue[:] = [planned for planned in self.queue if planned not in lost]
            for planned in lost:
                if (record := finished_record(self._place.out, planned)) is not None:  # written, and not told of
                    yield planned, record
                    continue
                record = failed_record(planned, f"its process ended with exit code {self._process.exitcode}")
                write_record(record_path(self._place.out, planned), record)
                yield planned, record

    def _choose(self, others: Collection[Group]) -> Planned:
        """The next run: of its own groups if there is one, else of one that no other process is at."""
        chosen = min(self.queue, key=lambda one: 0 if _group(one) in self.groups else 1 + (_group(one) in others))
        group = _group(chosen)
        self.groups = [*(one for one in self.groups if one != group), group][-PACKED:]
        return chosen

    def stop(self) -> None:
        """Ask it to stop after the step that it is at; a linear model has no steps to go on from."""
        self._told = True
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
                if BROKEN in record.get("failed", ""):  # nothing works in a process after that
                    break
        connection.send(DONE)
