"""Requests that come at the same time share the model's batches."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)
Answer = Callable[[list[Any]], Sequence[Any]]


class QueueFullError(Exception):
    """As many wait as may wait."""


class AnswerError(Exception):
    """The model could not answer this request."""


@dataclass(eq=False)
class _Job:
    items: Sequence[Any]
    size: int
    arrived: float
    answers: asyncio.Future[list[Any]]


class Batcher:
    """Collects the items of concurrent requests into batches, which one thread answers one after the other.

    Nothing is shared between two requests but the batch: each gets the answers at its own places. Where a batch fails,
    its requests are answered one by one, so that none fails for another.

    Args:
        answer: As many answers as it gets items, in their order. Runs in the executor that `start` gets.
        batch: Largest size of a batch; a larger request is a batch of its own.
        wait: Seconds that the first of a batch waits for others.
        queue: Largest size of all that wait.
        told: Called with the number of items of each batch.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        batch: int,
        wait: float,
        queue: int,
        told: Callable[[int], None] = lambda items: None,
    ) -> None:
        self.waiting = 0
        self._answer = answer
        self._batch, self._wait, self._queue = batch, wait, queue
        self._told = told
        self._jobs: deque[_Job] = deque()
        self._wanted = 1
        self._reached = asyncio.Event()
        self._closing = True
        self._task: asyncio.Task[None] | None = None

    def start(self, executor: Executor) -> None:
        """Begin to answer in the loop that is running, with an executor of one thread, which batchers may share."""
        self._closing = False
        self._reached = asyncio.Event()
        self._task = asyncio.create_task(self._work(executor))

    async def close(self) -> None:
        """Answer all that wait, and end."""
        self._closing = True
        self._reached.set()
        if self._task is not None:
            await self._task

    async def ask(self, items: Sequence[Any], size: int) -> list[Any]:
        """The answers to some items. Who stops waiting for them leaves the queue."""
        if self._closing or self.waiting + size > self._queue:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        job = _Job(items, size, loop.time(), loop.create_future())
        self._jobs.append(job)
        self.waiting += size
        if self.waiting >= self._wanted:
            self._reached.set()
        return await job.answers

    async def _work(self, executor: Executor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._reach(1, None)
            if not self._jobs:
                return  # closing
            await self._reach(self._batch, self._jobs[0].arrived + self._wait - loop.time())
            jobs = self._take()
            if not jobs:
                continue
            self._told(sum(len(job.items) for job in jobs))
            outcomes = await loop.run_in_executor(executor, self._outcomes, [job.items for job in jobs])
            for job, outcome in zip(jobs, outcomes, strict=True):
                if job.answers.done():
                    continue  # nobody waits for it any more
                if isinstance(outcome, BaseException):
                    log.error("a request could not be answered", exc_info=outcome)
                    job.answers.set_exception(AnswerError())
                else:
                    job.answers.set_result(outcome)

    async def _reach(self, size: int, seconds: float | None) -> None:
        """Wait until so much waits, the time is up, or the end is near."""
        if self.waiting >= size or self._closing or (seconds is not None and seconds <= 0):
            return
        self._wanted = size
        self._reached.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reached.wait(), seconds)

    def _take(self) -> list[_Job]:
        taken: list[_Job] = []
        room = self._batch
        while self._jobs and (self._jobs[0].answers.done() or not taken or self._jobs[0].size <= room):
            job = self._jobs.popleft()
            self.waiting -= job.size
            if not job.answers.done():
                taken.append(job)
                room -= job.size
        return taken

    def _outcomes(self, groups: list[Sequence[Any]]) -> list[list[Any] | BaseException]:
        """The answers of each group of items, or why there are none."""
        items = [item for group in groups for item in group]
        try:
            answers = list(self._answer(items))
            if len(answers) != len(items):
                raise RuntimeError(f"{len(answers)} answers to {len(items)} items")  # noqa: TRY301
        except BaseException as error:  # a panic of the tokenizers is no Exception
            if len(groups) == 1:
                return [error]
            return [outcome for group in groups for outcome in self._outcomes([group])]
        remaining = iter(answers)
        return [[next(remaining) for _ in group] for group in groups]
