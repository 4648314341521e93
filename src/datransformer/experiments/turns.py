"""Several runs in one process: one step of each in turn, and on a GPU each on a stream of its own.

A step of these models is too small to keep a GPU busy. Side by side they do, and since a run shares no state with the
others, each ends as it would have ended alone.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from datransformer.train.errors import Interrupted
from datransformer.train.loop import exhaust

Key = TypeVar("Key")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Lane(Generic[Key, Result]):
    key: Key
    steps: Generator[None, None, Result]
    stream: torch.cuda.Stream | None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield


def take_turns(
    runs: Iterable[tuple[Key, Callable[[], Generator[None, None, Result]]]], together: int
) -> Iterator[tuple[Key, Result]]:
    """Run them all, up to ``together`` at a time; each with its result, in the order in which they end.

    If one is interrupted the others get their turns until they are too, so that each leaves a checkpoint.
    """
    waiting = iter(runs)
    lanes: list[_Lane[Key, Result]] = []
    while True:
        while len(lanes) < together and (following := next(waiting, None)) is not None:
            stream = torch.cuda.Stream() if torch.cuda.is_available() else None
            lanes.append(_Lane(following[0], following[1](), stream))
        if not lanes:
            return
        for lane in list(lanes):
            try:
                with lane.turn():
                    next(lane.steps)
            except StopIteration as end:
                lanes.remove(lane)
                yield lane.key, end.value
            except Interrupted:
                lanes.remove(lane)
                for other in lanes:
                    with contextlib.suppress(Interrupted), other.turn():
                        exhaust(other.steps)
                raise
