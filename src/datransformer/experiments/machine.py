"""What a benchmark ran on, and its tables. Needs torch alone."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parents[1]


def machine(device: torch.device) -> dict[str, Any]:
    """The device by its name, and the computer around it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "cores": os.cpu_count(), "system": platform.system(), "processor": processor()}


def processor() -> str:
    """The CPU by its model, where Linux tells, or by its kind."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def versions_of(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found: dict[str, str] = {}
    for name in names:
        if find_spec(name) is not None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # installed under another name
                found[name] = importlib.metadata.version(name)
    return found


@functools.cache  # of the code that this process has loaded, whatever happens to the files meanwhile
def commit(folder: Path = PACKAGE) -> str | None:
    """The commit that ``folder`` is checked out from, ``-dirty`` if it was changed since; None if it is not."""
    try:
        # A virtual environment can lie in somebody else's repository, which says nothing about this package.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603, our own arguments
    return done.stdout.strip()


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is words and whose others are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
