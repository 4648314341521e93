"""All settings of a run, from a YAML file, from the command line, or both."""

import dataclasses
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from datransformer.data.config import DataConfig
from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.models.build import MODELS
from datransformer.models.config import ModelConfig
from datransformer.ops.checks import check_choice, check_positive_int

FORMAT = 1  # of a run directory; a newer one is refused
PRECISIONS = ("32-true", "bf16-mixed", "64-true")
SCHEDULES = ("constant", "cosine")
Config = TypeVar("Config")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. Adam and its rate are the paper's.

    Args:
        epochs: Passes over the training rows.
        steps: Stop after so many optimiser steps, whatever ``epochs`` says.
        batch_size: Examples a batch, in each process.
        max_tokens: Tokens a batch, padding included, in each process.
        accumulate: Batches that make up one optimiser step.
        lr: Learning rate.
        distance_rate: Learning rate of the w and v of distance-aware attention, as a multiple of ``lr``.
        vector_rate: Learning rate of the word vectors, as a multiple of ``lr``.
        weight_decay: Decoupled weight decay.
        warmup: Steps in which the rate rises from 0.
        schedule: ``constant``, or ``cosine`` down to 0 at the last step.
        clip: Largest norm of the gradient; 0 does not clip.
        label_smoothing: Of the cross-entropy.
        average: What a running mean of the weights keeps of itself a step, 0.99 say: that mean is what is evaluated and
            kept. 0: the weights as they are.
        negatives: News not clicked, drawn for each click (recommend).
        seed: Seeds weights, order and dropout.
        evaluate_every: Steps between evaluations on dev; None: once an epoch.
        patience: Stop after so many evaluations without a better metric; None: never.
        metric: The dev metric that decides; None: accuracy, rmse or auc, by task.
        checkpoint_every: Steps between checkpoints, beside the one at each end of an epoch.
        checkpoint_seconds: Leave a checkpoint out that comes sooner than this after the one before; one that is written
            because the run was stopped is never left out.
        log_every: Steps between lines of metrics.jsonl.
        precision: ``32-true``, ``bf16-mixed`` or ``64-true``.
        compile: Whether to run the model through torch.compile.
        cuda_graphs: Whether one process on a GPU replays CUDA graphs of its steps; not with ``compile`` or
            ``accumulate``.
        tensorboard: Whether to write a TensorBoard log beside metrics.jsonl.
    """

    epochs: int = 5
    steps: int | None = None
    batch_size: int = 64
    max_tokens: int = 32_768
    accumulate: int = 1
    lr: float = 1e-3
    distance_rate: float = 1.0
    vector_rate: float = 1.0
    weight_decay: float = 0.0
    warmup: int = 0
    schedule: str = "constant"
    clip: float = 1.0
    label_smoothing: float = 0.0
    average: float = 0.0
    negatives: int = 4
    seed: int = 0
    evaluate_every: int | None = None
    patience: int | None = None
    metric: str | None = None
    checkpoint_every: int = 500
    checkpoint_seconds: float = 0.0
    log_every: int = 10
    precision: str = "32-true"
    compile: bool = False
    cuda_graphs: bool = True
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in (
            "epochs", "batch_size", "max_tokens", "accumulate", "negatives", "checkpoint_every", "log_every"
        ):  # fmt: skip
            check_positive_int(name, getattr(self, name))
        for name in ("steps", "evaluate_every", "patience"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        for name in ("weight_decay", "warmup", "clip", "seed", "checkpoint_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 or more")
        if self.seed >= 2**63:
            raise ValueError(f"seed: got {self.seed}, expected a number below 2**63")
        for name in ("lr", "distance_rate", "vector_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a positive number")
        for name in ("label_smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a number from 0 to below 1")
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("schedule", self.schedule, SCHEDULES)


@dataclass(frozen=True)
class FileConfig:
    """Where the rows come from: a data set by name, or files.

    Args:
        dataset: A key of `DATASETS`, or ``probe``.
        data_dir: The folder that holds it.
        train: Files, or for recommend one folder, to train on.
        dev: File or folder to choose by.
        test: File or folder to report on.
    """

    dataset: str | None = None
    data_dir: str | None = None
    train: tuple[str, ...] = ()
    dev: str | None = None
    test: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """Everything that makes up a run.

    Args:
        task: A key of `MODELS`.
        files: Where the rows come from.
        data: How they are read.
        model: What is trained.
        train: How it is trained.
        format: Of the run directory.
    """

    task: str = "sentence"
    files: FileConfig = field(default_factory=FileConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_choice("task", self.task, MODELS)
        if self.format > FORMAT:
            raise ValueError(
                f"format: got {self.format}, a run of a newer version, expected at most {FORMAT}: upgrade datransformer"
            )

    @property
    def shape(self) -> str:
        """The task with, for a pair, how the two texts enter."""
        return self.model.pair if self.task == "pair" else self.task

    @property
    def rating(self) -> bool:
        """Whether the answer is a number."""
        return self.model.head == "rating"


def to_dict(config: object) -> dict[str, Any]:
    """Plain dicts, lists and numbers, as YAML and JSON take them."""
    assert dataclasses.is_dataclass(config)
    result: dict[str, Any] = {}
    for entry in fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        result[entry.name] = value
    return result


def from_dict(kind: type[Config], values: Any, where: str) -> Config:
    """Build a config from plain values. An unknown key or a value of the wrong kind is an error that says so."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: got {reprlib.repr(values)}, expected a mapping of settings")
    hints = typing.get_type_hints(kind)
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            meant = [group for group, hint in hints.items() if key in getattr(hint, "__dataclass_fields__", ())]
            hint = "".join(f"; did you mean {group}.{key}?" for group in meant)
            raise InputError(f"{where}: unknown setting {key!r}, expected one of: {', '.join(hints)}{hint}")
        arguments[key] = _convert(hints[key], value, _below(where, key))
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(_below(where, str(error))) from error


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return from_dict(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        hint = next(kind for kind in arguments if kind is not type(None))
        return _convert(hint, value, where)
    if origin is tuple:
        values = value.split(",") if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(entry, str) for entry in values):
            raise InputError(f"{where}: got {reprlib.repr(value)}, expected a list of words")
        return tuple(entry.strip() for entry in values)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: got {reprlib.repr(value)}, expected a mapping")
        return dict(value)
    if hint is float and isinstance(value, str):
        try:  # YAML reads 1e-3, without a point, as a word
            return float(value)
        except ValueError:
            pass
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where}: got {reprlib.repr(value)}, expected {NAMES[hint]}")
    return value


NAMES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def override(values: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply ``key=value`` settings, keys as ``train.lr``, values as YAML, to a nested dict, and return it."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise InputError(f"--set {setting}: expected key=value, as in --set train.lr=0.001")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            value = text
        value = None if value == "None" else value  # as Python, and `datransformer settings`, write it
        *parents, last = key.strip().split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {setting}: {parent} is a value, not a group of settings")
        place[last] = value
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a YAML file of settings") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: got {type(values).__name__}, expected a mapping of settings")
    return values


def write_yaml(path: Path, config: RunConfig) -> None:
    """Write all settings."""
    write_text(path, yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))
