from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datransformer import MIXERS, DistanceAwareAttention, Encoder, EncoderLayer, MultiheadAttention, SegmentMemory

BATCH, LENGTH, HEADS, HEAD_DIM, EMBED_DIM = 2, 5, 3, 4, 11
RELATIVE = [name for name, mixer in MIXERS.items() if not mixer.adds_positions_to_input]


def make_padding() -> Tensor:
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = True
    return padding


def make_encoder(mixer: str, num_layers: int = 2, **options: Any) -> Encoder:
    encoder = Encoder(EMBED_DIM, HEADS, HEAD_DIM, mixer=mixer, num_layers=num_layers, **options).double()
    for parameter in encoder.parameters():  # some start at zero, which would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return encoder


def test_layer_is_norm_after_residual_twice() -> None:
    layer = make_encoder("distance_aware").layers[0]
    assert isinstance(layer, EncoderLayer)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)
    mixed, _ = layer.attention(inputs, inputs, inputs, make_padding())
    hidden = layer.attention_norm(inputs + mixed)
    first, last = layer.feedforward[0], layer.feedforward[3]
    forward = last(torch.clamp(first(hidden), min=0))
    torch.testing.assert_close(layer(inputs, make_padding()), layer.feedforward_norm(hidden + forward))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_text_does_not_feel_its_batch(mixer: str) -> None:
    """The same text alone, and beside a longer one with padding behind it."""
    encoder = make_encoder(mixer)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)
    together = encoder(inputs, make_padding())
    torch.testing.assert_close(together[:1, :3], encoder(inputs[:1, :3]))
    torch.testing.assert_close(together[1:], encoder(inputs[1:]))


@pytest.mark.parametrize("mixer", MIXERS)
def test_causal_ignores_the_future(mixer: str) -> None:
    encoder = make_encoder(mixer)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)
    torch.testing.assert_close(encoder(inputs, causal=True)[:, :2], encoder(inputs[:, :2], causal=True))


@pytest.mark.parametrize("mixer", RELATIVE)
def test_segments_with_memory_are_the_whole_sequence(mixer: str) -> None:
    """Causally, with a memory that holds everything, three segments give what one pass over all of it gives."""
    encoder = make_encoder(mixer, num_layers=3)
    inputs = torch.randn(BATCH, 7, EMBED_DIM, dtype=torch.float64)
    padding = torch.zeros(BATCH, 7, dtype=torch.bool)
    padding[1, :2] = True
    memory, outputs = None, []
    for start, stop in ((0, 3), (3, 5), (5, 7)):
        output, memory = encoder.forward_segment(
            inputs[:, start:stop], memory, padding[:, start:stop], memory_length=7, causal=True
        )
        outputs.append(output)
    assert memory is not None
    assert memory.key_padding_mask.equal(padding)
    torch.testing.assert_close(torch.cat(outputs, 1), encoder(inputs, padding, causal=True))


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_cut_to_its_length_and_passes_no_gradient(causal: bool) -> None:
    encoder = make_encoder("xl", num_layers=1)
    first, second = torch.randn(2, BATCH, LENGTH, EMBED_DIM, dtype=torch.float64, requires_grad=True)
    _, memory = encoder.forward_segment(first, memory_length=2)
    assert [state.shape for state in memory.states] == [(BATCH, 2, EMBED_DIM)]
    output, memory = encoder.forward_segment(second, memory, memory_length=4, causal=causal)
    assert memory.key_padding_mask.shape == (BATCH, 4)
    assert memory.states[0].untyped_storage().nbytes() == memory.states[0].nbytes  # holds on to nothing else
    # One layer: its memory is its input, so a pass over both pieces gives the same outputs.
    both = encoder(torch.cat((first[:, -2:], second), 1), causal=causal)
    torch.testing.assert_close(output, both[:, 2:])
    (gradient,) = torch.autograd.grad(output.sum(), first, allow_unused=True)
    assert gradient is None


def test_positions_are_added_where_the_mixer_wants_them() -> None:
    assert [name for name in MIXERS if make_encoder(name).positions is not None] == ["vanilla"]


def test_dropout_sits_on_both_sub_layers_and_inside_the_ffn() -> None:
    layer = make_encoder("none", dropout=0.5).layers[0]
    assert isinstance(layer, EncoderLayer)
    seen: list[Tensor] = []
    layer.dropout.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)
    layer.feedforward.eval()
    layer(inputs)
    mixed, _ = layer.attention(inputs, inputs, inputs)
    assert len(seen) == 2
    torch.testing.assert_close(seen[0], mixed)
    inner = layer.feedforward[2]
    assert isinstance(inner, nn.Dropout)
    assert layer.dropout.p == inner.p == 0.5


def test_the_ffn_is_four_times_as_wide() -> None:
    layer = Encoder(EMBED_DIM, HEADS, HEAD_DIM).layers[0]
    assert isinstance(layer, EncoderLayer)
    first = layer.feedforward[0]
    assert isinstance(first, nn.Linear)
    assert first.out_features == 4 * EMBED_DIM


def test_options_reach_the_mixer() -> None:
    encoder = Encoder(EMBED_DIM, HEADS, HEAD_DIM, attention_dropout=0.25, mixer_options={"adjust": "late_add"})
    attention = encoder.layers[0].attention
    assert isinstance(attention, DistanceAwareAttention)
    assert attention.adjust == "late_add"
    assert attention.dropout == 0.25


@pytest.mark.parametrize("mixer", MIXERS)
def test_dropout_acts_in_training_only(mixer: str) -> None:
    encoder = make_encoder(mixer, dropout=0.5)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)
    assert not torch.equal(encoder(inputs), encoder(inputs))
    encoder.eval()
    assert torch.equal(encoder(inputs), encoder(inputs))


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains(mixer: str, dtype: torch.dtype, device: str) -> None:
    encoder = make_encoder(mixer).float().to(device)
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, device=device)
    padding = make_padding().to(device)
    padding[1] = True
    with torch.autocast(device, dtype=dtype):
        output = encoder(inputs, padding)
    torch.testing.assert_close(output.float(), encoder(inputs, padding), atol=0.1, rtol=0.1)
    output.float().square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


WRONG_BUILDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"mixer": "magic"}, ValueError, "mixer: got 'magic', expected one of 'distance_aware', 'vanilla', "),
    ({"num_layers": 0}, ValueError, "num_layers: got 0, expected a positive int"),
    ({"dropout": 1.5}, ValueError, r"dropout: got 1.5, expected a float in \[0, 1\)"),
    ({"attention_dropout": -1}, ValueError, r"attention_dropout: got -1, expected a float in \[0, 1\)"),
    ({"feedforward_dim": 0}, ValueError, "feedforward_dim: got 0, expected a positive int"),
    ({"mixer_options": {"maping": 1}}, ValueError, "mixer_options: got 'maping', expected one of 'adjust', 'backend'"),
    ({"mixer_options": {"dropout": 0.1}}, ValueError, "mixer_options: got 'dropout', expected one of 'adjust', "),
    ({"head_dim": None}, ValueError, "embed_dim: got 11, expected a multiple of num_heads = 3"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG_BUILDS)
def test_bad_builds_are_named(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        Encoder(**{"embed_dim": EMBED_DIM, "num_heads": HEADS, "head_dim": HEAD_DIM, **wrong})


def test_bad_calls_are_named() -> None:
    encoder = make_encoder("none").float()
    good = torch.zeros(BATCH, LENGTH, EMBED_DIM)
    with pytest.raises(ValueError, match=r"^inputs: got shape \(5, 11\), expected \(batch, length, embed_dim\)"):
        encoder(good[0])
    with pytest.raises(ValueError, match=r"^inputs: got shape \(2, 5, 7\), expected .* = \(2, 5, 11\)"):
        encoder(good[..., :7])
    with pytest.raises(TypeError, match=r"^inputs: got dtype torch.int64, expected a floating-point tensor"):
        encoder(good.long())
    with pytest.raises(ValueError, match=r"^key_padding_mask: got shape \(2, 4\), expected .* = \(2, 5\)"):
        encoder(good, torch.zeros(BATCH, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^memory: got 0 states, expected one per layer, 2"):
        encoder.forward_segment(good, SegmentMemory((), torch.zeros(BATCH, 0, dtype=torch.bool)), memory_length=3)
    with pytest.raises(TypeError, match=r"^memory: got tuple, expected what forward_segment returned"):
        encoder.forward_segment(good, (good,), memory_length=3)  # type: ignore[arg-type]
    _, memory = encoder.forward_segment(good, memory_length=3)
    with pytest.raises(ValueError, match=r"^memory: got shape \(2, 3, 11\), expected .* = \(1, 3, 11\)"):
        encoder.forward_segment(good[:1], memory, memory_length=3)
    with pytest.raises(TypeError, match=r"^attention: got MultiheadAttention, expected an instance of a class of MIX"):
        EncoderLayer(nn.MultiheadAttention(8, 2), feedforward_dim=8)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match=r"does not say how to mix; use a class of MIXERS"):
        MultiheadAttention(EMBED_DIM, HEADS, HEAD_DIM)(good, good, good)
    with pytest.raises(ValueError, match=r"^memory_length: got 0, expected a positive int"):
        encoder.forward_segment(good, memory_length=0)
    with pytest.raises(ValueError, match=r"^mixer: got 'vanilla', which adds absolute positions"):
        make_encoder("vanilla").forward_segment(good.double(), memory_length=3)
