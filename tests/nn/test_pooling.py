import pytest
import torch
from torch import Tensor

from datransformer import POOLINGS, AdditiveAttentionPooling, FirstTokenPooling, MaxPooling, MeanPooling

BATCH, LENGTH, EMBED_DIM = 3, 5, 7


def make_inputs() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64, requires_grad=True)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = True
    padding[1, :2] = True
    return inputs, padding


def test_mean_max_and_first_by_hand() -> None:
    inputs, padding = make_inputs()
    mean = MeanPooling(EMBED_DIM)(inputs, padding)
    torch.testing.assert_close(mean, torch.stack([inputs[0, :3].mean(0), inputs[1, 2:].mean(0), inputs[2].mean(0)]))
    most = MaxPooling(EMBED_DIM)(inputs, padding)
    torch.testing.assert_close(most, torch.stack([inputs[0, :3].amax(0), inputs[1, 2:].amax(0), inputs[2].amax(0)]))
    first = FirstTokenPooling(EMBED_DIM)(inputs, padding)
    torch.testing.assert_close(first, torch.stack([inputs[0, 0], inputs[1, 2], inputs[2, 0]]))


def test_additive_attention_by_hand() -> None:
    inputs, padding = make_inputs()
    pooling = AdditiveAttentionPooling(EMBED_DIM, 4).double()
    for row, seen in enumerate((slice(0, 3), slice(2, 5), slice(0, 5))):
        tokens = inputs[row, seen]
        scores = torch.tanh(tokens @ pooling.hidden.weight.T + pooling.hidden.bias) @ pooling.query.weight[0]
        expected = (scores.exp() / scores.exp().sum()) @ tokens
        torch.testing.assert_close(pooling(inputs, padding)[row], expected)


@pytest.mark.parametrize("name", POOLINGS)
def test_every_pooling(name: str) -> None:
    pooling = POOLINGS[name](EMBED_DIM).double()
    inputs, padding = make_inputs()
    torch.testing.assert_close(pooling(inputs), pooling(inputs, torch.zeros_like(padding)))
    torch.testing.assert_close(pooling(inputs, padding)[:1], pooling(inputs[:1, :3]))
    padding[2] = True
    pooled = pooling(inputs, padding)
    assert pooled.shape == (BATCH, EMBED_DIM)
    assert pooled[2].count_nonzero() == 0
    assert torch.autograd.gradcheck(lambda tensor: pooling(tensor, padding), inputs)


@pytest.mark.parametrize("name", POOLINGS)
def test_bad_input_is_named(name: str) -> None:
    pooling = POOLINGS[name](EMBED_DIM)
    with pytest.raises(ValueError, match=r"^inputs: got shape \(5, 7\), expected \(batch, length, embed_dim\)"):
        pooling(torch.zeros(LENGTH, EMBED_DIM))
    with pytest.raises(ValueError, match=r"^inputs: got shape \(3, 5, 6\), expected .* = \(3, 5, 7\)"):
        pooling(torch.zeros(BATCH, LENGTH, 6))
    with pytest.raises(TypeError, match=r"^key_padding_mask: got dtype torch.float32, expected torch.bool"):
        pooling(torch.zeros(BATCH, LENGTH, EMBED_DIM), torch.zeros(BATCH, LENGTH))
    with pytest.raises(ValueError, match=r"^embed_dim: got 0, expected a positive int"):
        POOLINGS[name](0)
