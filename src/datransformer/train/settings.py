"""Every setting of a run, with its kind, default and meaning, read from the classes that hold them."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from datransformer.data.datasets import DATASETS
from datransformer.data.readers import FORMATS
from datransformer.models.build import MODELS
from datransformer.nn.mixers import MIXERS
from datransformer.nn.pooling import POOLINGS
from datransformer.train.config import NAMES, RunConfig, to_dict

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "DATASETS": DATASETS,
    "FORMATS": FORMATS,
    "MIXERS": MIXERS,
    "MODELS": MODELS,
    "POOLINGS": POOLINGS,
}
COLLECTIONS = {tuple: "list of words", Mapping: "mapping"}


@dataclass(frozen=True)
class Setting:
    """A setting.

    Args:
        key: As ``--set`` takes it.
        kind: What its values are.
        default: As YAML and JSON take it.
        meaning: What it decides.
    """

    key: str
    kind: str
    default: Any
    meaning: str


def list_settings() -> list[Setting]:
    """All settings of a run, in the order of its ``config.yaml``."""
    return list(_settings(RunConfig(), ""))


def _settings(config: object, prefix: str) -> Iterator[Setting]:
    kind = type(config)
    meanings, defaults = _meanings(kind), to_dict(config)
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _settings(getattr(config, name), f"{prefix}{name}.")
        else:
            yield Setting(prefix + name, _spell(hint), defaults[name], meanings[name])


def _meanings(kind: type) -> dict[str, str]:
    """What the docstring says of each argument; where it names a registry, what that holds."""
    text = re.sub(r"\n {8,}", " ", inspect.getdoc(kind) or "")
    text = re.sub("A key of `([A-Z]+)`", lambda match: f"One of {', '.join(REGISTRIES[match[1]])}", text)
    return dict(re.findall(r"^ {4}(\w+): (.+)$", text.replace("`", ""), re.MULTILINE))


def _spell(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        return f"{_spell(arguments[0])} or null"
    return COLLECTIONS[origin] if origin in COLLECTIONS else NAMES[hint].removeprefix("a ")
