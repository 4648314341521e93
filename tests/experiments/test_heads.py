"""What attention looks like, in numbers whose right values are known."""

import pytest
import torch
from torch import nn

from datransformer.experiments.beyond import SignedDistance
from datransformer.experiments.heads import _describe, draw_maps, measure_heads, starting_distances, without_distances
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
    assert not is_watched(model)
    torch.testing.assert_close(model(**batch), before)


@pytest.mark.parametrize("mixer", MIXERS)
def test_texts_are_measured_a_few_at_a_time_as_all_together(mixer: str) -> None:
    model = build_model("sentence", 50, 2, ModelConfig(attention=mixer, embed_dim=12, heads=3, head_dim=4)).eval()
    tokens = torch.randint(1, 50, (7, 11))
    tokens[2:, 6:] = 0
    together = measure_heads(model, [{"tokens": tokens}])
    apart = measure_heads(model, [{"tokens": tokens[:2]}, {"tokens": tokens[2:, :6]}])
    for name, numbers in together.items():
        for key, values in numbers.items():
            assert apart[name][key] == pytest.approx(values, abs=1e-5)


def test_without_distances_the_order_of_words_does_not_matter() -> None:
    torch.manual_seed(0)
    config = ModelConfig(embed_dim=12, heads=3, head_dim=4)
    model = build_model("document", 50, 2, config).eval()
    tokens, sentences = torch.randint(1, 50, (4, 7)), torch.arange(4)[None]
    batch = {"tokens": tokens, "sentences": sentences}
    turned = {"tokens": tokens[:, torch.randperm(7)], "sentences": sentences[:, [2, 0, 3, 1]]}
    before = model(**batch)
    assert not torch.allclose(model(**turned), before, atol=1e-6)
    with without_distances(model):
        torch.testing.assert_close(model(**turned), model(**batch))
    assert torch.equal(model(**batch), before)


def test_without_distances_both_sides_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXERS, "signed_distance", SignedDistance)
    torch.manual_seed(0)
    config = ModelConfig(attention="signed_distance", embed_dim=12, heads=3, head_dim=4)
    model = build_model("sentence", 50, 2, config).eval()
    tokens = torch.randint(1, 50, (2, 7))
    with without_distances(model):
        torch.testing.assert_close(model(tokens[:, torch.arange(7).flip(0)]), model(tokens))


def is_watched(model: nn.Module) -> bool:
    return any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("mixer", ["vanilla", "distance_aware"])
def test_maps_are_the_weights_between_the_words(mixer: str) -> None:
    model = build_model("sentence", 50, 2, ModelConfig(attention=mixer, embed_dim=12, heads=3, head_dim=4)).eval()
    inputs, words = {"tokens": torch.tensor([[7, 3, 11, 2, 5]])}, ["one", "two", "|", "$4", "five"]
    maps = draw_maps(model, inputs, words)
    assert maps["tokens"] == words
    ((name, heads),) = maps["levels"].items()
    assert name == "text.sequence.encoder.layers.0.attention"
    weights = torch.tensor(heads)
    assert weights.shape == (3, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5), atol=0.003, rtol=0)
    assert weights.std() > 0
    assert all(number == round(number, 3) for head in heads for row in head for number in row)
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean(-1) / torch.tensor(5.0).log()
    assert entropy.tolist() == pytest.approx(measure_heads(model, [inputs])[name]["entropy"], abs=0.005)
    assert not is_watched(model)


def test_maps_leave_out_what_is_not_between_words() -> None:
    model = build_model("document", 50, 2, ModelConfig(embed_dim=12, heads=3, head_dim=4)).eval()
    inputs = {"tokens": torch.tensor([[7, 3, 11]]), "sentences": torch.tensor([[0]])}
    assert list(draw_maps(model, inputs, ["a", "b", "c"])["levels"]) == ["text.sequence.encoder.layers.0.attention"]
    with pytest.raises(ValueError, match="words: got 2, expected one for each token of one text"):
        draw_maps(model, inputs, ["a", "b"])


def test_where_heads_start() -> None:
    start = starting_distances({}, 5)
    assert start["distance_weight"] == pytest.approx([-0.5, -0.25, 0, 0.25, 0.5])
    assert start["distance_shift"] == [0] * 5
    assert starting_distances({"mapping": "clip", "distance_weight_init": 2}, 3) == {
        "distance_weight": [2] * 3, "distance_shift": [1] * 3,
    }  # fmt: skip
