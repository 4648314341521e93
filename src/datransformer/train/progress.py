"""What a person sees while a run goes on: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

QUIET_SECONDS = 2.0  # stages shorter than this are not worth a line
LINE_SECONDS = 10.0


def printable(text: str) -> str:
    """The text with control characters spelt out: a file's name or content must not steer the terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class Reporter:
    """Tell of stages and steps.

    Args:
        console: Where to write; standard error, so that standard output stays for results.
        enabled: False says nothing, as all processes but the first do.
    """

    def __init__(self, console: Console | None = None, *, enabled: bool = True) -> None:
        self.console = console or Console(stderr=True)
        self.enabled = enabled
        self._live: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._stage = ""
        self._since = self._told = time.monotonic()

    @contextmanager
    def live(self) -> Iterator["Reporter"]:
        """Show bars, on a terminal, until the block ends."""
        if not self.enabled or not self.console.is_terminal:
            yield self
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as self._live:
            try:
                yield self
            finally:
                self._live = None
                self._bars.clear()

    def say(self, line: str) -> None:
        """One line that stays."""
        if self.enabled:
            self.console.print(printable(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def stage(self, name: str, done: int, total: int | None) -> None:
        """How far a stage of unknown or known size has come."""
        self._tell(name, done, total, "")

    def step(self, done: int, total: int, facts: str) -> None:
        """How far training has come."""
        self._tell("training", done, total, facts)

    def _tell(self, name: str, done: int, total: int | None, facts: str) -> None:
        if not self.enabled:
            return
        if self._live is not None:
            if name not in self._bars:
                for other in [other for other in self._bars if other != "training"]:
                    self._live.remove_task(self._bars.pop(other))
                self._bars[name] = self._live.add_task(name, total=total, facts="")
            self._live.update(self._bars[name], completed=done, total=total, facts=facts)
            return
        now = time.monotonic()
        if name != self._stage:
            self._stage, self._since, self._told = name, now, now
        elif now - self._since > QUIET_SECONDS and now - self._told > LINE_SECONDS:
            self._told = now
            of = f"/{total:,}" if total else ""
            self.say(f"{name} {done:,}{of} {facts}".rstrip())
