from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers import AutoModelForSequenceClassification as AutoClassifier

from datransformer import Encoder, distance_aware_attention
from datransformer.hf import (
    DATransformerForCausalLM,
    DATransformerForMaskedLM,
    DATransformerForSequenceClassification,
    DATransformerModel,
    parameter_groups,
)
from datransformer.nn import distance_aware
from datransformer.nn.mixers import MIXERS

Small = Callable[..., Any]
B, N, V = 2, 7, 31
AUTO = {
    AutoModel: DATransformerModel,
    AutoClassifier: DATransformerForSequenceClassification,
    AutoModelForMaskedLM: DATransformerForMaskedLM,
    AutoModelForCausalLM: DATransformerForCausalLM,
}


def ids() -> torch.Tensor:
    return torch.randint(3, V, (B, N))


def padded() -> torch.Tensor:
    """Which tokens are real: five and seven."""
    return torch.arange(N) < torch.tensor([[5], [7]])


@pytest.mark.parametrize("attention", MIXERS)
@pytest.mark.parametrize("causal", [False, True])
def test_is_embedding_and_encoder(small: Small, attention: str, causal: bool) -> None:
    config = small(attention=attention, head_dim=4, is_causal=causal)
    model = DATransformerModel(config).eval()
    encoder = Encoder(14, 3, 4, num_layers=2, mixer=attention, feedforward_dim=11).eval()
    encoder.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name.startswith("layers.")})
    tokens, real = ids(), padded()
    expected = encoder(model.embed_tokens(tokens), ~real, causal=causal)
    torch.testing.assert_close(model(tokens, real.long()).last_hidden_state[real], expected[real])


def test_a_classifier_does_not_see_padding(small: Small) -> None:
    model = DATransformerForSequenceClassification(small(num_labels=5)).eval()
    tokens, real = ids(), padded()
    logits = model(tokens, real).logits
    assert logits.shape == (B, 5)
    torch.testing.assert_close(logits[:1], model(tokens[:1, :5]).logits)
    torch.testing.assert_close(logits[1:], model(tokens[1:]).logits)


@pytest.mark.parametrize("auto", AUTO)
def test_round_trip_through_the_auto_class(small: Small, tmp_path: Path, auto: Any) -> None:
    config = small(num_labels=5, attention_options={"mapping": "clip"}, pooling="mean")
    model = auto.from_config(config).eval()
    assert type(model) is AUTO[auto]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "distance_" in name:
                parameter.uniform_()
    model.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert AutoConfig.from_pretrained(tmp_path).attention_options == {"mapping": "clip"}
    tokens = ids()
    assert torch.equal(again(tokens)[0], model(tokens)[0])


def test_a_causal_model_leaves_the_config_it_was_given(small: Small) -> None:
    config = small()
    assert DATransformerForCausalLM(config).config.is_causal
    assert not config.is_causal


@pytest.mark.parametrize("model_class", AUTO.values())
def test_losses_and_gradients_of_every_parameter(small: Small, model_class: Any) -> None:
    if model_class is DATransformerModel:
        return
    model = model_class(small(num_labels=5, hidden_dropout_prob=0.0))
    classifies = model_class is DATransformerForSequenceClassification
    labels = torch.tensor([1, 4]) if classifies else ids()
    output = model(ids(), padded(), labels=labels)
    logits = output.logits
    if model_class is DATransformerForCausalLM:
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_attention_weights_and_hidden_states(small: Small) -> None:
    model = DATransformerForCausalLM(small()).eval()
    tokens, real = ids(), padded()
    output = model(tokens, real, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in output.attentions] == [(B, 3, N, N)] * 2
    assert [states.shape for states in output.hidden_states] == [(B, N, 14)] * 3
    for weights in output.attentions:
        assert not weights.triu(1).any()
        assert not weights[0, :, :, 5:].any()
        torch.testing.assert_close(weights.sum(-1)[1], torch.ones(3, N))
    torch.testing.assert_close(output.logits, model(tokens, real).logits)
    model.config.output_attentions = True
    assert len(model(tokens, return_dict=False)) == 3  # logits, cache, attentions


def test_masks_over_pairs_of_tokens(small: Small) -> None:
    model = DATransformerModel(small(attention_options={"adjust": "late_add"})).eval()
    tokens, real = ids(), padded()
    expected = model(tokens, real).last_hidden_state
    pairs = real[:, None, None, :].expand(B, 1, N, N)
    torch.testing.assert_close(model(tokens, pairs).last_hidden_state, expected)
    added = torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)
    torch.testing.assert_close(model(tokens, added).last_hidden_state, expected)
    with pytest.raises(ValueError, match=r"attention_mask: got shape \(2, 7, 7\), expected \(batch, length\)"):
        model(tokens, torch.ones(B, N, N))


def test_the_choice_of_a_backend_stays_automatic(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def record(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return real_function(*args, **options)

    real_function = distance_aware_attention
    monkeypatch.setattr(distance_aware, "distance_aware_attention", record)
    DATransformerForCausalLM(small())(ids(), padded())
    assert len(calls) == 2
    for options in calls:
        assert options["backend"] == "auto"
        assert options["attn_mask"] is None
        assert options["causal"] is True
        assert options["key_padding_mask"].shape == (B, N)
        assert "return_weights" not in options


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(small: Small, reentrant: bool) -> None:
    model = DATransformerForCausalLM(small(hidden_dropout_prob=0.0)).train()
    tokens = ids()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])


def test_first_values_of_w_and_v_are_the_librarys(small: Small, tmp_path: Path) -> None:
    model: Any = DATransformerModel(small(attention_options={"mapping": "linear"}))
    for layer in model.layers:
        assert layer.attention.distance_weight.tolist() == [-0.5, 0.0, 0.5]
        assert layer.attention.distance_shift.tolist() == [1.0, 1.0, 1.0]
        assert layer.attention.in_proj_weight.std() > 0.1  # not the 0.02 of transformers
    weights = {name: tensor for name, tensor in model.state_dict().items() if "layers.1" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    again = DATransformerModel.from_pretrained(tmp_path)  # what no file has is set as it is in a new model
    assert again.layers[1].attention.distance_weight.tolist() == [-0.5, 0.0, 0.5]
    assert again.layers[1].attention.distance_shift.tolist() == [1.0, 1.0, 1.0]
    assert 0.1 < again.layers[1].attention.in_proj_weight.std() < 1


def test_w_and_v_stay_in_fp32(small: Small, tmp_path: Path) -> None:
    DATransformerForCausalLM(small()).save_pretrained(tmp_path)
    model = DATransformerForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    attention = model.model.layers[0].attention
    assert attention.distance_weight.dtype == attention.distance_shift.dtype == torch.float32
    assert attention.in_proj_weight.dtype == torch.bfloat16
    assert model(ids()).logits.dtype == torch.bfloat16
    assert not DATransformerForCausalLM(small(attention="alibi"))._keep_in_fp32_modules_strict  # which has neither


def test_weight_decay_is_for_matrices(small: Small) -> None:
    model = DATransformerForMaskedLM(small())
    decayed, others = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(parameter)].rpartition(".")[2] for parameter in others["params"]} == {
        "weight",  # of norms
        "bias",
        "in_proj_bias",
        "distance_weight",
        "distance_shift",
    }
    assert len(decayed["params"]) + len(others["params"]) == len(names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "none_such"}, "attention: got 'none_such', expected one of 'distance_aware', 'vanilla'"),
        ({"pooling": "median"}, "pooling: got 'median', expected one of 'additive'"),
        ({"num_hidden_layers": 0}, "layers: got 0, expected a positive int"),
        ({"hidden_dropout_prob": 1.5}, r"dropout: got 1.5, expected a float in \[0, 1\)"),
    ],
)
def test_settings_that_cannot_be(small: Small, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_calls_that_cannot_be(small: Small) -> None:
    model = DATransformerModel(small())
    with pytest.raises(ValueError, match="expected either input_ids or inputs_embeds"):
        model()
    cache = DATransformerForCausalLM(small())(ids()).past_key_values
    with pytest.raises(ValueError, match="past_key_values: got a cache, expected None: the model is not causal"):
        model(ids(), past_key_values=cache)
