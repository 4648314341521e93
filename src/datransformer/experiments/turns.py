"""Several runs in one process: one step of each in turn, and on a GPU each on a stream of its own.

A step of these models is too small to keep a GPU busy. Side by side they do, and since a run shares no state with the
others, each ends as it would have ended alone.
"""

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from datransformer.train.errors import Interrupted

Key = TypeVar("Key")
Result = TypeVar("Result")
# Used again by later runs of this process: memory that was freed on one stream is of no use to another.
_STREAMS: list[torch.cuda.Stream] = []


@dataclass(frozen=True)
class _Lane(Generic[Key, Result]):
    number: int
    key: Key
    steps: Generator[None, None, Result]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        if not torch.cuda.is_available():
            yield
            return
        while len(_STREAMS) <= self.number:
            _STREAMS.append(torch.cuda.Stream())
        with torch.cuda.stream(_STREAMS[self.number]):
            yield


def take_turns(
    runs: Iterable[tuple[Key, Callable[[], Generator[None, None, Result]]]], together: int
) -> Iterator[tuple[Key, Result]]:
    """Run them all, up to ``together`` at a time; each with its result, in the order in which they end.

    If one is interrupted no other starts, and those that have started get their turns until they are too, so that each
    leaves a checkpoint.
    """
    waiting = iter(runs)
    lanes: list[_Lane[Key, Result]] = []
    interrupted: Interrupted | None = None
    while True:
        while interrupted is None and len(lanes) < together and (following := next(waiting, None)) is not None:
            number = min(set(range(together)) - {lane.number for lane in lanes})
            lanes.append(_Lane(number, following[0], following[1]()))
        if not lanes and interrupted is not None:
            raise interrupted
        if not lanes:
            return
        for lane in list(lanes):
            if interrupted is not None and inspect.getgeneratorstate(lane.steps) == inspect.GEN_CREATED:
                lanes.remove(lane)
                continue
            try:
                with lane.turn():
                    next(lane.steps)
            except StopIteration as end:
                lanes.remove(lane)
                yield lane.key, end.value
            except Interrupted as error:
                lanes.remove(lane)
                interrupted = error
