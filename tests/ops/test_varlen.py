"""Packed sequences answer to the reference, one sequence at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from datransformer import distance_aware_attention, distance_aware_attention_varlen
from datransformer.ops import fused

HEADS, HEAD_DIM = 3, 7
attend: Any = distance_aware_attention_varlen
SHORT, LONG = [5, 0, 17, 1, 40], [150, 3, 0, 67, 129]


@pytest.fixture(params=["fused", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fused":
        pytest.importorskip("triton")
        monkeypatch.setattr(fused, "DEVICES", ("cuda", "cpu"))
    return str(request.param)


def pack(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def make_inputs(query_lengths: list[int], key_lengths: list[int]) -> list[Tensor]:
    query = torch.randn(sum(query_lengths), HEADS, HEAD_DIM)
    key, value = torch.randn(2, sum(key_lengths), HEADS, HEAD_DIM)
    return [query, key, value, torch.tensor([-0.7, 0.02, 0.5]), torch.tensor([0.3, -1.0, 1.0])]


def one_by_one(leaves: list[Tensor], query_starts: Tensor, key_starts: Tensor, causal: bool) -> Tensor:
    query, key, value, weight, shift = leaves
    outputs = []
    for i in range(len(query_starts) - 1):
        rows, keys = slice(*query_starts[i : i + 2].tolist()), slice(*key_starts[i : i + 2].tolist())
        if rows.start == rows.stop:
            continue
        heads = [tensor.transpose(0, 1)[None] for tensor in (query[rows], key[keys], value[keys])]
        output = distance_aware_attention(
            heads[0], heads[1], heads[2], weight, shift, causal=causal, backend="reference"
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in Triton's interpreter
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("query_lengths", "key_lengths"), [(SHORT, SHORT), (LONG, LONG), ([3, 0, 9], [11, 2, 4]), ([140, 2], [9, 150])]
)
def test_equals_one_sequence_at_a_time(
    query_lengths: list[int], key_lengths: list[int], causal: bool, backend: str
) -> None:
    inputs = make_inputs(query_lengths, key_lengths)
    starts = pack(query_lengths)
    key_starts = starts if query_lengths is key_lengths else pack(key_lengths)
    results = []
    gradient = torch.randn(sum(query_lengths), HEADS, HEAD_DIM)
    for packed in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        if packed:
            output = attend(*leaves, starts, key_starts, causal=causal, backend=backend)
        else:
            output = one_by_one(leaves, starts, key_starts, causal)
        results.append([output, *torch.autograd.grad(output, leaves, gradient)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_outside_of_the_tokens_is_read_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts on a GPU are not looked at: wrong ones must give a wrong result and nothing worse."""
    pytest.importorskip("triton")
    monkeypatch.setattr(fused, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    inputs = make_inputs([20], [20])
    leaves = [tensor.requires_grad_() for tensor in inputs]
    starts = torch.tensor([-5, 8, 3, 1000, 10**6])
    output = attend(*leaves, starts, max_seqlen_q=30, backend="fused")
    gradients = torch.autograd.grad(output.sum(), leaves)
    assert all(tensor.isfinite().all() for tensor in (output, *gradients))


def test_other_variants_and_empty_calls() -> None:
    inputs = make_inputs([4, 6], [4, 6])
    starts = pack([4, 6])
    late = attend(*inputs, starts, mapping="clip", adjust="late_add")
    heads = [tensor[4:].transpose(0, 1)[None] for tensor in inputs[:3]]
    alone = distance_aware_attention(*heads, *inputs[3:], mapping="clip", adjust="late_add")
    torch.testing.assert_close(late[4:], alone[0].transpose(0, 1))
    nothing = attend(*make_inputs([0, 0], [0, 0]), pack([0, 0]))
    assert nothing.shape == (0, HEADS, HEAD_DIM)
    leaves = [tensor.requires_grad_() for tensor in make_inputs([2, 1], [0, 0])]
    unseen = attend(*leaves, pack([2, 1]), pack([0, 0]))
    assert (unseen == 0).all()
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(unseen.sum(), leaves))
    with pytest.raises(ValueError, match=r"^mapping: got 'zzz'"):
        attend(*make_inputs([0], [0]), pack([0]), mapping="zzz")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cu_seqlens_q": torch.tensor([0.0, 10.0])}, TypeError, "cu_seqlens_q: got dtype torch.float32, expected torch.i"),
    ({"cu_seqlens_q": torch.tensor([0])}, ValueError, r"cu_seqlens_q: got shape \(1,\), expected \(sequences"),
    ({"cu_seqlens_q": torch.tensor([0, 9])}, ValueError, "cu_seqlens_q: got 0, 9, expected numbers that .* 10: where"),
    ({"cu_seqlens_q": torch.tensor([0, 7, 5, 10])}, ValueError, "cu_seqlens_q: got 0, 7, 5, 10, expected num"),
    ({"cu_seqlens_k": torch.tensor([0, 5, 10])}, ValueError, "cu_seqlens_k: got shape"),
    ({"key": torch.randn(9, HEADS, HEAD_DIM), "value": torch.randn(9, HEADS, HEAD_DIM)}, ValueError,
     "cu_seqlens_k: got None, expected one, for key has 9 tokens and query 10"),
    ({"max_seqlen_q": 9}, ValueError, "max_seqlen_q: got 9, expected the longest length, 10, or more"),
    ({"max_seqlen_q": -1}, ValueError, "max_seqlen_q: got -1, expected an int of at least 0"),
    ({"query": torch.randn(1, 10, HEADS, HEAD_DIM)}, ValueError, "query: got shape .*, expected .total, heads"),
    ({"value": torch.randn(10, HEADS + 1, HEAD_DIM)}, ValueError, "value: got shape"),
    ({"max_seqlen_k": -1}, ValueError, "max_seqlen_k: got -1, expected an int of at least 0"),
    ({"backend": "magic"}, ValueError, "backend: got 'magic', expected one of 'auto'"),
    ({"distance_weight": torch.zeros(2)}, ValueError, "distance_weight: got shape"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p: got 1.0"),
    ({"scale": -1.0}, ValueError, "scale: got -1.0"),
    ({"mapping": "clip", "backend": "fused"}, ValueError, "backend: got 'fused', which cannot run this call"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_wrong_arguments_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    names = ["query", "key", "value", "distance_weight", "distance_shift"]
    call: dict[str, Any] = dict(zip(names, make_inputs([10], [10]), strict=True))
    with pytest.raises(error, match=f"^{message}"):
        distance_aware_attention_varlen(**{**call, "cu_seqlens_q": pack([10]), **change})
