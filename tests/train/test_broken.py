"""NaN and Inf stop a run before they reach the weights, and the message says where they came from."""

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from datransformer.data.errors import InputError
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.train import fit as fit_module
from datransformer.train.checkpoint import load_tensors
from datransformer.train.errors import TrainingError
from datransformer.train.loop import first_broken_layer

if TYPE_CHECKING:
    from tests.train.conftest import Bench


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that `fit` builds."""
    built: list[nn.Module] = []

    def build(*arguments: Any) -> nn.Module:
        built.append(build_model(*arguments))
        return built[-1]

    monkeypatch.setattr(fit_module, "build_model", build)
    return built


def poison(parameter: Tensor, value: float) -> None:
    with torch.no_grad():
        parameter.view(-1)[0] = value


def good_checkpoint(bench: "Bench", step: int) -> None:
    assert bench.checkpoints()[-1] == f"{step:09d}.safetensors"
    tensors, _ = load_tensors(bench.folder / "run" / "checkpoints" / bench.checkpoints()[-1])
    assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight(bench: "Bench", models: list[nn.Module], value: float) -> None:
    config = bench.config(rows=13, train_checkpoint_every=2, train_accumulate=2, model_layers=2, model_dropout=0.1)

    def on_step(step: int) -> None:
        if step == 3:
            poison(models[0].get_parameter("text.sequence.encoder.layers.1.feedforward.0.weight"), value)

    with pytest.raises(TrainingError) as caught:
        bench.fit(config, on_step=on_step)
    said = str(caught.value)
    assert said.startswith("step 4, epoch 2: the loss is NaN or Inf, first in the output of ")
    assert "first in the output of 'text.sequence.encoder.layers.1.feedforward.0', in the batch of rows " in said
    assert f"; the last good checkpoint is kept, {bench.folder}/run/checkpoints/000000002.safetensors. A sm" in said
    assert "\n" not in said
    # 13 rows, 5 a batch, two batches a step: the second step of an epoch has one batch.
    rows = re.search(r"in the batch of rows ([\d, ]+);", said)
    assert rows is not None
    assert len(set(rows[1].split(", "))) in (3, 5)
    good_checkpoint(bench, 2)


def test_the_rows_are_those_of_the_step(bench: "Bench", models: list[nn.Module]) -> None:
    """Only row 10 has the word whose vector is broken."""
    texts = ["x y"] * 9 + ["x odd"] + ["y y"] * 9
    train = bench.csv("odd.csv", [(text, "ab"[number % 2]) for number, text in enumerate(texts)])
    config = bench.config(files_train=[train], train_batch_size=2, train_epochs=1)

    def on_step(step: int) -> None:
        poison(models[0].get_parameter("text.embedding.weight")[5], torch.nan)  # three special ones, y, x, odd

    with pytest.raises(TrainingError, match=r"first in the output of 'text\.embedding'") as caught:
        bench.fit(config, on_step=on_step)
    rows = re.search(r"rows ([\d, ]+);", str(caught.value))
    assert rows is not None
    assert "10" in rows[1].split(", ")
    assert len(rows[1].split(", ")) <= 2


def test_a_gradient(bench: "Bench", models: list[nn.Module]) -> None:
    config = bench.config(train_checkpoint_every=2)
    before: dict[str, Tensor] = {}

    def on_step(step: int) -> None:
        if step == 3:
            weight = models[0].get_parameter("head.weight")
            weight.register_hook(lambda gradient: gradient * float("nan"))
            before.update({name: tensor.clone() for name, tensor in models[0].state_dict().items()})

    message = r"^step 4, epoch 1: the gradient is NaN or Inf, first in the gradient of 'head\.weight', in the batch of"
    with pytest.raises(TrainingError, match=message):
        bench.fit(config, on_step=on_step)
    good_checkpoint(bench, 2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in models[0].state_dict().items())


def test_a_run_goes_on_after_it_was_mended(bench: "Bench", models: list[nn.Module]) -> None:
    config = bench.config(train_checkpoint_every=2, model_dropout=0.2)
    bench.fit(config, "whole")

    def on_step(step: int) -> None:
        if step == 5:
            poison(models[1].get_parameter("head.bias"), float("nan"))

    with pytest.raises(TrainingError, match="'head'"):
        bench.fit(config, on_step=on_step)
    bench.fit(config, resume=True)
    assert bench.weights("run") == bench.weights("whole")


def test_weights_that_break_in_the_last_step_are_not_saved(bench: "Bench", models: list[nn.Module]) -> None:
    """A finite gradient is no promise: a step may still overflow."""
    config = bench.config(train_lr=3e38, train_steps=3, train_clip=0.0, train_evaluate_every=1, train_weight_decay=1e30)
    with pytest.raises(TrainingError, match=r"^step 1, epoch 1: 'text\.embedding\.weight' became NaN or Inf; there is"):
        bench.fit(config)
    assert not (bench.folder / "run" / "model.safetensors").exists()
    assert not (bench.folder / "run" / "checkpoints").exists()


def small(**options: Any) -> nn.Module:
    config = ModelConfig(heads=2, head_dim=4, embed_dim=6, layers=2, dropout=0.0, **options)
    return build_model("sentence", 9, 3, config)


TOKENS = {"tokens": torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])}


def test_no_layer_is_broken() -> None:
    assert first_broken_layer(small(), TOKENS) is None


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("head.bias", "head"),
        ("text.embedding.weight", "text.embedding"),
        ("text.sequence.encoder.layers.0.feedforward.3.bias", "text.sequence.encoder.layers.0.feedforward.3"),
        # An attention's own numbers: its output projection gets NaN, and is not to blame.
        (
            "text.sequence.encoder.layers.1.attention.distance_weight",
            "text.sequence.encoder.layers.1.attention",
        ),
    ],
)
def test_the_layer_that_broke_first_is_named(parameter: str, layer: str) -> None:
    model = small()
    found = dict(model.named_parameters())
    poisoned = found[parameter]
    with torch.no_grad():
        poisoned.fill_(float("nan"))
    found["head.weight"].data.fill_(float("inf"))  # broken too, but later
    assert first_broken_layer(model, TOKENS) == layer
    assert not any(module._forward_hooks for module in model.modules())


def test_padding_of_a_recommender_is_not_broken() -> None:
    model = build_model("recommend", 9, 0, ModelConfig(heads=2, head_dim=4, embed_dim=6))
    inputs = {
        "titles": torch.tensor([[1, 2], [3, 0]]),
        "history": torch.tensor([[0, -1]]),
        "candidates": torch.tensor([[1, -1]]),
    }
    assert torch.isinf(model(**inputs)).any()
    assert first_broken_layer(model, inputs) is None


def test_an_option_that_the_attention_does_not_have(bench: "Bench") -> None:
    with pytest.raises(InputError, match=r"^model: .*nope"):
        bench.fit(bench.config(model_attention_options={"nope": 1}))
    assert not (bench.folder / "run").exists()
