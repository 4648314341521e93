"""Two processes learn what one would learn from batches twice the size."""

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.nn.mixers import MIXERS
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.mapping import MAPPINGS
from datransformer.train.config import RunConfig
from datransformer.train.fit import _has_idle_parameters

if TYPE_CHECKING:
    from tests.train.conftest import Bench


def two_processes(bench: "Bench", config: RunConfig, name: str, *options: str) -> str:
    """Run a fit in two processes; what the first printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.run(
        [*command, *bench.command(config, name, *options)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def close(bench: "Bench", name: str, other: str) -> None:
    assert bench.losses(name) == pytest.approx(bench.losses(other), rel=1e-4, abs=1e-4)
    for got, expected in zip(bench.dev(name), bench.dev(other), strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


def test_two_processes_are_one_with_batches_of_twice_the_size(bench: "Bench") -> None:
    case: dict[str, Any] = {"task": "recommend", "rows": 25, "train_accumulate": 2, "train_lr": 0.003}
    config = bench.config(**case, train_batch_size=3, train_max_tokens=40)
    bench.fit(bench.config(**case, train_batch_size=6, train_max_tokens=80), "one")
    two_processes(bench, config, "two")
    assert len(bench.losses("one")) > 5
    close(bench, "two", "one")


def test_one_process_that_is_told_to_stop_stops_both(bench: "Bench") -> None:
    """Batches of twice 3, of 37 rows: one row is left for the last, and one of the two processes has none.

    The sigmoid leaves v without a gradient, for which DDP would wait forever.
    """
    case: dict[str, Any] = {
        "rows": 37, "model_attention_options": {"mapping": "sigmoid"}, "train_epochs": 3, "train_lr": 0.003
    }  # fmt: skip
    config = bench.config(**case, train_batch_size=3, train_checkpoint_every=5)
    output = two_processes(bench, config, "two", "kill_one_after=6", "rank=1")
    assert "Interrupted: stopped after step 7; --resume goes on from there" in output
    assert bench.checkpoints("two")[-1] == "000000007.safetensors"
    two_processes(bench, config, "two", "resume")
    bench.fit(bench.config(**case, train_batch_size=6), "one")
    close(bench, "two", "one")


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        *((name, {}) for name in MIXERS),
        *(("distance_aware", {"mapping": mapping, "adjust": adjust}) for mapping in MAPPINGS for adjust in ADJUSTMENTS),
    ],
)
def test_what_has_no_gradient_is_known_beforehand(attention: str, options: dict[str, str]) -> None:
    config = ModelConfig(attention=attention, attention_options=options, heads=2, head_dim=4, embed_dim=6)
    model = build_model("sentence", 5, 2, config)
    model(torch.tensor([[1, 2, 3], [4, 1, 0]])).sum().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert bool(idle) == _has_idle_parameters(config), idle
