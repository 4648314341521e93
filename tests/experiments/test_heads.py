"""What attention looks like, in numbers whose right values are known."""

import pytest
import torch
from torch import nn

from datransformer.experiments.heads import _describe, measure_heads
from datransformer.models.build import build_model
from datransformer.models.config import ModelConfig
from datransformer.nn.mixers import MIXERS


def test_equal_weights_are_soft_and_neither_near_nor_far() -> None:
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    weights = (~padding)[:, None, None].double().expand(2, 3, 5, 5)
    sums = _describe(weights, padding)
    assert sums["queries"] == 8
    torch.testing.assert_close(sums["entropy"] / 8, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(sums["distance"] / 8, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(sums["keys"] / 8, torch.ones(3, dtype=torch.float64))


def test_one_key_is_sharp_and_its_distance_counts() -> None:
    weights = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    weights[0, 0] = torch.eye(5)  # itself
    weights[0, 1, :, 0] = 1  # the first
    sums = _describe(weights, None)
    assert sums["entropy"].tolist() == [0, 0]
    assert (sums["keys"] / 5).tolist() == pytest.approx([0.2, 0.2])
    means = torch.tensor([2.0, 1.4, 1.2, 1.4, 2.0])
    expected = (torch.arange(5) / means).sum().item()
    assert sums["distance"].tolist() == pytest.approx([0, expected])


def test_texts_of_one_word_say_nothing() -> None:
    padding = torch.tensor([[False, True, True]])
    assert _describe(torch.ones(1, 2, 3, 3).double(), padding)["queries"] == 0


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_at_every_level(mixer: str) -> None:
    config = ModelConfig(attention=mixer, embed_dim=12, heads=3, head_dim=4)
    model = build_model("document", 50, 2, config).eval()
    tokens = torch.randint(1, 50, (7, 5))
    tokens[0, 3:] = 0
    batch = {"tokens": tokens, "sentences": torch.tensor([[0, 1, 2, -1], [3, 4, 5, 6]])}
    before = model(**batch)
    found = measure_heads(model, [batch, batch])
    assert len(found) == 2
    for numbers in found.values():
        assert all(len(values) == 3 and all(0 < value < 3 for value in values) for values in numbers.values())
    assert not any(module._forward_pre_hooks for module in model.modules() if isinstance(module, nn.Module))
    torch.testing.assert_close(model(**batch), before)
