"""Signals for the length of a block."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def handled(number: signal.Signals, handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Let ``handler`` have a signal until the block ends; not in a thread, where signals do not arrive."""
    try:
        before = signal.signal(number, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)
