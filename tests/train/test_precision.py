"""Other number formats, a compiled model, and a log for TensorBoard."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from torch import nn

from datransformer.train.run import load_run

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def test_bfloat16_learns_and_keeps_its_weights_in_full(bench: "Bench") -> None:
    rows = [(f"{'good' if number % 2 else 'bad'} w{number % 7}", "np"[number % 2]) for number in range(200)]
    files: dict[str, Any] = {"files_train": [bench.csv("t.csv", rows)], "files_dev": bench.csv("d.csv", rows[:50])}
    result = bench.fit(bench.config(**files, train_precision="bf16-mixed", train_epochs=2))
    assert result["metrics"]["dev"]["accuracy"] > 0.95
    assert {tensor.dtype for tensor in load_run(bench.folder / "run").model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("task", ["sentence", "recommend"])
def test_precisions_agree_as_far_as_they_reach(bench: "Bench", task: str) -> None:
    for precision in ("64-true", "32-true", "bf16-mixed"):
        bench.fit(bench.config(task=task, train_precision=precision, train_lr=0.001), precision)
    exact = bench.losses("64-true")
    assert bench.losses("32-true") == pytest.approx(exact, abs=1e-5)
    assert bench.losses("bf16-mixed") == pytest.approx(exact, abs=0.03)
    assert bench.losses("bf16-mixed") != pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precisions_are_resumed(bench: "Bench", precision: str) -> None:
    config = bench.config(train_precision=precision, train_checkpoint_every=3, model_dropout=0.2)
    bench.fit(config, "whole")
    with pytest.raises(ZeroDivisionError):
        bench.fit(config, on_step=lambda step: 1 // (step - 5) and None)
    bench.fit(config, resume=True)
    assert bench.weights("run") == bench.weights("whole")


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own, on first import
def test_a_compiled_model_learns_the_same(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """Without inductor, which takes a minute and is tested with the encoder."""
    compile_model, asked = torch.compile, []

    def watch(model: nn.Module, **options: Any) -> Any:
        asked.append(options)
        return compile_model(model, **{**options, "backend": "aot_eager"})

    bench.fit(bench.config(train_steps=4), "plain")
    monkeypatch.setattr(torch, "compile", watch)
    bench.fit(bench.config(train_steps=4, train_compile=True), "compiled")
    assert asked
    assert all(options["dynamic"] for options in asked)
    assert bench.losses("compiled") == pytest.approx(bench.losses("plain"), abs=1e-4)
    assert bench.dev("compiled") == bench.dev("plain")
    load_run(bench.folder / "compiled")


def test_a_log_for_tensorboard(bench: "Bench") -> None:
    config = bench.config(train_tensorboard=True, train_checkpoint_every=3)
    with pytest.raises(ZeroDivisionError):
        bench.fit(config, on_step=lambda step: 1 // (step - 5) and None)
    bench.fit(config, resume=True)
    log = EventAccumulator(str(bench.folder / "run" / "tensorboard"))
    log.Reload()
    losses = log.Scalars("train/loss")
    assert [event.step for event in losses] == list(range(1, 17))
    assert [event.value for event in losses] == pytest.approx(bench.losses())
    accuracies = log.Scalars("dev/accuracy")
    assert [event.value for event in accuracies] == pytest.approx([metrics["accuracy"] for metrics in bench.dev()])
    assert {"train/lr", "train/tokens_per_second", "dev/macro_f1"} <= set(log.Tags()["scalars"])
