"""A run directory: everything to rebuild a trained model, and what its training gave."""

import contextlib
import hashlib
import json
import os
import platform
import reprlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning_fabric
import numpy as np
import pyarrow as pa
import tokenizers
import torch
from torch import nn

from datransformer.data.encode import Labels
from datransformer.data.errors import InputError
from datransformer.data.prepare import hash_file
from datransformer.data.store import write_text
from datransformer.data.tokenizer import TextTokenizer, load_tokenizer
from datransformer.models.build import build_model
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.train.checkpoint import load_weights
from datransformer.train.config import RunConfig, from_dict, read_yaml, write_yaml
from datransformer.version import __version__

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

CONFIG, WEIGHTS, METRICS, RESULT = "config.yaml", "model.safetensors", "metrics.jsonl", "result.json"
VOCAB, CHECKPOINTS, BOARD = "vocab", "checkpoints", "tensorboard"
TOKENIZER, LABELS = f"{VOCAB}/tokenizer.json", f"{VOCAB}/labels.json"
HASHED = (CONFIG, WEIGHTS, TOKENIZER, LABELS)


@dataclass(frozen=True)
class Run:
    """A trained model with all that it needs to answer.

    Args:
        folder: The run directory.
        config: The run's settings.
        tokenizer: Cuts and numbers the words.
        labels: What the answers mean.
        model: The model, in evaluation mode.
        result: What training left in ``result.json``.
    """

    folder: Path
    config: RunConfig
    tokenizer: TextTokenizer
    labels: Labels
    model: nn.Module
    result: Mapping[str, Any]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from writing into the same folder; the lock dies with its process."""
    if fcntl is None:  # not a POSIX system
        yield
        return
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"datransformer-{os.getuid()}-{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)  # no link that others laid
    except OSError as error:
        raise InputError(f"{path}: cannot be locked ({error.strerror or error})") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another process is at work there, expected a folder of its own") from None
        yield
    finally:
        os.close(file)


def start_folder(folder: Path, config: RunConfig, tokenizer: TextTokenizer, labels: Labels, fingerprint: str) -> None:
    """Write what is known before training starts; the settings last, for they make it a run."""
    try:
        (folder / VOCAB).mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder / TOKENIZER)
        write_text(folder / LABELS, json.dumps({"classes": labels.classes, "data": fingerprint}, ensure_ascii=False))
        write_yaml(folder / CONFIG, config)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error


def clear_folder(folder: Path) -> None:
    """Remove a run, and nothing that is not of it; the settings last, so that until then it is one."""
    try:
        for name in (RESULT, WEIGHTS, METRICS):
            (folder / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, BOARD, VOCAB):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        (folder / CONFIG).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the old run cannot be removed ({error.strerror or error})") from error


def load_config(folder: Path) -> RunConfig:
    """The settings of a run."""
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {found}, expected a run directory")
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: has no {CONFIG}, expected a run directory, as datransformer train --out makes it")
    values = read_yaml(folder / CONFIG)
    number = values.get("format")
    if not isinstance(number, int):
        raise InputError(f"{folder / CONFIG}: format: got {reprlib.repr(number)}, expected a whole number")
    if number > RunConfig().format:  # before anything else: a newer version may have settings that are unknown here
        raise InputError(
            f"{folder / CONFIG}: the run is of a newer version, format {number}, expected at most "
            f"{RunConfig().format}: upgrade datransformer"
        )
    return from_dict(RunConfig, values, str(folder / CONFIG))


def load_run(folder: Path) -> Run:
    """Rebuild a trained model from its directory alone, checking every file that it reads."""
    config = load_config(folder)
    if not (folder / RESULT).is_file():
        raise InputError(
            f"{folder}: has no {RESULT}: training has not ended; "
            f"datransformer train --resume --out {folder} goes on with it"
        )
    result = read_json(folder / RESULT)
    files = result.get("files")
    for name in HASHED:
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: no such file, expected a part of the run")
        if not isinstance(files, dict) or hash_file(folder / name) != files.get(name):
            raise InputError(f"{folder / name}: was changed after training: its SHA-256 is not the one in {RESULT}")
    tokenizer, labels = load_tokenizer(folder / TOKENIZER), load_labels(folder)
    try:
        model = build_model(config.task, tokenizer.size, len(labels.classes or ()), config.model)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"{folder / CONFIG}: model: {error}") from error
    if config.train.precision == "64-true":
        model.double()
    load_weights(model, folder / WEIGHTS)
    return Run(folder, config, tokenizer, labels, model.eval(), result)


def load_labels(folder: Path) -> Labels:
    """What the answers of a run mean."""
    classes = read_json(folder / LABELS).get("classes")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise InputError(f"{folder / LABELS}: classes: got {classes!r}, expected a list of names, or null")
    if classes is not None and len(set(classes)) != len(classes):
        raise InputError(f"{folder / LABELS}: classes: the same name twice, expected each once")
    return Labels(None if classes is None else tuple(classes))


def read_fingerprint(folder: Path) -> str:
    """Which data a run was started with."""
    return str(read_json(folder / LABELS).get("data"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text)
        if r"\ud" in text.lower():  # halves of characters, which no file could hold if they came alone
            json.dumps(values, ensure_ascii=False).encode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: got {type(values).__name__}, expected an object")
    return values


def finish_folder(folder: Path, result: Mapping[str, Any]) -> None:
    """Write what came out, with the hashes by which `load_run` knows the files again."""
    try:
        files = {name: hash_file(folder / name) for name in HASHED}
        write_text(folder / RESULT, json.dumps({**result, "files": files}, indent=2, ensure_ascii=False))
    except OSError as error:
        raise InputError(f"{folder / RESULT}: cannot be written ({error.strerror or error})") from error


def learned_distances(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """W and v of every head, by level and layer."""
    return {
        name: {
            "distance_weight": module.distance_weight.tolist(),
            "distance_shift": module.distance_shift.tolist(),
        }
        for name, module in model.named_modules()
        if isinstance(module, DistanceAwareAttention)
    }


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "datransformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning_fabric": lightning_fabric.__version__,  # type: ignore[attr-defined]
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "tokenizers": tokenizers.__version__,
    }
