"""A run directory: rebuilt from its files alone, and nothing in it is trusted unseen."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from datransformer.data.batches import TextBatches
from datransformer.data.errors import InputError
from datransformer.data.prepare import TextData, hash_file
from datransformer.data.tokenizer import SEPARATOR, UNKNOWN, WordTokenizer
from datransformer.models.config import ModelConfig
from datransformer.train.checkpoint import save_tensors
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.fit import CHUNK, fit, load_data, unknown_share
from datransformer.train.progress import Reporter
from datransformer.train.run import load_run, locked

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def accuracy(run_folder: Path, config: RunConfig, cache: Path) -> float:
    """On dev, one text at a time."""
    model = load_run(run_folder).model
    data = load_data(config, cache)
    assert isinstance(data, TextData)
    dev = data.splits["dev"]
    assert dev.labels is not None
    source = TextBatches(dev, config.shape)
    right = 0
    with torch.no_grad():
        for row, label in enumerate(dev.labels.tolist()):
            right += int(model(**source.batch(np.array([row]), ()).inputs).argmax()) == label
    return right / len(dev)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_run_is_rebuilt_from_its_folder(bench: "Bench", precision: str) -> None:
    config = bench.config(train_precision=precision, model_attention_options={"mapping": "clip"})
    result = bench.fit(config)
    run = load_run(bench.folder / "run")
    assert run.config == config
    assert run.labels.classes == ("a", "b")
    assert not run.model.training
    for name, tensor in load_file(bench.folder / "run" / "model.safetensors").items():
        assert torch.equal(run.model.state_dict()[name], tensor)
    assert accuracy(run.folder, config, bench.folder / "cache") == pytest.approx(result["metrics"]["dev"]["accuracy"])
    assert set(bench.content()) - {f"checkpoints/{name}" for name in bench.checkpoints()} == {
        "config.yaml", "metrics.jsonl", "model.safetensors", "result.json", "vocab/labels.json", "vocab/tokenizer.json"
    }  # fmt: skip


def test_what_the_result_says(bench: "Bench") -> None:
    test = bench.csv("test.csv", [("w1 w2", "a"), ("w3", "b"), ("w4", "b")])
    result = bench.fit(bench.config(files_test=test))
    written = json.loads((bench.folder / "run" / "result.json").read_text())
    assert {**result, "files": written["files"]} == written
    assert result["examples"] == {"train": 37, "dev": 11, "test": 3}
    assert result["metrics"]["test"]["accuracy"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)
    weights = load_file(bench.folder / "run" / "model.safetensors")
    assert result["parameters"] == sum(tensor.numel() for tensor in weights.values())
    (name, distances), *none = result["distances"].items()
    assert none == []
    assert distances["distance_weight"] == weights[f"{name}.distance_weight"].tolist()
    assert distances["distance_shift"] == weights[f"{name}.distance_shift"].tolist()
    assert written["files"]["model.safetensors"] == hash_file(bench.folder / "run" / "model.safetensors")
    assert result["versions"]["torch"] == torch.__version__
    assert (result["device"], result["processes"]) == ("cpu", 1)
    assert result["metrics"]["dev"] == bench.dev()[result["best_step"] // 8 - 1]


def test_words_that_training_has_not_seen_are_counted_and_said(bench: "Bench") -> None:
    train = bench.csv("t.csv", [("good film", "a"), ("bad film", "b")] * 5)
    dev = bench.csv("d.csv", [("good new thing", "a"), ("bad film, yes", "b")])
    test = bench.csv("e.csv", [("good film", "a")])
    console = Console(file=io.StringIO(), width=200)
    config = bench.config(files_train=(train,), files_dev=dev, files_test=test)
    result = bench.fit(config, reporter=Reporter(console))
    assert result["unknown_words"] == {"dev": round(4 / 7, 4), "test": 0.0}
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "57% of the words in dev are not in the vocabulary" in said
    assert "words in test" not in said


def test_a_separator_is_no_word() -> None:
    assert unknown_share(np.array([UNKNOWN, SEPARATOR, 7, SEPARATOR, 8], np.int32)) == 1 / 3
    assert unknown_share(np.array([SEPARATOR], np.int32)) == unknown_share(np.array([], np.int32)) == 0
    long = np.full(CHUNK + 3, 7, np.int32)
    long[::2] = UNKNOWN
    assert unknown_share(long) == (CHUNK // 2 + 2) / (CHUNK + 3)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, "more rows, or a --tokenizer that cuts words into pieces, may help"),
        ({"data_min_count": 2}, "a lower data.min_count may help"),
        ({"data_vocabulary": 2}, "a larger data.vocabulary may help"),
        ({"data_vectors": "v.txt"}, "more rows, or --set data.vector_words=true, may help"),
        ({"data_vectors": "v.txt", "data_vector_words": True}, "more rows, or more word vectors, may help"),
        ({"data_vectors": "v.txt", "data_tokenizer": "vocab.json"}, "a --tokenizer with more of them may help"),
    ],
)
def test_the_remedy_is_one_that_can_be_taken(bench: "Bench", options: dict[str, Any], remedy: str) -> None:
    (bench.folder / "v.txt").write_text("good 1 2 3\nfilm 0 1 0\n")
    WordTokenizer(["good", "bad", "film"]).save(bench.folder / "vocab.json")
    train = bench.csv("t.csv", [("good film", "a"), ("bad film", "b")] * 5)
    dev = bench.csv("d.csv", [("good new thing", "a"), ("bad one", "b")])
    options = {name: str(bench.folder / value) if isinstance(value, str) else value for name, value in options.items()}
    console = Console(file=io.StringIO(), width=200)
    bench.fit(bench.config(files_train=(train,), files_dev=dev, **options), reporter=Reporter(console))
    assert f"not in the vocabulary; {remedy}" in console.file.getvalue()  # type: ignore[attr-defined]


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-7] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def bless(folder: Path) -> None:
    """Write the hashes anew, as someone would who tampers with care."""
    result = json.loads((folder / "result.json").read_text())
    result["files"] = {name: hash_file(folder / name) for name in result["files"]}
    (folder / "result.json").write_text(json.dumps(result))


def change_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_tensors(folder / "model.safetensors", tensors)
        bless(folder)

    return damage


def change_labels(folder: Path) -> None:
    (folder / "vocab" / "labels.json").write_text('{"classes": [1, 2]}')
    bless(folder)


def change_vocabulary(folder: Path) -> None:
    (folder / "vocab" / "tokenizer.json").write_text("{}")
    bless(folder)


def change_config(folder: Path) -> None:
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["model"]["embed_dim"] = 8
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def cut_weights_and_bless(folder: Path) -> None:
    cut("model.safetensors")(folder)
    bless(folder)


def write(name: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


CHANGED = "was changed after training: its SHA-256 is not the one in result.json"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped byte": (flip_a_byte, f"model.safetensors: {CHANGED}"),
    "weights cut": (cut("model.safetensors"), f"model.safetensors: {CHANGED}"),
    "weights cut, hash too": (cut_weights_and_bless, "model.safetensors: damaged or not a safetensors file"),
    "weights missing": (remove("model.safetensors"), "model.safetensors: no such file, expected a part of the run"),
    "vocabulary missing": (remove("vocab/tokenizer.json"), "vocab/tokenizer.json: no such file, expected a part of"),
    "vocabulary cut": (cut("vocab/tokenizer.json"), f"vocab/tokenizer.json: {CHANGED}"),
    "vocabulary empty": (change_vocabulary, "vocab/tokenizer.json: "),
    "labels missing": (remove("vocab/labels.json"), "vocab/labels.json: no such file, expected a part of the run"),
    "labels cut": (cut("vocab/labels.json"), f"vocab/labels.json: {CHANGED}"),
    "labels of numbers": (change_labels, "vocab/labels.json: classes: got [1, 2], expected a list of names, or null"),
    "unfinished": (remove("result.json"), "run: has no result.json: training has not ended; datransformer train --res"),
    "result cut": (cut("result.json"), "result.json: not JSON ("),
    "result a list": (write("result.json", "[]"), "result.json: got list, expected an object"),
    "result without hashes": (write("result.json", "{}"), f"config.yaml: {CHANGED}"),
    "result with odd hashes": (write("result.json", '{"files": 3}'), f"config.yaml: {CHANGED}"),
    "config missing": (remove("config.yaml"), "run: has no config.yaml, expected a run directory"),
    "config cut": (write("config.yaml", "format: 1\ntask: [a"), "config.yaml: not YAML"),
    "config of another width": (change_config, f"config.yaml: {CHANGED}"),
    "NaN": (
        change_weights(lambda tensors: tensors.update({"head.bias": torch.full((2,), torch.nan)})),
        "model.safetensors: 'head.bias' holds NaN or Inf, expected finite weights",
    ),
    "another shape": (
        change_weights(lambda tensors: tensors.update({"head.bias": torch.ones(3)})),
        "'head.bias' is torch.float32 (3,), expected torch.float32 (2,)",
    ),
    "a tensor too few": (
        change_weights(lambda tensors: tensors.__delitem__("head.bias")),
        "does not fit the model: 'head.bias' is in one of them only",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that is done."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [(f"w{number % 5} w{number % 3}", "ab"[number % 2]) for number in range(20)]
    (folder / "t.csv").write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in rows)]) + "\n")
    config = RunConfig(
        files=FileConfig(train=(str(folder / "t.csv"),)),
        model=ModelConfig(heads=2, head_dim=4, embed_dim=6, feedforward_dim=11),
        train=TrainConfig(epochs=1, batch_size=5),
    )
    fit(config, folder / "run", cache=folder / "cache", device="cpu")
    load_run(folder / "run")
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run(tmp_path: Path, trained: dict[str, bytes], damage: str) -> None:
    for name, content in trained.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    load_run(tmp_path / "run")
    harm, message = DAMAGES[damage]
    harm(tmp_path / "run")
    with pytest.raises(InputError) as caught:
        load_run(tmp_path / "run")
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_place_that_is_taken(bench: "Bench") -> None:
    config = bench.config()
    folder = bench.folder / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for option in ("none", "resume", "overwrite"):
        with pytest.raises(InputError, match=r"run: holds files that are not a run, expected an empty or new folder"):
            bench.fit(config, resume=option == "resume", overwrite=option == "overwrite")
    assert bench.content() == {"thesis.tex": b"mine"}
    (bench.folder / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is a file, expected a folder for the run"):
        bench.fit(config, "file")
    with pytest.raises(InputError, match=r"file/below: cannot be written"):
        bench.fit(config, "file/below")


def test_an_empty_folder_is_as_good_as_none(bench: "Bench") -> None:
    (bench.folder / "run").mkdir()
    bench.fit(bench.config())
    load_run(bench.folder / "run")


def test_a_run_is_neither_replaced_nor_mixed_with_another(bench: "Bench") -> None:
    bench.fit(bench.config(train_epochs=1))
    before = bench.content()
    with pytest.raises(
        InputError, match=r"run: holds a run already; --resume goes on with it, --overwrite replaces it"
    ):
        bench.fit(bench.config(train_epochs=1))
    assert bench.content() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_lr": 0.5}, "train.lr (0.5, was 0.01)"),
        ({"train_seed": 1}, "train.seed (1, was 0)"),
        ({"model_attention_options": {"mapping": "clip"}}, "model.attention_options.mapping ('clip', was None)"),
        ({"model_heads": 3}, "model.heads (3, was 2)"),
        ({"data_max_length": 7}, "data.max_length (7, was 256)"),
        ({"files_dev": None}, "files.dev (None, was "),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_resuming_with_other_settings(bench: "Bench", settings: dict[str, Any], message: str, ended: bool) -> None:
    begun(bench, ended)
    before = bench.content()
    with pytest.raises(InputError) as caught:
        bench.fit(bench.config(**settings), resume=True)
    assert str(caught.value).startswith(f"{bench.folder / 'run'}: --resume with another {message}")
    assert str(caught.value).endswith(", expected the settings of the run")
    assert bench.content() == before


def begun(bench: "Bench", ended: bool) -> None:
    """A run that has ended, or that crashed at its third step."""
    if ended:
        bench.fit(bench.config())
        return
    with pytest.raises(ZeroDivisionError):
        bench.fit(bench.config(train_checkpoint_every=500), on_step=lambda step: 1 // (step - 3) and None)


def test_resuming_without_an_option_that_was_there(bench: "Bench") -> None:
    bench.fit(bench.config(model_attention_options={"mapping": "clip"}))
    before = bench.content()
    with pytest.raises(
        InputError, match=r"--resume with another model\.attention_options\.mapping \(None, was 'clip'\)"
    ):
        bench.fit(bench.config(), resume=True)
    assert bench.content() == before


@pytest.mark.parametrize("ended", [True, False])
def test_resuming_with_other_data(bench: "Bench", ended: bool) -> None:
    config = bench.config()
    begun(bench, ended)
    before = bench.content()
    with Path(config.files.train[0]).open("a") as file:
        file.write("w1 w2,a\n")
    with pytest.raises(InputError, match=r"run: the data are not those that the run began with, expected the same fi"):
        bench.fit(config, resume=True)
    assert bench.content() == before


def test_resuming_where_there_is_nothing_starts(bench: "Bench") -> None:
    bench.fit(bench.config(), "new")
    bench.fit(bench.config(), "resumed", resume=True)
    assert bench.weights("new") == bench.weights("resumed")


def test_resuming_a_damaged_run_does_not_bless_it(bench: "Bench") -> None:
    bench.fit(bench.config())
    flip_a_byte(bench.folder / "run")
    with pytest.raises(InputError, match="was changed after training"):
        bench.fit(bench.config(), resume=True)


def test_overwriting_removes_the_run_and_nothing_else(bench: "Bench") -> None:
    bench.fit(bench.config(train_epochs=3, train_seed=7, train_tensorboard=True))
    (bench.folder / "run" / "notes.txt").write_text("mine")
    bench.fit(bench.config(), overwrite=True)
    bench.fit(bench.config(), "new")
    assert bench.weights("run") == bench.weights("new")
    assert bench.lines("run") == bench.lines("new")
    assert bench.checkpoints("run") == bench.checkpoints("new")
    assert bench.content("run").keys() == bench.content("new").keys() | {"notes.txt"}
    load_run(bench.folder / "run")


def test_what_fails_before_training_leaves_the_old_run(bench: "Bench") -> None:
    bench.fit(bench.config())
    before = bench.content()
    with pytest.raises(InputError, match=r"nope\.csv: there is no such file"):
        bench.fit(bench.config(files_train=["nope.csv"]), overwrite=True)
    with pytest.raises(InputError, match=r"^train\.metric"):
        bench.fit(bench.config(train_metric="nope"), overwrite=True)
    assert bench.content() == before


def test_word_vectors_bring_their_width_and_are_resumed(bench: "Bench") -> None:
    rows = {f"w{number}": [number + 0.5, -number, 0.25] for number in range(8)}  # all but w8
    path = bench.folder / "vectors.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items()))
    config = bench.config(data_vectors=str(path), train_lr=1e-9, train_checkpoint_every=2, model_dropout=0.2)
    bench.fit(config, "whole")
    run = load_run(bench.folder / "whole")
    assert run.config.model.embed_dim == 3
    weight = run.model.get_parameter("text.embedding.weight")
    for word, row in rows.items():
        assert weight[run.tokenizer.words.index(word)].tolist() == pytest.approx(row, abs=1e-6)
    assert weight[0].tolist() == [0, 0, 0]
    with pytest.raises(ZeroDivisionError):
        bench.fit(config, on_step=lambda step: 1 // (step - 3) and None)
    bench.fit(config, resume=True)
    assert bench.weights("run") == bench.weights("whole")


def test_a_word_of_the_vectors_that_training_does_not_have_keeps_its_own(bench: "Bench") -> None:
    path = bench.folder / "vectors.txt"
    path.write_text("good 1 2 3\nfilm 0 1 0\nnew 4 5 6\nnewer 7 8 9\n")
    train = bench.csv("t.csv", [("good film odd", "a"), ("bad film", "b")] * 5)
    dev = bench.csv("d.csv", [("good new thing", "a"), ("bad other film", "b")])
    files: dict[str, Any] = {"files_train": (train,), "files_dev": dev, "data_vectors": str(path)}
    result = bench.fit(bench.config(**files, data_vector_words=True))
    assert result["unknown_words"] == {"dev": round(2 / 6, 4)}  # thing, other
    run = load_run(bench.folder / "run")
    weight, words = run.model.get_parameter("text.embedding.weight").detach(), list(run.tokenizer.words)
    assert words[-2:] == ["new", "newer"]
    assert weight[-2:].tolist() == [[4, 5, 6], [7, 8, 9]]  # and nothing has moved them
    assert weight[words.index("good")].tolist() != [1, 2, 3]
    assert bench.fit(bench.config(**files), "without")["unknown_words"] == {"dev": round(3 / 6, 4)}


def test_impressions_that_cannot_be_measured_are_found_before_training(bench: "Bench") -> None:
    config = bench.config(task="recommend")
    path = Path(str(config.files.dev)) / "behaviors.tsv"
    path.write_text("1\tU\t11/11/2019 9:05:58 AM\tN1\tN2-1\n2\tU\t11/11/2019 9:05:58 AM\tN1\tN2-0 N3-0\n")
    with pytest.raises(InputError, match=r"^dev: no impression has both a click and a candidate without one"):
        bench.fit(config)
    assert not (bench.folder / "run").exists()


@pytest.mark.parametrize("device", ["tpu", ""])
def test_a_device_that_is_none(bench: "Bench", device: str) -> None:
    with pytest.raises(InputError, match=rf"^--device: got '{device}', expected one of: auto, cpu, cuda$"):
        fit(bench.config(), bench.folder / "run", cache=bench.folder / "cache", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(bench: "Bench") -> None:
    with pytest.raises(
        InputError, match=r"^--device: got 'cuda', but torch finds no CUDA device; expected auto or cpu$"
    ):
        fit(bench.config(), bench.folder / "run", cache=bench.folder / "cache", device="cuda")


@pytest.mark.skipif(os.name != "posix", reason="locks are of POSIX")
def test_a_lock_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with locked(tmp_path / "run"):
        (lock,) = tmp_path.glob("*.lock")
    lock.unlink()
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    lock.symlink_to(precious)
    with pytest.raises(InputError, match="cannot be locked"), locked(tmp_path / "run"):
        pass
    assert precious.read_text() == "all of it"


def test_two_trainings_do_not_share_a_folder(bench: "Bench") -> None:
    with locked(bench.folder / "run"), pytest.raises(InputError, match="another process is at work there"):
        bench.fit(bench.config())
    bench.fit(bench.config())
