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
