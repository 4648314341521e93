"""An error budget for kernels: against the fp64 reference, twice the error of the reference in the kernel's dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from datransformer import distance_aware_attention
from datransformer.ops import reference

ORDERS = 5
NAMES = ["output", "query", "key", "value", "distance_weight", "distance_shift"]


def make_inputs(
    shape: tuple[int, int, int, int, int], weight: list[float], shift: list[float], dtype: torch.dtype, device: str
) -> tuple[list[Tensor], Tensor]:
    batch, heads, query_length, key_length, head_dim = shape
    query, gradient = torch.randn(2, batch, heads, query_length, head_dim).to(device, dtype)
    key, value = torch.randn(2, batch, heads, key_length, head_dim).to(device, dtype)
    numbers = [torch.tensor(values, device=device) for values in (weight, shift)]
    return [query, key, value, *numbers], gradient


def make_padding(kind: str, batch: int, length: int, device: str) -> Tensor | None:
    if kind == "none":
        return None
    padding = torch.zeros(batch, length, dtype=torch.bool)
    if kind == "tail":
        padding[0, length // 2 :] = True
    else:
        padding |= torch.rand(batch, length) < 0.4
        padding[-1] = True
    return padding.to(device)


def run(attend: Callable[..., Any], inputs: list[Tensor], gradient: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    leaves = [tensor.detach().to(dtype or tensor.dtype).clone().requires_grad_() for tensor in inputs]
    output = attend(*leaves)[0]
    return [output, *torch.autograd.grad(output, leaves, gradient.to(output.dtype))]


def rounding_noise(
    tensors: list[Tensor], *, key_padding_mask: Tensor | None, causal: bool, scale: float
) -> dict[str, float]:
    """How far rounding each pair's share once moves the gradients of w and v, over eps.

    They are a number per head, so that one run of the reference may be right to many digits by luck alone.
    """
    query, key, value, weight, shift, gradient = tensors
    w, v = weight[:, None, None], shift[:, None, None]
    rows = torch.arange(query.shape[2], device=query.device) + key.shape[2] - query.shape[2]
    distance = (rows[:, None] - torch.arange(key.shape[2], device=query.device)).abs()  # [Nq, Nk]
    opened = torch.sigmoid(w * distance - v)  # [H, Nq, Nk]
    _, weights = distance_aware_attention(
        query, key, value, weight, shift,
        key_padding_mask=key_padding_mask, causal=causal, scale=scale, return_weights=True,
    )  # fmt: skip
    product = gradient @ value.mT  # [B, H, Nq, Nk]
    size = weights * (product.abs() + (weights * product).sum(-1, keepdim=True).abs()) * (query @ key.mT).relu() * scale
    by_weight = size * (1 + v.exp()) * opened * (1 - opened) * distance
    by_shift = size * opened * (v.exp() + (1 + v.exp()) * (1 - opened))
    return {"distance_weight": by_weight.norm().item(), "distance_shift": by_shift.norm().item()}


def check(
    attend: Callable[..., Any],
    shape: tuple[int, int, int, int, int],
    weight: list[float],
    shift: list[float],
    *,
    dtype: torch.dtype,
    causal: bool,
    padding: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> None:
    """``attend`` has at most twice the error of the reference run in ``dtype``, the output and every gradient."""
    inputs, gradient = make_inputs(shape, weight, shift, dtype, device)
    call: dict[str, Any] = {
        "key_padding_mask": make_padding(padding, shape[0], shape[3], device),
        "causal": causal,
        "scale": shape[4] ** -0.5,
    }

    def truth(*leaves: Tensor) -> Any:
        distance = {"mapping": "learnable_sigmoid", "adjust": "early_multiply"}
        return distance_aware_attention(*leaves, **distance, **call, return_weights=True)  # type: ignore[call-overload]

    def error_of(order: Tensor) -> list[float]:
        query, key, *others = inputs
        rounded = run(truth, [query[..., order], key[..., order], *others], gradient, None)
        for place in (1, 2):
            rounded[place] = rounded[place][..., order.argsort()]
        return [(rough.double() - want).norm().item() for rough, want in zip(rounded, exact, strict=True)]

    exact = run(truth, inputs, gradient, torch.float64)
    got = run(lambda *leaves: attend(*leaves, **call, **options), inputs, gradient, None)
    monkeypatch.setattr(reference, "_widen", lambda tensor: tensor)  # fp16 too multiplies its matrices as they are
    # With large coefficients the nearest tie between two keys decides how large an error is, and how it is rounded is
    # luck: one run of the reference can be three times as far off as another. q·k may be added up in any order: the
    # reference's error is the root mean square over a few of them.
    orders = [torch.arange(shape[4]), *(torch.randperm(shape[4]) for _ in range(ORDERS - 1))]
    errors = torch.tensor([error_of(order.to(device)) for order in orders])
    typical = errors.square().mean(0).sqrt().tolist()
    noise = rounding_noise([tensor.double() for tensor in (*inputs, gradient)], **call)
    for name, want, tensor, allowed in zip(NAMES, exact, got, typical, strict=True):
        assert tensor.isfinite().all(), name
        error = (tensor.double() - want).norm().item()
        floor = torch.finfo(dtype).eps * (noise[name] if name in noise else want.norm().item() + 1e-2)
        assert error <= 2 * allowed + floor, f"{name}: error {error:.2e}, the reference's {allowed:.2e}"


class Budget:
    """The functions above, for the tests of each kernel."""

    make_inputs = staticmethod(make_inputs)
    make_padding = staticmethod(make_padding)
    run = staticmethod(run)
    check = staticmethod(check)


@pytest.fixture
def budget() -> Budget:
    return Budget()
