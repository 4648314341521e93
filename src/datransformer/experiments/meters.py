"""Time and memory of a call, on a CPU and on a CUDA device, and turns that many calls take."""

import gc
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

# A call that is measured gets a number and picks its inputs by it.
Call = Callable[[int], object]


@dataclass(frozen=True)
class Turn:
    """A call made ready to be timed again and again.

    Args:
        how: What the time is taken with.
        take: Takes a turn; the milliseconds of a call.
    """

    how: str
    take: Callable[[], float]


class Meter(Protocol):
    """What measures on a device."""

    def copies(self, size: int) -> int:
        """How many sets of inputs of ``size`` bytes the calls shall go round."""

    def peak(self, call: Call) -> int:
        """The most bytes that one call allocates beyond what there was before it, its results included."""

    def prepare(self, call: Call) -> Turn:
        """Warm the call up, and make it ready."""

    def free(self) -> int | None:
        """Bytes that could still be allocated, where asking for more would kill the process; None: it would not."""

    def clear(self) -> None:
        """Give back what the last calls left."""


class CpuMeter:
    """The wall clock, and what torch's allocator tells the profiler: tensors and scratch space of torch's own kernels.

    Memory that a library takes behind torch's back, as MKL does for packing, is not seen. Resident memory would show
    it, but also what the allocator keeps for the next call. Inputs are as warm as the caches can hold them.
    """

    SHORTEST = 0.005  # seconds of a turn; shorter calls are repeated in it
    STATUS = Path("/proc/meminfo")

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read at the first profile; it writes to stderr otherwise

    def copies(self, size: int) -> int:
        return 1

    def peak(self, call: Call) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
                result = call(0)
        del result  # not before: what a call returns is part of its peak
        assert profiled.profiler is not None
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
        return highest([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])

    def prepare(self, call: Call) -> Turn:
        call(0)
        calls = max(1, min(100, ceil(self.SHORTEST / max(_seconds(call, 1), 1e-9))))
        return Turn("clock", lambda: 1000 * _seconds(call, calls) / calls)

    def free(self) -> int | None:
        try:
            lines = self.STATUS.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)

    def clear(self) -> None:
        gc.collect()


def _seconds(call: Call, calls: int) -> float:
    start = time.perf_counter()
    for number in range(calls):
        call(number)
    return time.perf_counter() - start


def highest(changes: Sequence[int]) -> int:
    """The highest level that a sequence of rises and falls reaches."""
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak


class CudaMeter:
    """CUDA events and the caching allocator's count.

    A call of less than `GRAPHED` ms is captured many times into a CUDA graph, so that neither Python nor launch gaps
    count, and a turn is a replay; a longer one is a turn by itself. Calls go round so many sets of inputs that
    together they are twice the second-level cache: what they read comes from memory.
    """

    GRAPHED, REPLAY = 5.0, 10.0  # ms of a call, and of a replay at least
    LEAST, MOST = 10, 50  # calls in a graph

    def copies(self, size: int) -> int:
        cache: int = torch.cuda.get_device_properties().L2_cache_size
        return max(1, min(self.MOST, ceil(2 * cache / size)))

    def peak(self, call: Call) -> int:
        call(0)  # what a library keeps for good, as cuBLAS its workspace, is there before we look
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call(0)
        torch.cuda.synchronize()
        del result
        return torch.cuda.max_memory_allocated() - before

    def prepare(self, call: Call) -> Turn:
        side = torch.cuda.Stream()  # what is captured has to be warmed up on a stream of its own
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number in range(3):
                call(number)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        numbers = itertools.count()

        def alone() -> float:
            return self._events(lambda: call(next(numbers)))

        ms = alone()
        if ms >= self.GRAPHED:
            return Turn("events", alone)
        calls = max(self.LEAST, min(self.MOST, ceil(self.REPLAY / ms)))
        with torch.cuda.stream(torch.cuda.current_stream()):  # a failed capture would leave us on its stream
            graph, reason = attempt(lambda: self._capture(call, calls))
        if reason is not None:
            torch.cuda.synchronize()
            return Turn(f"events, because a graph cannot be captured: {reason}", alone)
        graph.replay()
        return Turn("graph", lambda: self._events(graph.replay) / calls)

    def _capture(self, call: Call, calls: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(calls):
                call(number)
        return graph

    def _events(self, work: Callable[[], object]) -> float:
        """Milliseconds from the first kernel to the last."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = work()
        end.record()
        end.synchronize()
        del result
        return float(start.elapsed_time(end))

    def free(self) -> int | None:
        return None  # too much is an exception there

    def clear(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


METERS: dict[str, Callable[[], Meter]] = {"cpu": CpuMeter, "cuda": CudaMeter}


def interleave(
    turns: Mapping[str, Turn], *, least: int, most: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Rounds in which everyone takes a turn, every other one backwards, until there are ``most`` or time is up.

    Returns:
        The milliseconds of each, round by round; and of those who failed the reason.
    """
    times: dict[str, list[float]] = {name: [] for name in turns}
    failed: dict[str, str] = {}
    start, done = clock(), 0
    while times and (done < least or (done < most and clock() - start < seconds)):
        for name in list(times)[:: -1 if done % 2 else 1]:
            taken, reason = attempt(turns[name].take)
            if reason is None:
                times[name].append(taken)
            else:
                failed[name] = reason
                del times[name]
        done += 1
    return times, failed


def attempt(work: Callable[[], Any]) -> tuple[Any, str | None]:
    """What ``work`` returns, and None; or None, and in one line why it failed, with what it warned of before."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return work(), None
        except Exception as error:  # whatever it is, the others go on
            message = str(error)
            memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in message
            told = "out of memory" if memory else f"{type(error).__name__}: {message}"
            # SDPA says in warnings, and only there, why a kernel is not available.
            hints = dict.fromkeys(str(warning.message) for warning in warned if warning.category is UserWarning)
            lines = [told, *hints]
    # Outside the handler the traceback, which holds the tensors of the failed call, is gone.
    return None, " | ".join(" ".join(line.split()) for line in lines)[:500]


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    lower, middle, upper = statistics.quantiles(times, n=4, method="inclusive")
    return lower, middle, upper
