from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import StaticCache

from datransformer.hf import DATransformerForCausalLM
from datransformer.nn.mixers import MIXERS

Small = Callable[..., Any]
B, N, V = 3, 11, 31
LENGTHS = torch.tensor([[11], [7], [2]])


@pytest.fixture(params=MIXERS)
def model(request: pytest.FixtureRequest, small: Small) -> Any:
    config = small(attention=request.param, head_dim=4, initializer_range=0.5, eos_token_id=2)
    return DATransformerForCausalLM(config).eval()


@torch.no_grad()
def test_the_cache_changes_no_logits(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    real = torch.arange(N) >= N - LENGTHS
    whole = model(tokens, real).logits
    cache, parts = None, []
    for start, end in ((0, 5), (5, 6), (6, 9), (9, 11)):
        output = model(tokens[:, start:end], real[:, :end], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    assert cache is not None
    assert cache.get_seq_length() == N
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real])
    assert model(tokens, use_cache=False).past_key_values is None


@torch.no_grad()
def test_padding_on_the_left_changes_no_logits(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    padded = model(tokens, torch.arange(N) >= N - LENGTHS).logits
    for row, length in enumerate(LENGTHS.flatten().tolist()):
        torch.testing.assert_close(padded[row, N - length :], model(tokens[row : row + 1, N - length :]).logits[0])


def test_generate_answers_a_batch_as_each_text_alone(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    real = torch.arange(N) >= N - LENGTHS
    tokens = tokens.masked_fill(~real, 0)
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    together = model.generate(tokens, attention_mask=real, **options)[:, N:]
    for row, length in enumerate(LENGTHS.flatten().tolist()):
        alone = model.generate(tokens[row : row + 1, N - length :], **options)[:, length:]
        assert torch.equal(together[row : row + 1], alone)
    assert len(together.unique()) > 1  # not one word again and again


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"cache_implementation": "static"},
        {"cache_implementation": "offloaded"} if torch.cuda.is_available() else {"num_beams": 2},
        {"do_sample": True, "top_k": 5},
        {"repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_every_way_to_generate_is_as_without_a_cache(small: Small, options: dict[str, Any]) -> None:
    model = DATransformerForCausalLM(small(initializer_range=0.5)).eval()
    tokens = torch.randint(3, V, (B, N))
    real = torch.arange(N) >= N - LENGTHS
    common: dict[str, Any] = {"attention_mask": real, "max_new_tokens": 6, "do_sample": False, **options}
    torch.manual_seed(1)
    cached = model.generate(tokens, **common)
    common.pop("cache_implementation", None)
    torch.manual_seed(1)
    assert torch.equal(cached, model.generate(tokens, use_cache=False, **common))
    assert cached.shape == (B, N + 6)


@torch.no_grad()
def test_a_static_cache_is_read_as_far_as_it_is_filled(small: Small) -> None:
    model = DATransformerForCausalLM(small()).eval()
    tokens = torch.randint(3, V, (B, N))
    cache = StaticCache(config=model.config, max_cache_len=2 * N)
    parts = [model(tokens[:, :7], past_key_values=cache).logits, model(tokens[:, 7:], past_key_values=cache).logits]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits)


def test_the_end_of_a_text_ends_it(small: Small) -> None:
    model = DATransformerForCausalLM(small(eos_token_id=2)).eval()
    with torch.no_grad():
        model.lm_head.bias[2] = 100.0
    generated = model.generate(torch.randint(3, V, (1, N)), max_new_tokens=5, do_sample=False)
    assert generated.shape == (1, N + 1)
    assert generated[0, -1] == 2


# What transformers' GenerationTesterMixin holds of a model that generates; its released files do not have that class.
GREEDY: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
EVERYTHING: dict[str, Any] = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_attentions": True,
    "output_hidden_states": True,
}


def test_generate_hands_out_scores_weights_and_states(small: Small) -> None:
    model = DATransformerForCausalLM(small()).eval()
    tokens = torch.randint(3, V, (B, N))
    for beams in (1, 2):
        found = model.generate(tokens, num_beams=beams, **GREEDY, **EVERYTHING)
        rows, heads, width = B * beams, model.config.num_attention_heads, model.config.hidden_size
        assert [step.shape for step in found.scores] == [(rows, V)] * 4
        assert [step.shape for step in found.logits] == [(rows, V)] * 4
        for step, (weights, states) in enumerate(zip(found.attentions, found.hidden_states, strict=True)):
            queries = N if step == 0 else 1
            assert [layer.shape for layer in weights] == [(rows, heads, queries, N + step)] * 2
            assert [layer.shape for layer in states] == [(rows, queries, width)] * 3
        assert found.past_key_values.get_seq_length() == N + 3


def test_word_vectors_in_place_of_ids_generate_the_same(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    vectors = model.get_input_embeddings()(tokens)
    expected = model.generate(tokens, **GREEDY)
    assert torch.equal(model.generate(inputs_embeds=vectors, **GREEDY), expected[:, N:])
    assert torch.equal(model.generate(tokens, inputs_embeds=vectors, use_cache=False, **GREEDY), expected)


def test_generation_goes_on_from_a_cache(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    expected = model.generate(tokens, **{**GREEDY, "max_new_tokens": 7, "min_new_tokens": 7})
    first = model.generate(tokens, return_dict_in_generate=True, **{**GREEDY, "max_new_tokens": 3, "min_new_tokens": 3})
    assert torch.equal(model.generate(first.sequences, past_key_values=first.past_key_values, **GREEDY), expected)


@pytest.mark.parametrize("way", ["assistant", "prompt lookup"])
def test_a_guessed_continuation_changes_nothing(model: DATransformerForCausalLM, small: Small, way: str) -> None:
    tokens = torch.randint(3, V, (1, N))
    options: dict[str, Any] = {"prompt_lookup_num_tokens": 2}
    if way == "assistant":
        options = {"assistant_model": DATransformerForCausalLM(small(num_hidden_layers=1)).eval()}
    assert torch.equal(model.generate(tokens, **options, **GREEDY), model.generate(tokens, **GREEDY))


@torch.no_grad()
def test_only_the_logits_that_are_asked_for(model: DATransformerForCausalLM) -> None:
    tokens = torch.randint(3, V, (B, N))
    whole = model(tokens).logits
    torch.testing.assert_close(model(tokens, logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(model(tokens, logits_to_keep=torch.tensor([1, 4])).logits, whole[:, [1, 4]])
