"""Errors that the person at the keyboard can mend, and rows that are not as they should be."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


class InputError(ValueError):
    """Something in the user's files or settings is wrong. The message is one line that says where, what and how."""


@dataclass
class BadRows:
    """What becomes of a row that cannot be used: ``stop`` raises at the first, ``skip`` leaves it out and counts it.

    Args:
        skip: Whether to leave bad rows out instead of stopping.
    """

    skip: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def meet(self, path: Path | str, row: int, column: str, problem: str, expected: str) -> None:
        """Raise, or count the row. ``row`` counts from 1 and leaves out a header."""
        where = f"{path}, row {row}, column {column!r}: {problem}, expected {expected}"
        if not self.skip:
            raise InputError(f"{where} (--bad-rows skip leaves such rows out and counts them)")
        self.count(problem, where)

    def count(self, problem: str, where: str, number: int = 1) -> None:
        """Count rows that are left out, or mended, whatever ``skip`` says, as a data set's own convention demands."""
        self.counts[problem] += number
        self.first.setdefault(problem, where)

    def lines(self) -> list[str]:
        """One line a problem, with the place of the first row that has it."""
        return [f"{number:,} rows: {problem} (first: {self.first[problem]})" for problem, number in self.counts.items()]
