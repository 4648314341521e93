"""The list of settings says what the classes say, and nothing is left out."""

from typing import Any

import pytest
import yaml

from datransformer.nn.mixers import MIXERS
from datransformer.train.config import RunConfig, from_dict, override, to_dict
from datransformer.train.settings import Setting, list_settings

SETTINGS = {setting.key: setting for setting in list_settings()}


def test_every_setting_is_there_with_its_default() -> None:
    flat: dict[str, Any] = {}
    for name, value in to_dict(RunConfig()).items():
        group = name in ("files", "data", "model", "train")
        flat |= {f"{name}.{key}": one for key, one in value.items()} if group else {name: value}
    assert {key: setting.default for key, setting in SETTINGS.items()} == flat
    assert list(SETTINGS) == list(flat)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_default_can_be_set_as_it_is_shown(setting: Setting) -> None:
    values = override({}, [f"{setting.key}={yaml.safe_dump(setting.default, default_flow_style=True)}"])
    assert from_dict(RunConfig, values, "") == RunConfig()


def test_kinds_and_meanings_are_in_words() -> None:
    assert SETTINGS["model.layers"] == Setting("model.layers", "whole number", 1, "Encoder layers at each level.")
    assert SETTINGS["train.steps"].kind == "whole number or null"
    assert SETTINGS["data.text_columns"].kind == "list of words"
    assert SETTINGS["model.attention_options"].kind == "mapping"
    assert SETTINGS["train.compile"].kind == "true or false"
    assert SETTINGS["model.attention"].meaning == f"One of {', '.join(MIXERS)}."
    assert SETTINGS["train.checkpoint_seconds"].meaning.endswith("because the run was stopped is never left out.")
    assert not any("`" in setting.meaning or "\n" in setting.meaning for setting in SETTINGS.values())
