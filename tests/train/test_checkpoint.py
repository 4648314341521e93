"""Checkpoints are whole or not there, and one that is damaged does not stop a run."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from datransformer.data.errors import InputError
from datransformer.train import checkpoint
from datransformer.train.checkpoint import load_checkpoint, load_tensors, load_weights, save_checkpoint, save_tensors
from datransformer.train.progress import Reporter

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(5, 3)).square().sum().backward()
    optimizer.step()


def saved(folder: Path, steps: int) -> list[dict[str, torch.Tensor]]:
    """A checkpoint after each step; what the weights were."""
    model, optimizer = parts()
    states = []
    for number in range(1, steps + 1):
        step(model, optimizer)
        save_checkpoint(folder, model, optimizer, {"step": number, "word": "ü"})
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return states


def test_it_brings_back_model_optimiser_and_state(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, optimizer = parts()
    step(model, optimizer)
    step(model, optimizer)
    save_checkpoint(tmp_path, model, optimizer, {"step": 2, "word": "ü"})
    other, its_optimizer = parts()
    state, means, notes = load_checkpoint(tmp_path, other, its_optimizer)
    assert means == {}
    assert (state, notes) == ({"step": 2, "word": "ü"}, [])
    for _ in range(3):
        step(model, optimizer)
        step(other, its_optimizer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_it_is_safetensors_and_the_last_two_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000004.safetensors", "000000005.safetensors"]
    with safe_open(tmp_path / "000000005.safetensors", framework="np") as file:
        assert {"model.weight", "optimizer.0.exp_avg", "optimizer.1.step"} < set(file.keys())


def test_it_is_written_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def watch(tensors: Any, path: Path, metadata: Any) -> None:
        seen.append(path)
        assert not (tmp_path / "000000001.safetensors").exists()
        save_file(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", watch)
    saved(tmp_path, 1)
    assert seen[0].parent == tmp_path
    assert seen[0].name != "000000001.safetensors"
    assert [path.name for path in tmp_path.iterdir()] == ["000000001.safetensors"]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": cut,
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x93garbage" * 100,
    "one bit of a number": flip,
    "another header": lambda content: content.replace(b'"sha256"', b'"sha257"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_a_damaged_one_is_taken(tmp_path: Path, damage: str) -> None:
    states = saved(tmp_path, 3)
    newest = tmp_path / "000000003.safetensors"
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    model, optimizer = parts()
    state, _, notes = load_checkpoint(tmp_path, model, optimizer)
    assert state == {"step": 2, "word": "ü"}
    assert len(notes) == 1
    assert notes[0].startswith(f"{newest}: damaged")
    assert notes[0].endswith("; trying the checkpoint before it")
    assert "\n" not in notes[0]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in model.state_dict().items())


def test_a_folder_without_any_that_can_be_read(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    state, _, notes = load_checkpoint(tmp_path, *parts())
    assert state is None
    assert len(notes) == 2
    assert load_checkpoint(tmp_path / "none", *parts()) == (None, {}, [])


def test_damaged_ones_of_later_steps_do_not_crowd_out_good_ones(tmp_path: Path) -> None:
    for name in ("000000008", "000000009"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    saved(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000001.safetensors", "000000002.safetensors"]


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_run_goes_on_from_the_one_before(bench: "Bench", damaged: int) -> None:
    config = bench.config(train_checkpoint_every=3, train_epochs=3, model_dropout=0.2)
    bench.fit(config, "whole")
    with pytest.raises(ZeroDivisionError):
        bench.fit(config, on_step=lambda step: 1 // (step - 10) and None)
    names = bench.checkpoints()
    assert names == ["000000008.safetensors", "000000009.safetensors"]  # 8 steps an epoch
    for name in names[-damaged:]:
        path = bench.folder / "run" / "checkpoints" / name
        path.write_bytes(cut(path.read_bytes()))
    out = StringIO()
    steps: list[int] = []
    reporter = Reporter(Console(file=out, force_terminal=False))
    bench.fit(config, resume=True, reporter=reporter, on_step=steps.append)
    assert steps[0] == (9 if damaged == 1 else 1)
    assert out.getvalue().count("damaged or not a safetensors file") == damaged
    assert ("going on from step 8, epoch 2" if damaged == 1 else "starting at step 0") in out.getvalue()
    assert bench.weights("run") == bench.weights("whole")
    assert bench.lines("run") == bench.lines("whole")


def test_a_full_disk_leaves_what_was_there(bench: "Bench") -> None:
    """Writes fail half-way, as on a full disk: no file may grow beyond 1 KiB."""
    config = bench.config(train_checkpoint_every=2, model_dropout=0.2, train_log_every=100)
    process = bench.start(config, "run", "full_after=3")
    output, errors = process.communicate()
    assert process.returncode == 1
    assert output.split() == ["1", "2", "3"]
    line = errors.splitlines()[-1]
    path = bench.folder / "run" / "checkpoints" / "000000004.safetensors"
    assert line.startswith(f"InputError: {path}: cannot be written (")
    assert "File too large" in line
    assert line.endswith("); what was written before is kept")
    assert "Traceback" not in errors
    assert bench.checkpoints() == ["000000002.safetensors"]
    steps: list[int] = []
    bench.fit(config, resume=True, on_step=steps.append)
    assert steps[0] == 3
    bench.fit(config, "whole")
    assert bench.weights("run") == bench.weights("whole")
    assert bench.lines("run") == bench.lines("whole")


def test_a_disk_too_full_for_a_line_of_metrics(bench: "Bench") -> None:
    config = bench.config(rows=101, train_checkpoint_every=1000, train_epochs=1)
    process = bench.start(config, "run", "full_after=3")
    _, errors = process.communicate()
    assert process.returncode == 1
    path = bench.folder / "run" / "metrics.jsonl"
    assert errors.splitlines()[-1] == f"InputError: {path}: cannot be written (File too large)"
    bench.fit(config, resume=True)
    bench.fit(config, "whole")
    assert bench.lines("run") == bench.lines("whole")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/x\.safetensors: cannot be written \(.*\); what was written before is"):
        save_tensors(tmp_path / "file" / "x.safetensors", {})


def test_weights_must_be_those_of_the_model(tmp_path: Path) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "w.safetensors"
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrong = {
        r"'bias' is in one of them only": {"weight": good["weight"]},
        r"'extra' is in one of them only": {**good, "extra": torch.ones(1)},
        r"'bias' is torch\.float32 \(3,\), expected torch\.float32 \(2,\)": {**good, "bias": torch.ones(3)},
        r"'bias' is torch\.float64 \(2,\), expected torch\.float32 \(2,\)": {**good, "bias": good["bias"].double()},
        r"'bias' holds NaN or Inf": {**good, "bias": torch.tensor([1.0, torch.inf])},
    }
    for message, tensors in wrong.items():
        save_tensors(path, tensors)
        with pytest.raises(InputError, match=rf"w\.safetensors: .*{message}"):
            load_weights(model, path)
        assert all(torch.equal(tensor, good[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(InputError, match=r"none: no such file, expected weights"):
        load_tensors(tmp_path / "none")


def test_a_run_goes_on_with_as_many_processes_as_it_began(bench: "Bench") -> None:
    config = bench.config(train_checkpoint_every=1)
    with pytest.raises(ZeroDivisionError):
        bench.fit(config, on_step=lambda step: 1 // 0 and None)
    path = bench.folder / "run" / "checkpoints" / "000000001.safetensors"
    tensors, metadata = load_tensors(path)
    save_tensors(path, tensors, {**metadata, "state": metadata["state"].replace('"processes": 1', '"processes": 4')})
    with pytest.raises(InputError, match="run: --resume with 1 processes, expected 4, as the run began"):
        bench.fit(config, resume=True)
