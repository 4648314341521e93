"""Dropout in the fused kernels: drawn from the pair's place, the same in the backward, and as often as asked for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from datransformer import distance_aware_attention, distance_aware_attention_varlen
from datransformer.ops import fused

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter

BATCH, HEADS = 2, 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _kernels_may_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "DEVICES", ("cuda", "cpu"))


def make_inputs(length: int, head_dim: int) -> list[Tensor]:
    tensors = torch.randn(3, BATCH, HEADS, length, head_dim, device=DEVICE)
    return [*tensors, torch.tensor([-0.7, 0.02, 0.5], device=DEVICE), torch.tensor([0.3, -1.0, 1.0], device=DEVICE)]


def attend(inputs: list[Tensor], dropout_p: float, *, seed: int = 7, **call: Any) -> Tensor:
    torch.manual_seed(seed)
    output: Tensor = distance_aware_attention(*inputs, dropout_p=dropout_p, backend="fused", **call)
    return output


def kept_pairs(inputs: list[Tensor], dropout_p: float, **call: Any) -> Tensor:
    """Which weights were not dropped, [batch, heads, length, length], from what one-hot values make of the weights."""
    query, key, value, *numbers = inputs
    length, width = query.shape[2:]
    parts = []
    for start in range(0, length, width):
        one_hot = torch.zeros_like(value)
        one_hot[:, :, torch.arange(start, min(start + width, length)), torch.arange(min(width, length - start))] = 1
        parts.append(attend([query, key, one_hot, *numbers], dropout_p, **call)[..., : length - start])
    return torch.cat(parts, -1) > 0


@pytest.mark.parametrize(("length", "causal", "padded"), [(37, False, True), (37, True, False), (70, False, True)])
def test_equals_the_reference_under_the_same_mask(
    length: int, causal: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tile and, from 65 on, several; the gradients too, so the backward has drawn what the forward drew."""
    monkeypatch.setattr(fused, "SHORT_LENGTH", 64)
    inputs, dropout_p = make_inputs(length, 32), 0.3  # so wide that a few calls show the whole mask
    padding = torch.zeros(BATCH, length, dtype=torch.bool, device=DEVICE)
    padding[0, length // 2 :] = padded
    call: dict[str, Any] = {"key_padding_mask": padding, "causal": causal}
    kept = kept_pairs(inputs, dropout_p, **call)
    gradient = torch.randn_like(inputs[0])
    results = []
    for fast in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        if fast:
            output = attend(leaves, dropout_p, **call)
        else:
            _, weights = distance_aware_attention(*leaves, return_weights=True, backend="reference", **call)
            output = (weights * kept / (1 - dropout_p)) @ leaves[2]
        results.append([output, *torch.autograd.grad(output, leaves, gradient)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_sums_that_were_never_made_are_not_read(causal: bool) -> None:
    """With dropout there are no sums over what is far: whatever lies behind the weights must not show."""
    query, key, value, weight, shift = make_inputs(150, 8)
    weight = torch.cat([weight, torch.full((10_000,), torch.nan, device=DEVICE)])[:HEADS]
    leaves = [tensor.requires_grad_() for tensor in (query, key, value, weight, shift)]
    output = attend(leaves, 0.3, causal=causal)
    for gradient in torch.autograd.grad(output.sum(), leaves):
        assert gradient.isfinite().all()


def test_one_tile_and_many_draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(40, 8)
    once = attend(inputs, 0.4)
    monkeypatch.setattr(fused, "SHORT_LENGTH", 0)
    torch.testing.assert_close(attend(inputs, 0.4), once)


def test_drops_as_often_as_asked_and_nothing_goes_with_anything() -> None:
    """Of 60,000 pairs: the share, and the share of both of two neighbours along every axis, to four deviations."""
    dropout_p = 0.25
    kept = kept_pairs(make_inputs(100, 16), dropout_p).double()
    share = 1 - dropout_p
    assert kept.mean().item() == pytest.approx(share, abs=4 * (share * dropout_p / kept.numel()) ** 0.5)
    for axis in range(4):
        for step in (1, 2, 16) if axis > 1 else (1,):
            first, second = (
                kept.narrow(axis, 0, kept.shape[axis] - step),
                kept.narrow(axis, step, kept.shape[axis] - step),
            )
            both, square = (first * second).mean().item(), share**2
            assert both == pytest.approx(square, abs=4 * (square * (1 - square) / first.numel()) ** 0.5), (axis, step)
    for other in (8, 9):
        again = kept_pairs(make_inputs(100, 16), dropout_p, seed=other).double()
        both = (kept * again).mean().item()
        assert both == pytest.approx(share**2, abs=4 * (share**2 * (1 - share**2) / kept.numel()) ** 0.5)


def test_a_seed_repeats_itself() -> None:
    inputs = make_inputs(20, 8)
    assert torch.equal(attend(inputs, 0.3), attend(inputs, 0.3))
    assert not torch.equal(attend(inputs, 0.3), attend(inputs, 0.3, seed=8))


def test_packed_sequences_drop_too() -> None:
    query, key, value, weight, shift = make_inputs(20, 8)
    packed = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
    starts = torch.tensor([0, 13, 20], device=DEVICE)
    attend_packed: Any = distance_aware_attention_varlen
    torch.manual_seed(7)
    dropped = attend_packed(*packed, weight, shift, starts, dropout_p=0.5, backend="fused")
    whole = attend_packed(*packed, weight, shift, starts, backend="fused")
    assert dropped.isfinite().all()
    assert not torch.allclose(dropped, whole)
