"""Whatever stops a run, it ends in the same weights, bit for bit, and with the same lines of metrics."""

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from datransformer.data.errors import InputError
from datransformer.train import fit as fit_module
from datransformer.train.config import RunConfig
from datransformer.train.errors import Interrupted

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def hard(bench: "Bench", **settings: Any) -> RunConfig:
    """Settings under which most could go wrong: dropout, groups of batches, nothing that falls on the same step."""
    chosen: dict[str, Any] = {
        "train_accumulate": 2,
        "train_checkpoint_every": 3,
        "train_evaluate_every": 4,
        "train_log_every": 2,
    }
    return bench.config(**{"model_dropout": 0.3, "train_epochs": 3, **chosen, **settings})


def same(bench: "Bench", name: str, other: str) -> None:
    assert bench.weights(name) == bench.weights(other)
    assert bench.lines(name) == bench.lines(other)
    assert not [path for path in bench.content(name) if path.endswith(".part")]


class CrashError(Exception):
    pass


def crash_at(crash: int) -> Callable[[int], None]:
    def on_step(step: int) -> None:
        if step == crash:
            raise CrashError

    return on_step


def test_killed_again_and_again(bench: "Bench") -> None:
    config = hard(bench, rows=67, train_epochs=30)
    bench.fit(config, "whole")
    random = np.random.default_rng(7)
    killed = 0
    while True:
        process = bench.start(config, "run", "resume")
        assert process.stdout is not None
        steps = int(random.integers(5, 40))
        for _ in range(steps):
            if not process.stdout.readline():
                break
        else:
            if killed < 2:
                time.sleep(float(random.random()) * 0.02)
                process.kill()
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        killed += 1
    assert killed == 2
    same(bench, "run", "whole")


def test_killed_in_the_middle_of_a_write(bench: "Bench") -> None:
    config = hard(bench)
    bench.fit(config, "whole")
    process = bench.start(config, "run", "die_in_write=4")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [path for path in bench.content("run") if path.endswith(".part")]
    bench.fit(config, "run", resume=True)
    same(bench, "run", "whole")


@pytest.mark.parametrize("task", ["sentence", "recommend"])
def test_a_crash_after_any_step(bench: "Bench", task: str) -> None:
    config = hard(bench, task=task, rows=23)
    steps = bench.fit(config, "whole")["steps"]
    assert steps >= 6
    for crash in range(1, steps + 1):
        with pytest.raises(CrashError):
            bench.fit(config, f"run{crash}", on_step=crash_at(crash))
        bench.fit(config, f"run{crash}", resume=True)
        same(bench, f"run{crash}", "whole")


@pytest.mark.parametrize("freeze", [False, True])
def test_a_crash_after_every_step(bench: "Bench", freeze: bool) -> None:
    config = hard(bench, rows=23, train_checkpoint_every=1, model_freeze_vectors=freeze)
    steps = bench.fit(config, "whole")["steps"]
    for crash in range(1, steps + 1):
        with pytest.raises(CrashError):
            bench.fit(config, on_step=crash_at(crash), resume=True)
    bench.fit(config, resume=True)
    same(bench, "run", "whole")


def test_the_dev_metric_and_patience_survive(bench: "Bench") -> None:
    config = hard(bench, train_epochs=40, train_patience=3, train_evaluate_every=2, train_lr=1e-5)
    whole = bench.fit(config, "whole")
    assert whole["steps"] < 160
    crash = whole["best_step"] + 3
    with pytest.raises(CrashError):
        bench.fit(config, on_step=crash_at(crash))
    resumed = bench.fit(config, resume=True)
    same(bench, "run", "whole")
    for key in ("steps", "best_step", "epochs", "metrics", "distances"):
        assert resumed[key] == whole[key]


def test_a_crash_between_the_last_step_and_the_result(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    config = hard(bench)
    whole = bench.fit(config, "whole")
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "finish_folder", lambda *arguments: crash_at(0)(0))
        with pytest.raises(CrashError):
            bench.fit(config)
    steps: list[int] = []
    resumed = bench.fit(config, resume=True, on_step=steps.append)
    assert steps == []
    assert resumed["metrics"] == whole["metrics"]
    same(bench, "run", "whole")


def test_a_finished_run_is_left_as_it_is(bench: "Bench") -> None:
    config = hard(bench)
    result = bench.fit(config)
    before = bench.content()
    again = bench.fit(config, resume=True)
    assert again == {**result, "files": again["files"]}
    assert bench.content() == before


def test_a_term_signal_stops_between_two_steps(bench: "Bench") -> None:
    config = hard(bench, rows=67, train_epochs=200, train_checkpoint_every=100_000, train_steps=150)
    bench.fit(config, "whole")
    process = bench.start(config, "run", "pause_after=9")
    assert process.stdout is not None
    for _ in range(9):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    last = output.splitlines()[-1]
    assert last.startswith("Interrupted: stopped after step ")
    assert last.endswith("; --resume goes on from there")
    step = int(last.split()[4].rstrip(";"))
    assert bench.checkpoints()[-1] == f"{step:09d}.safetensors"
    steps: list[int] = []
    bench.fit(config, resume=True, on_step=steps.append)
    assert steps[0] == step + 1
    same(bench, "run", "whole")


def test_control_c_stops_between_two_steps_and_handlers_come_back(bench: "Bench") -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped after step 3"):
        # Step 2 is over when it comes.
        bench.fit(hard(bench), on_step=lambda step: signal.raise_signal(signal.SIGINT) if step == 2 else None)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert bench.checkpoints() == ["000000003.safetensors"]


def test_a_signal_that_comes_too_late_does_not_matter(bench: "Bench") -> None:
    config = hard(bench)
    steps = bench.fit(config, "whole")["steps"]
    bench.fit(config, on_step=lambda step: signal.raise_signal(signal.SIGTERM) if step == steps - 1 else None)
    same(bench, "run", "whole")


def test_a_second_signal_stops_at_once(bench: "Bench") -> None:
    def twice(step: int) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)  # the handler runs between two instructions of Python, and two signals at once are one

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.fit(hard(bench), on_step=twice)
    finally:
        signal.signal(signal.SIGINT, before)


def test_killed_before_it_had_begun(bench: "Bench") -> None:
    """A vocabulary without settings is the rest of such a run, and no foreign folder."""
    config = hard(bench)
    bench.fit(config, "whole")
    (bench.folder / "run" / "vocab").mkdir(parents=True)
    (bench.folder / "run" / "vocab" / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="holds files that are not a run"):
        bench.fit(config)
    bench.fit(config, resume=True)
    same(bench, "run", "whole")


def test_checkpoints_that_come_too_soon_are_left_out_and_change_nothing(bench: "Bench") -> None:
    bench.fit(hard(bench), "often")
    seldom = hard(bench, train_checkpoint_seconds=1e6)
    with pytest.raises(CrashError):
        bench.fit(seldom, "run", on_step=crash_at(11))
    assert not list((bench.folder / "run").glob("checkpoints/*"))
    bench.fit(seldom, "run", resume=True)
    same(bench, "run", "often")
    with pytest.raises(Interrupted):
        bench.fit(seldom, "stopped", on_step=lambda step: signal.raise_signal(signal.SIGTERM) if step == 7 else None)
    assert len(list((bench.folder / "stopped").glob("checkpoints/*"))) == 1
    bench.fit(seldom, "stopped", resume=True)
    same(bench, "stopped", "often")
