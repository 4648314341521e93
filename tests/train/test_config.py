"""Settings from dicts, YAML and the command line, and what is said about those that are wrong."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from datransformer.data.config import DataConfig
from datransformer.data.errors import InputError
from datransformer.models.config import ModelConfig
from datransformer.train.config import (
    FileConfig,
    RunConfig,
    TrainConfig,
    from_dict,
    override,
    read_yaml,
    to_dict,
    write_yaml,
)
from datransformer.train.run import load_config

# No value is the default's.
OTHER = RunConfig(
    task="pair",
    files=FileConfig(dataset="snli", data_dir="/data", train=("a.csv",), dev="b.csv", test="ü.csv"),
    data=DataConfig(text_columns=("title", "body"), text_pair_column="other", dev_share=0.25, vectors="v.txt"),
    model=ModelConfig(attention_options={"mapping": "clip"}, feedforward_dim=7, dropout=0.0, pair="siamese"),
    train=TrainConfig(steps=3, lr=1e-5, patience=2, metric="macro_f1", compile=True, clip=0.0, evaluate_every=5),
)


@pytest.mark.parametrize("config", [RunConfig(), OTHER])
def test_dict_and_back(config: RunConfig) -> None:
    values = to_dict(config)
    assert from_dict(RunConfig, values, "x") == config
    assert yaml.safe_load(yaml.safe_dump(values)) == values  # plain values only


@pytest.mark.parametrize("config", [RunConfig(), OTHER])
def test_yaml_and_back(tmp_path: Path, config: RunConfig) -> None:
    write_yaml(tmp_path / "config.yaml", config)
    assert from_dict(RunConfig, read_yaml(tmp_path / "config.yaml"), "x") == config
    assert load_config(tmp_path) == config


def test_what_is_left_out_has_its_default() -> None:
    config = from_dict(RunConfig, {"train": {"lr": 0.5}}, "x")
    assert config == RunConfig(train=TrainConfig(lr=0.5))


@pytest.mark.parametrize("group", ["files", "data", "model", "train"])
def test_an_unknown_setting_lists_the_known_ones(group: str) -> None:
    known = ", ".join(field.name for field in dataclasses.fields(getattr(RunConfig(), group)))
    with pytest.raises(InputError) as caught:
        from_dict(RunConfig, {group: {"nope": 1}}, "my.yaml")
    assert str(caught.value) == f"my.yaml.{group}: unknown setting 'nope', expected one of: {known}"
    with pytest.raises(InputError, match=r"^my\.yaml: unknown setting 1, expected one of: task, files, data, model"):
        from_dict(RunConfig, {1: 2}, "my.yaml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "x: got [], expected a mapping of settings"),
        ({"train": 3}, "x.train: got 3, expected a mapping of settings"),
        ({"train": None}, "x.train: got None, expected a mapping of settings"),
        ({"task": 3}, "x.task: got 3, expected a word"),
        ({"task": None}, "x.task: got None, expected a word"),
        ({"train": {"epochs": 1.5}}, "x.train.epochs: got 1.5, expected a whole number"),
        ({"train": {"epochs": "3"}}, "x.train.epochs: got '3', expected a whole number"),
        ({"train": {"epochs": True}}, "x.train.epochs: got True, expected a whole number"),
        ({"train": {"steps": "all"}}, "x.train.steps: got 'all', expected a whole number"),
        ({"train": {"lr": "fast"}}, "x.train.lr: got 'fast', expected a number"),
        ({"train": {"lr": True}}, "x.train.lr: got True, expected a number"),
        ({"train": {"lr": [1]}}, "x.train.lr: got [1], expected a number"),
        ({"train": {"compile": 1}}, "x.train.compile: got 1, expected true or false"),
        ({"data": {"text_columns": [1]}}, "x.data.text_columns: got [1], expected a list of words"),
        ({"data": {"text_columns": 1}}, "x.data.text_columns: got 1, expected a list of words"),
        ({"model": {"attention_options": "clip"}}, "x.model.attention_options: got 'clip', expected a mapping"),
    ],
)
def test_a_value_of_the_wrong_kind(values: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_dict(RunConfig, values, "x")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "expected"), [("1e-3", 0.001), (1, 1.0), (0.5, 0.5), ("0.5", 0.5)]
)  # YAML reads 1e-3 as a word
def test_numbers(value: object, expected: float) -> None:
    lr = from_dict(TrainConfig, {"lr": value}, "x").lr
    assert lr == expected
    assert type(lr) is float


@pytest.mark.parametrize(("value", "expected"), [("a", ("a",)), ("a, b", ("a", "b")), (["a", "b"], ("a", "b"))])
def test_lists(value: object, expected: tuple[str, ...]) -> None:
    assert from_dict(DataConfig, {"text_columns": value}, "x").text_columns == expected


WRONG: list[tuple[str, object, str]] = [
    *((f"train.{name}", 0, "got 0, expected a positive int") for name in (
        "epochs", "batch_size", "max_tokens", "accumulate", "negatives", "checkpoint_every", "log_every",
        "steps", "evaluate_every", "patience",
    )),
    *((f"train.{name}", -1, "expected 0 or more") for name in (
        "weight_decay", "warmup", "clip", "seed", "checkpoint_seconds",
    )),
    *((f"train.{name}", math.nan, "expected 0 or more") for name in ("weight_decay", "clip", "checkpoint_seconds")),
    ("train.seed", 2**63, "expected a number below 2**63"),
    *((f"train.{name}", value, "expected a positive number")
      for name in ("lr", "distance_rate", "vector_rate") for value in (0, -1, math.nan, math.inf)),
    *(("train.label_smoothing", value, "expected a number from 0 to below 1") for value in (-0.1, 1, math.nan)),
    ("train.precision", "16-mixed", "got '16-mixed', expected one of '32-true', 'bf16-mixed', '64-true'"),
    ("train.schedule", "step", "got 'step', expected one of 'constant', 'cosine'"),
    *((f"model.{name}", 0, "got 0, expected a positive int") for name in (
        "layers", "heads", "head_dim", "embed_dim", "width", "feedforward_dim",
    )),
    *(("model.embed_scale", value, "expected a positive number") for value in (0, -1, math.nan, math.inf)),
    *((f"model.{name}", value, "expected a float in [0, 1)")
      for name in ("dropout", "attention_dropout") for value in (-0.1, 1, math.nan)),
    ("model.attention", "nope", "got 'nope', expected one of 'distance_aware', 'vanilla'"),
    ("model.pooling", "nope", "got 'nope', expected one of "),
    ("model.pair", "nope", "got 'nope', expected one of 'joint', 'siamese'"),
    ("model.head", "nope", "got 'nope', expected one of 'class', 'rating'"),
    *((f"data.{name}", 0, "got 0, expected a positive int") for name in (
        "vocabulary", "min_count", "min_examples_per_class", "max_length", "max_sentences", "max_sentence_length",
        "max_title_length", "max_history",
    )),
    ("data.bad_rows", "nope", "got 'nope', expected one of 'stop', 'skip'"),
    ("data.vector_words", True, "got true, expected data.vectors, a file of word vectors (--vectors), with it"),
    ("data.text_columns", [], "got none, expected at least one"),
    *(("data.dev_share", value, "expected a number between 0 and 1") for value in (0, 1, -1, math.nan)),
    ("task", "nope", "got 'nope', expected one of 'sentence', 'pair', 'document', 'recommend'"),
    ("format", 2, "got 2, a run of a newer version, expected at most 1: upgrade datransformer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_value_out_of_range(name: str, value: object, message: str) -> None:
    group, _, key = name.rpartition(".")
    with pytest.raises(InputError) as caught:
        from_dict(RunConfig, {group: {key: value}} if group else {key: value}, "x")
    assert str(caught.value).startswith(f"x.{name}: got ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("train.lr=1e-3", {"train": {"lr": "1e-3"}}),
        ("train.lr=0.5", {"train": {"lr": 0.5}}),
        ("train.steps=null", {"train": {"steps": None}}),
        ("train.steps=None", {"train": {"steps": None}}),
        ("task=pair", {"task": "pair"}),
        ("data.text_columns=[a, b]", {"data": {"text_columns": ["a", "b"]}}),
        ("model.attention_options.mapping=clip", {"model": {"attention_options": {"mapping": "clip"}}}),
        ("model.attention_options={mapping: clip}", {"model": {"attention_options": {"mapping": "clip"}}}),
        ("files.dev=a=b.csv", {"files": {"dev": "a=b.csv"}}),
        ("files.dev=", {"files": {"dev": None}}),
        ("files.dev=[broken", {"files": {"dev": "[broken"}}),
        (" train.lr =1", {"train": {"lr": 1}}),
    ],
)
def test_override(setting: str, expected: dict[str, Any]) -> None:
    assert override({}, [setting]) == expected


def test_overrides_add_up_and_the_last_one_wins() -> None:
    values = to_dict(RunConfig())
    changed = override(values, ["train.lr=1", "train.lr=1e-4", "model.heads=3", "model.attention_options.adjust=x"])
    config = from_dict(RunConfig, changed, "x")
    assert config == RunConfig(
        train=TrainConfig(lr=1e-4), model=ModelConfig(heads=3, attention_options={"adjust": "x"})
    )


@pytest.mark.parametrize("setting", ["train.lr", "=3", ""])
def test_an_override_that_is_none(setting: str) -> None:
    with pytest.raises(InputError) as caught:
        override({}, [setting])
    assert str(caught.value) == f"--set {setting}: expected key=value, as in --set train.lr=0.001"


def test_an_override_below_a_value() -> None:
    with pytest.raises(InputError, match=r"^--set task\.x=1: task is a value, not a group of settings$"):
        override({"task": "pair"}, ["task.x=1"])
    with pytest.raises(InputError, match=r"^x\.train: unknown setting '', expected one of"):
        from_dict(RunConfig, override({}, ["train.=1"]), "x")


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(InputError, match=r"c\.yaml: no such file, expected a YAML file of settings"):
        read_yaml(path)
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_yaml(tmp_path)
    for content, message in (
        (b"a: [1", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"- 1", "got list, expected a mapping of settings"),
        (b"a: !!python/object/apply:os.getcwd []", "not YAML"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"c\.yaml: {message}") as caught:
            read_yaml(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"# nothing\n")
    assert read_yaml(path) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "format: 2\nodd: 1\ntrain: {odd: 3}\n",
            "the run is of a newer version, format 2, expected at most 1: upgrade",
        ),
        ("format: 1\nnew_setting: 1\n", "unknown setting 'new_setting', expected one of: task"),
        ("format: one\n", "format: got 'one', expected a whole number"),
        ("task: pair\n", "format: got None, expected a whole number"),
    ],
)
def test_the_settings_of_a_run(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InputError, match=rf"config\.yaml: {message}"):
        load_config(tmp_path)


def test_a_place_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no such folder, expected a run directory"):
        load_config(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is a file, expected a run directory"):
        load_config(tmp_path / "file")
    with pytest.raises(InputError, match=r"has no config\.yaml, expected a run directory, as datransformer train"):
        load_config(tmp_path)
