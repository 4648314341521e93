import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from datransformer import ADJUSTMENTS, BACKENDS, MAPPINGS, distance_aware_attention, explain_backends

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 5, 7
PAIRS = list(itertools.product(MAPPINGS, ADJUSTMENTS))


def make_inputs(
    dtype: torch.dtype = torch.float64, query_length: int = LENGTH, device: str = "cpu", length: int = LENGTH
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = (BATCH, HEADS, length, HEAD_DIM)
    query = torch.randn(BATCH, HEADS, query_length, HEAD_DIM, dtype=dtype, device=device)
    key, value = torch.randn(2, *shape, dtype=dtype, device=device)
    weight = torch.tensor([-0.7, 0.01, 0.6], dtype=dtype, device=device)
    shift = torch.tensor([0.3, -0.4, 1.1], dtype=dtype, device=device)
    tensors = (query, key, value, weight, shift)
    return tuple(tensor.requires_grad_() for tensor in tensors)  # type: ignore[return-value]


def make_padding(device: str = "cpu", length: int = LENGTH) -> Tensor:
    padding = torch.zeros(BATCH, length, dtype=torch.bool, device=device)
    padding[0, length - 2 :] = True
    padding[1, 0] = True
    return padding


LITERAL_MAPPINGS: dict[str, Callable[[float, float], float]] = {
    "clip": lambda x, shift: min(x, shift),
    "linear": lambda x, shift: x + shift,
    "exponent": lambda x, shift: math.exp(x),
    "sigmoid": lambda x, shift: 1 / (1 + math.exp(-x)),
    "learnable_sigmoid": lambda x, shift: (1 + math.exp(shift)) / (1 + math.exp(shift - x)),
}


def softmax(scores: dict[int, float]) -> dict[int, float]:
    total = sum(math.exp(score) for score in scores.values())
    return {key: math.exp(score) / total for key, score in scores.items()}


def literal_weights(
    query: Tensor, keys: Tensor, position: int, weight: float, shift: float, mapping: str, adjust: str, seen: list[int]
) -> dict[int, float]:
    """One query's weights over the keys it sees, pair by pair, as the paper writes them."""
    raw = {j: (query @ keys[j]).item() for j in seen}
    f = {j: LITERAL_MAPPINGS[mapping](weight * abs(position - j), shift) for j in seen}
    root = math.sqrt(HEAD_DIM)
    if adjust == "early_multiply":
        return softmax({j: max(raw[j], 0.0) * f[j] / root for j in seen})
    if adjust == "early_add":
        return softmax({j: raw[j] / root + f[j] for j in seen})
    normalised = softmax({j: raw[j] / root for j in seen})
    return {j: normalised[j] * f[j] if adjust == "late_multiply" else normalised[j] + f[j] for j in seen}


@pytest.mark.parametrize("query_length", [LENGTH, 2, 11])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("mapping", "adjust"), PAIRS)
def test_matches_the_equations_pair_by_pair(mapping: str, adjust: str, causal: bool, query_length: int) -> None:
    query, key, value, weight, shift = (tensor.detach() for tensor in make_inputs(query_length=query_length))
    padding = make_padding()
    output, weights = distance_aware_attention(
        query, key, value, weight, shift,
        mapping=mapping, adjust=adjust, key_padding_mask=padding, causal=causal, return_weights=True,
    )  # fmt: skip
    expected = torch.zeros_like(weights)
    for b, h, i in itertools.product(range(BATCH), range(HEADS), range(query_length)):
        position = i + LENGTH - query_length
        seen = [j for j in range(LENGTH) if not padding[b, j] and not (causal and j > position)]
        row = literal_weights(
            query[b, h, i], key[b, h], position, weight[h].item(), shift[h].item(), mapping, adjust, seen
        )
        for j, number in row.items():
            expected[b, h, i, j] = number
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, expected @ value)


@pytest.mark.parametrize(("mapping", "adjust"), PAIRS)
def test_gradcheck(mapping: str, adjust: str) -> None:
    padding = make_padding()
    padding[1] = True  # a text of nothing but padding

    def attend(*inputs: Tensor) -> Any:
        return distance_aware_attention(
            *inputs, mapping=mapping, adjust=adjust, key_padding_mask=padding, return_weights=True
        )

    assert torch.autograd.gradcheck(attend, make_inputs())
    assert torch.autograd.gradcheck(attend, make_inputs(query_length=2))


def test_gradgradcheck_of_the_default() -> None:
    def attend(*inputs: Tensor) -> Tensor:
        return distance_aware_attention(*inputs, key_padding_mask=make_padding(), causal=True)

    assert torch.autograd.gradgradcheck(attend, make_inputs())


@pytest.mark.parametrize(("mapping", "adjust"), PAIRS)
def test_padding_and_what_stands_in_it_do_not_matter(mapping: str, adjust: str) -> None:
    """Cutting the padding off, and rewriting it, leave every output as it was."""
    query, key, value, weight, shift = make_inputs()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[:, 3:] = True
    arguments = {"mapping": mapping, "adjust": adjust}
    cut = distance_aware_attention(query[:, :, :3], key[:, :, :3], value[:, :, :3], weight, shift, **arguments)  # type: ignore[call-overload]
    for content in (key, key * 100 + 3):
        padded = distance_aware_attention(
            query,
            torch.cat((key[:, :, :3], content[:, :, 3:]), 2),
            torch.cat((value[:, :, :3], content[:, :, 3:]), 2),
            weight,
            shift,
            key_padding_mask=padding,
            **arguments,  # type: ignore[call-overload]
        )
        torch.testing.assert_close(padded[:, :, :3], cut)


@pytest.mark.parametrize(("mapping", "adjust"), PAIRS)
def test_causal_ignores_the_future(mapping: str, adjust: str) -> None:
    query, key, value, weight, shift = make_inputs()
    whole = distance_aware_attention(query, key, value, weight, shift, mapping=mapping, adjust=adjust, causal=True)
    # Decoding with a cache: the last query alone, and a prefix of the sequence.
    last = distance_aware_attention(
        query[:, :, -1:], key, value, weight, shift, mapping=mapping, adjust=adjust, causal=True
    )
    prefix = distance_aware_attention(
        query[:, :, :2], key[:, :, :2], value[:, :, :2], weight, shift, mapping=mapping, adjust=adjust, causal=True
    )
    torch.testing.assert_close(last, whole[:, :, -1:])
    torch.testing.assert_close(prefix, whole[:, :, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", ["padding", "attn_mask", "causal"])
def test_a_query_with_no_visible_key_gets_zeros(dtype: torch.dtype, masked: str, device: str) -> None:
    for mapping, adjust in PAIRS:
        inputs = make_inputs(dtype, query_length=LENGTH + 1, device=device)
        mask = torch.zeros(LENGTH + 1, LENGTH, dtype=torch.bool, device=device)
        mask[0] = True
        padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool, device=device)
        padding[0] = True
        output, weights = distance_aware_attention(
            *inputs,
            mapping=mapping,
            adjust=adjust,
            key_padding_mask=padding if masked == "padding" else None,
            attn_mask=mask if masked == "attn_mask" else None,
            causal=masked == "causal",  # one query more than keys: the first one comes before all keys
            return_weights=True,
        )
        blind = (slice(0, 1),) if masked == "padding" else (slice(None), slice(None), slice(0, 1))
        assert output[blind].count_nonzero() == 0
        assert weights[blind].count_nonzero() == 0
        assert output.isfinite().all()
        output.float().square().sum().backward()
        for tensor in inputs:
            assert tensor.grad is None or tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mapping", "adjust"), PAIRS)
def test_finite_at_the_extremes(mapping: str, adjust: str, dtype: torch.dtype, device: str) -> None:
    """|w| up to 100, |v| up to 50, over 257 tokens with scores large enough to saturate the softmax."""
    corners = torch.tensor(list(itertools.product([-100.0, -1e-4, 0.0, 100.0], [-50.0, 0.0, 50.0])))
    weight, shift = (column.to(device, dtype).requires_grad_() for column in corners.unbind(-1))
    query, key, value = (
        (4 * torch.randn(1, len(corners), 257, HEAD_DIM, device=device)).to(dtype).requires_grad_() for _ in range(3)
    )
    padding = torch.zeros(1, 257, dtype=torch.bool, device=device)
    padding[0, 200:] = True
    output, weights = distance_aware_attention(
        query, key, value, weight, shift, mapping=mapping, adjust=adjust, key_padding_mask=padding, return_weights=True
    )
    assert output.dtype == weights.dtype == dtype
    assert output.isfinite().all()
    assert weights.isfinite().all()
    output.backward(torch.randn_like(output))
    for tensor in (query, key, value, weight, shift):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_its_dtype_with_distances_in_fp32(dtype: torch.dtype, device: str) -> None:
    """1,201 tokens: bf16 cannot count them, so a distance computed there would be visibly wrong."""
    query, key, value, weight, shift = make_inputs(torch.float32, device=device, length=1201, query_length=1201)
    with torch.no_grad():
        weight.mul_(0.01)
    with torch.autocast(device, dtype=dtype):
        output, weights = distance_aware_attention(query, key, value, weight, shift, return_weights=True)
    assert output.dtype == weights.dtype == dtype
    rounded = [tensor.to(dtype).double() for tensor in (query, key, value)]
    exact = distance_aware_attention(rounded[0], rounded[1], rounded[2], weight.double(), shift.double())
    error = (output.double() - exact).norm() / exact.norm()
    assert error < 4 * torch.finfo(dtype).eps
    output.sum().backward()
    for tensor in (query, key, value, weight, shift):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.isfinite().all()


def test_autocast_leaves_fp64_alone() -> None:
    inputs = make_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = distance_aware_attention(*inputs)
    assert torch.equal(output, distance_aware_attention(*inputs))


def test_weight_zero_is_attention_over_relu_scores() -> None:
    query, key, value, weight, shift = make_inputs()
    got = distance_aware_attention(query, key, value, torch.zeros_like(weight), shift, scale=0.25)
    expected = torch.softmax((query @ key.mT).relu() * 0.25, -1) @ value
    torch.testing.assert_close(got, expected)


def test_negative_weight_looks_near_and_positive_weight_looks_far() -> None:
    query = key = torch.ones(1, 3, 64, 8)
    weight, shift = torch.tensor([-0.5, 0.0, 0.5]), torch.zeros(3)
    _, weights = distance_aware_attention(query, key, key, weight, shift, return_weights=True)
    distances = (torch.arange(64)[:, None] - torch.arange(64)).abs()
    near, plain, far = (weights[0] * distances).sum(-1).mean(-1).tolist()
    assert near < plain < far


def test_attn_mask_bool_and_float() -> None:
    inputs = make_inputs()
    mask = torch.rand(LENGTH, LENGTH) < 0.4
    mask.fill_diagonal_(False)
    as_float = torch.zeros(LENGTH, LENGTH).masked_fill(mask, -torch.inf)
    hidden = distance_aware_attention(*inputs, attn_mask=mask)
    torch.testing.assert_close(distance_aware_attention(*inputs, attn_mask=as_float), hidden)
    everywhere = mask.expand(BATCH, HEADS, -1, -1)
    torch.testing.assert_close(distance_aware_attention(*inputs, attn_mask=everywhere), hidden)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    torch.testing.assert_close(
        distance_aware_attention(*inputs, attn_mask=causal), distance_aware_attention(*inputs, causal=True)
    )
    # A finite bias is added to the adjusted scores.
    query, key, value, weight, shift = inputs
    bias = torch.randn(1, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    got = distance_aware_attention(query, key, value, torch.zeros_like(weight), shift, attn_mask=bias)
    torch.testing.assert_close(got, torch.softmax((query @ key.mT).relu() / HEAD_DIM**0.5 + bias, -1) @ value)


def test_dropout_keeps_the_mean_and_follows_the_seed() -> None:
    inputs = make_inputs(torch.float32)
    outputs = torch.stack([distance_aware_attention(*inputs, dropout_p=0.3) for _ in range(4000)])
    torch.testing.assert_close(outputs.mean(0), distance_aware_attention(*inputs), atol=0.06, rtol=0)
    torch.manual_seed(5)
    first, weights = distance_aware_attention(*inputs, dropout_p=0.3, return_weights=True)
    torch.manual_seed(5)
    assert torch.equal(first, distance_aware_attention(*inputs, dropout_p=0.3, backend="reference"))
    assert 0.1 < (weights == 0).float().mean() < 0.5
    torch.testing.assert_close(weights @ inputs[2], first)  # the weights are those that met the values


def test_reference_by_name_and_auto_agree() -> None:
    inputs = make_inputs()
    auto = distance_aware_attention(*inputs)
    assert torch.equal(auto, distance_aware_attention(*inputs, backend="reference"))


@pytest.mark.parametrize(("batch", "query_length", "key_length"), [(2, 5, 0), (2, 1, 1), (0, 5, 5)])
def test_empty_and_single(batch: int, query_length: int, key_length: int) -> None:
    query, key = torch.randn(batch, 3, query_length, 7), torch.randn(batch, 3, key_length, 7)
    weight = shift = torch.zeros(3)
    output = distance_aware_attention(query, key, key, weight, shift, causal=True)
    assert output.shape == query.shape
    torch.testing.assert_close(output, key if query_length == key_length else torch.zeros_like(query))


def test_value_width_may_differ() -> None:
    query, key, _, weight, shift = make_inputs()
    value = torch.randn(BATCH, HEADS, LENGTH, 13, dtype=torch.float64)
    assert distance_aware_attention(query, key, value, weight, shift).shape == (BATCH, HEADS, LENGTH, 13)


def test_vmap_over_models() -> None:
    inputs = make_inputs(torch.float32)
    weights = torch.randn(4, HEADS)
    stacked = torch.vmap(lambda weight: distance_aware_attention(*inputs[:3], weight, inputs[4]))(weights)
    for weight, output in zip(weights, stacked, strict=True):
        torch.testing.assert_close(output, distance_aware_attention(*inputs[:3], weight, inputs[4]))


TENSORS = dict(zip(("query", "key", "value", "distance_weight", "distance_shift"), make_inputs(), strict=True))
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": torch.zeros(2, 5, 7)}, ValueError, r"query: got shape \(2, 5, 7\), expected \(batch, heads, length"),
    ({"query": torch.zeros(2, 3, 0, 7)}, ValueError, "query: got length 0, expected at least one token"),
    ({name: torch.zeros(2, 3, 5, 0).double() for name in ("query", "key")}, ValueError, "head_dim: got 0, expected "),
    ({"query": [1.0]}, TypeError, "query: got list, expected a torch.Tensor"),
    ({"query": torch.zeros(2, 3, 5, 7, dtype=torch.int64)}, TypeError, "query: got dtype torch.int64, expected a fl"),
    ({"key": torch.zeros(2, 4, 5, 7)}, ValueError, r"key: got shape \(2, 4, 5, 7\), expected .* = \(2, 3, 5, 7\)"),
    ({"key": torch.zeros(2, 3, 5, 6)}, ValueError, r"key: got shape .* head_dim\) = \(2, 3, 5, 7\)"),
    ({"key": torch.zeros(2, 3, 5, 7)}, TypeError, "key: got dtype torch.float32, expected that of query, "),
    ({"value": torch.zeros(2, 3, 4, 7)}, ValueError, r"value: got shape \(2, 3, 4, 7\), expected .* = \(2, 3, 5, 7\)"),
    ({"distance_weight": torch.zeros(4)}, ValueError, r"distance_weight: got shape \(4,\), expected .* \(3,\)"),
    ({"distance_shift": torch.zeros(3, 1)}, ValueError, r"distance_shift: got shape \(3, 1\), expected \(heads,\)"),
    ({"distance_shift": 0.0}, TypeError, "distance_shift: got float, expected a torch.Tensor"),
    ({"key_padding_mask": torch.zeros(2, 4).bool()}, ValueError, r"key_padding_mask: got shape .* = \(2, 5\)"),
    ({"key_padding_mask": torch.zeros(2, 5)}, TypeError, "key_padding_mask: got dtype torch.float32, expected "),
    ({"attn_mask": torch.zeros(5, 4).bool()}, ValueError, r"attn_mask: got shape \(5, 4\), expected .* = \(5, 5\)"),
    ({"attn_mask": torch.zeros(6, 5, 5).bool()}, ValueError, r"attn_mask: got shape \(6, 5, 5\)"),
    ({"attn_mask": torch.zeros(5, 5).long()}, TypeError, "attn_mask: got dtype torch.int64, expected torch.bool"),
    ({"mapping": "cosine"}, ValueError, "mapping: got 'cosine', expected one of 'clip', 'linear', 'exponent', "),
    ({"adjust": "never"}, ValueError, "adjust: got 'never', expected one of 'early_multiply', 'early_add', "),
    ({"backend": "magic"}, ValueError, "backend: got 'magic', expected one of 'auto', 'fused', 'blocked', 'reference'"),
    ({"dropout_p": 1.0}, ValueError, r"dropout_p: got 1.0, expected a float in \[0, 1\)"),
    ({"dropout_p": -0.1}, ValueError, r"dropout_p: got -0.1, expected"),
    ({"dropout_p": float("nan")}, ValueError, r"dropout_p: got nan, expected"),
    ({"value": torch.zeros(2, 3, 5, 7)}, TypeError, "value: got dtype torch.float32, expected that of query, "),
    ({"dropout_p": True}, TypeError, "dropout_p: got bool, expected a float"),
    ({"dropout_p": "0.1"}, TypeError, r"dropout_p: got str, expected a float"),
    ({"causal": "yes"}, TypeError, "causal: got str, expected a bool"),
    ({"scale": 0.0}, ValueError, "scale: got 0.0, expected a positive finite number"),
    ({"scale": float("inf")}, ValueError, "scale: got inf, expected a positive finite number"),
    ({"scale": "1"}, TypeError, "scale: got str, expected a positive finite number"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_bad_input_is_named(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        distance_aware_attention(**{**TENSORS, **wrong})


def test_every_backend_says_why_it_would_not_be_taken() -> None:
    query = torch.randn(2, 3, 5, 7)
    reasons = explain_backends(query, query, query)
    assert list(reasons) == list(BACKENDS)
    assert "not on a CUDA device" in (reasons["fused"] or "triton") or "triton" in (reasons["fused"] or "")
    assert reasons["reference"] is None
    for options, reason in (
        ({"return_weights": True}, "the weights are asked for"),
        ({"mapping": "clip"}, "mapping 'clip'"),
        ({"attn_mask": torch.zeros(5, 5)}, "attn_mask is given"),
    ):
        assert reason in (explain_backends(query, query, query, **options)["blocked"] or "")
    with torch.autocast("cpu", torch.bfloat16):
        assert "bfloat16" in (explain_backends(query, query, query)["blocked"] or "")
