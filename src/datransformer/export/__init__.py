"""A trained run in the forms that other programs load, held against torch before anything is left."""

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from datransformer.data.errors import InputError
from datransformer.export.hf import export_hf
from datransformer.export.onnx import export_onnx
from datransformer.export.torch_export import export_torch
from datransformer.train.signals import handled

# Writes a run into a folder that is not there yet, and says in a line what it did.
TARGETS: dict[str, Callable[[Path, Path], str]] = {
    "onnx": export_onnx,
    "torch-export": export_torch,
    "hf": export_hf,
}


def export_run(run_folder: Path, out: Path, *, to: str, overwrite: bool = False) -> str:
    """Export a run to the folder ``out``, which appears as a whole or not at all; what there is to say about it.

    Args:
        run_folder: The run directory.
        out: The folder to make.
        to: A key of `TARGETS`.
        overwrite: Replace an earlier export in ``out``.
    """
    if to not in TARGETS:
        raise InputError(f"--to: got {to!r}, expected one of: {', '.join(TARGETS)}")
    if run_folder.resolve() in (out.resolve(), *out.resolve().parents):
        raise InputError(f"{out}: is the run or inside it, expected another folder")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, expected a folder for the export")
    if out.exists() and any(out.iterdir()) and not overwrite:
        raise InputError(f"{out}: holds files already; --overwrite replaces an export, or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        handled(signal.SIGTERM, _end),
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch,
    ):
        made = Path(scratch) / "made"
        line = TARGETS[to](run_folder, made)
        if out.exists():
            _set_aside(out, made, Path(scratch) / "old")
        made.rename(out)
    return line


def _end(number: int, frame: FrameType | None) -> None:
    """End as an error would, so that nothing half made stays."""
    sys.exit(128 + number)


def _set_aside(out: Path, made: Path, old: Path) -> None:
    foreign = sorted({path.name for path in out.iterdir()} - {path.name for path in made.iterdir()})
    if foreign:
        raise InputError(f"{out}: holds {foreign[0]}, which is no part of this export; expected another folder")
    out.rename(old)
