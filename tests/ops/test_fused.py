"""The fused kernels answer to the fp64 reference: at most twice the error of the reference run in their own dtype.

Without a CUDA device the kernels run in Triton's interpreter, at small shapes. It cannot multiply bf16 matrices, and
its products of a matrix and of its transpose differ in the last bit, which large shifts would magnify.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from datransformer import DistanceAwareAttention, distance_aware_attention
from datransformer.ops import fused

if TYPE_CHECKING:
    from tests.ops.conftest import Budget

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter: exp2 and 1/0 overflow

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _kernels_may_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "DEVICES", ("cuda", "cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("shape", "causal", "padding"),
    [
        ((2, 5, 97, 97, 20), False, "none"),
        ((2, 5, 130, 130, 16), False, "mixed"),
        ((1, 5, 130, 130, 16), True, "tail"),
        ((1, 5, 63, 150, 8), True, "none"),
        ((2, 5, 150, 63, 8), True, "mixed"),
        ((1, 5, 150, 63, 8), False, "none"),
        ((1, 5, 1, 1, 8), False, "none"),
    ],
)
def test_within_the_error_budget(
    budget: "Budget",
    shape: tuple[int, int, int, int, int],
    causal: bool,
    padding: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads that look near, at once and slowly, far, and not at all; far tiles and near ones in one call."""
    weight, shift = [-5.0, -0.4, 0.0, 0.5, 5.0], [0.0, 1.0, 0.3, -1.0, 0.5]
    budget.check(
        fused.attention, shape, weight, shift,
        dtype=dtype, causal=causal, padding=padding, device="cpu", monkeypatch=monkeypatch,
    )  # fmt: skip


def test_without_the_shortcut(budget: "Budget", monkeypatch: pytest.MonkeyPatch) -> None:
    budget.check(
        fused.attention, (1, 2, 97, 130, 16), [-0.5, 0.5], [0.0, 0.0],
        dtype=torch.float32, causal=False, padding="tail", device="cpu", monkeypatch=monkeypatch, far_tolerance=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("weight", [-0.05, 0.05])
def test_the_tolerance_bounds_the_error_of_the_shortcut(budget: "Budget", weight: float) -> None:
    """A far pair's weight is off by a factor of at most exp(tolerance · |q·k| · scale)."""
    inputs, _ = budget.make_inputs((1, 1, 257, 257, 16), [weight], [0.5], torch.float32, "cpu")
    call: dict[str, Any] = {"key_padding_mask": None, "causal": False, "scale": 0.25}
    exact, _ = fused.attention(*inputs, **call, far_tolerance=0.0)
    largest = (inputs[0] @ inputs[1].mT).max().item() * 0.25
    differences = []
    for tolerance in (1e-1, 1e-2, 1e-3):
        output, _ = fused.attention(*inputs, **call, far_tolerance=tolerance)
        differences.append((output - exact).abs().max().item())
        assert differences[-1] <= 2 * tolerance * largest * inputs[2].abs().max().item() + 1e-6
    assert differences[0] > differences[1] > 1e-5  # there was a shortcut to speak of


def test_strides_of_projected_heads(budget: "Budget") -> None:
    """[batch, length, heads, head_dim] memory, as the modules make it, and rows that are not contiguous."""
    inputs, _ = budget.make_inputs((2, 2, 20, 20, 8), [-0.5, 0.5], [0.0, 0.0], torch.float32, "cpu")
    query, key, value = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in inputs[:3])
    plain = distance_aware_attention(*inputs, backend="fused")
    assert torch.equal(distance_aware_attention(query, key, value, *inputs[3:], backend="fused"), plain)
    padding = torch.rand(1, 20) < 0.4
    expanded = distance_aware_attention(*inputs, key_padding_mask=padding.expand(2, -1), backend="fused")
    copied = distance_aware_attention(*inputs, key_padding_mask=padding.repeat(2, 1), backend="fused")
    assert torch.equal(expanded, copied)
    backwards = value.mT.contiguous().mT
    assert torch.equal(distance_aware_attention(query, key, backwards, *inputs[3:], backend="fused"), plain)


def test_the_module_trains_on_it() -> None:
    module = DistanceAwareAttention(12, 3)
    inputs = torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    gradients = []
    for backend in ("fused", "reference"):
        module.backend = backend
        output, _ = module(inputs, inputs, inputs, padding, need_weights=False)
        gradients.append(torch.autograd.grad(output.square().sum(), list(module.parameters())))
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("length", [40, 150])
def test_minus_zero_is_zero(budget: "Budget", length: int) -> None:
    """A head with w = 0 has no distance at which f has come to its limit, whichever zero it is."""
    inputs, _ = budget.make_inputs(
        (1, 3, length, length, 8), [-0.0, 0.0, -0.0], [0.0, 2.0, -100.0], torch.float32, "cpu"
    )
    call: dict[str, Any] = {"key_padding_mask": None, "causal": False, "scale": 0.3}
    got = fused.attention(*inputs, **call)[0]
    torch.testing.assert_close(got, distance_aware_attention(*inputs, scale=0.3, backend="reference"))


@pytest.mark.parametrize("length", [40, 150])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_nan_goes_where_the_reference_lets_it_go(budget: "Budget", length: int, broken: int) -> None:
    inputs, gradient = budget.make_inputs(
        (1, 3, length, length, 8), [0.4, 0.0, -0.3], [0.0, 2.0, -1.0], torch.float32, "cpu"
    )
    inputs[broken][0, 1, 3, 2] = torch.nan
    results = [
        budget.run(
            lambda *leaves, name=name: (distance_aware_attention(*leaves, backend=name),), inputs, gradient, None
        )
        for name in ("fused", "reference")
    ]
    for got, want in zip(*results, strict=True):
        assert torch.equal(got.isnan(), want.isnan())


def test_many_heads_take_their_turns() -> None:
    weight = torch.randn(300)
    weight[7], weight[9] = torch.nan, weight[8]
    order = fused._order(weight)
    assert sorted(order.tolist()) == list(range(300))
    falling = weight.nan_to_num(-torch.inf)[order.long()]
    assert (falling[:-1] >= falling[1:]).all()


def test_tiles_fit_into_small_shared_memory() -> None:
    for head_dim in (96, 200):
        for kernel in ("forward", "query", "key"):
            rows, keys, _, stages, _ = fused._tiles(kernel, head_dim, torch.bfloat16, False)
            width = fused._width(head_dim)
            assert 2 * width * (2 * rows + 2 * max(rows, keys) * stages) <= 99 << 10


def test_no_second_derivative(budget: "Budget") -> None:
    inputs, _ = budget.make_inputs((1, 1, 5, 5, 8), [0.1], [0.0], torch.float32, "cpu")
    leaves = [tensor.requires_grad_() for tensor in inputs]
    output = distance_aware_attention(*leaves, backend="fused")
    (gradient,) = torch.autograd.grad(output.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative: pass backend='reference'"):
        gradient.sum().backward()


def test_second_derivatives_where_it_was_not_asked_for_by_name(budget: "Budget") -> None:
    inputs, _ = budget.make_inputs((1, 1, 5, 5, 8), [0.1], [0.0], torch.float32, "cpu")
    call: dict[str, Any] = {"key_padding_mask": None, "causal": True, "scale": 0.25}
    reference: Any = distance_aware_attention
    found = []
    for attend in (
        lambda *leaves: fused.attention(*leaves, **call, strict=False)[0],
        lambda *leaves: reference(*leaves, **call, backend="reference"),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        first = torch.autograd.grad(attend(*leaves).square().sum(), leaves, create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
        found.append([*first, *torch.autograd.grad(penalty, leaves)])
    torch.testing.assert_close(found[0], found[1])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mapping": "clip"}, "mapping 'clip' with adjust 'early_multiply' has no kernel"),
    ({"adjust": "late_add"}, "mapping 'learnable_sigmoid' with adjust 'late_add' has no kernel"),
    ({"return_weights": True}, "the weights are asked for, by return_weights or need_weights, and are never formed"),
    ({"attn_mask": torch.zeros(5, 5)}, "attn_mask is given"),
    ({"value": torch.zeros(1, 1, 5, 9)}, "value_dim is 9, not head_dim, 8"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_asked_for_by_name_it_raises_and_says_why(budget: "Budget", change: dict[str, Any], reason: str) -> None:
    names = ["query", "key", "value", "distance_weight", "distance_shift"]
    inputs, _ = budget.make_inputs((1, 1, 5, 5, 8), [0.1], [0.0], torch.float32, "cpu")
    call = {**dict(zip(names, inputs, strict=True)), **change}
    with pytest.raises(ValueError, match=f"^backend: got 'fused', which cannot run this call: {reason}"):
        distance_aware_attention(**call, backend="fused")
    distance_aware_attention(**call)  # "auto" finds another way


def test_dtype_width_and_device_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    number = torch.zeros(1)
    attend: Any = distance_aware_attention
    with pytest.raises(ValueError, match=r"dtype is torch.float64$"):
        attend(*[torch.zeros(1, 1, 3, 8).double()] * 3, number, number, backend="fused")
    with pytest.raises(ValueError, match=r"head_dim is 257, more than 256$"):
        attend(*[torch.zeros(1, 1, 3, 257)] * 3, number, number, backend="fused")
    monkeypatch.setattr(fused, "DEVICES", ("cuda",))
    with pytest.raises(ValueError, match=r"query is on cpu, not on a CUDA device$"):
        attend(*[torch.zeros(1, 1, 3, 8)] * 3, number, number, backend="fused")
    monkeypatch.setattr(fused, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"triton is not installed$"):
        attend(*[torch.zeros(1, 1, 3, 8)] * 3, number, number, backend="fused")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "shape", [(2, 9, 1, 1, 8), (2, 9, 63, 63, 20), (2, 9, 97, 97, 59), (3, 9, 1025, 1025, 64), (3, 9, 257, 513, 128),
              (3, 9, 513, 257, 16), (3, 9, 200, 200, 256), (2, 9, 128, 77, 32)],
)  # fmt: skip
@pytest.mark.parametrize(("causal", "padding"), [(False, "none"), (True, "none"), (False, "mixed"), (True, "tail")])
def test_within_the_error_budget_on_the_gpu(
    budget: "Budget",
    shape: tuple[int, int, int, int, int],
    causal: bool,
    padding: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With v = 10 the nearest tie between two keys decides how large the error is: hence several sequences at least."""
    weight = [-5.0, -0.4, -0.05, -1e-4, 0.0, 1e-4, 0.05, 0.5, 5.0]
    shift = [0.0, 1.0, -1.0, 2.0, 0.3, -10.0, 10.0, 0.0, -0.5]
    budget.check(
        fused.attention, shape, weight, shift,
        dtype=dtype, causal=causal, padding=padding, device="cuda", monkeypatch=monkeypatch,
    )  # fmt: skip


@pytest.mark.gpu
@needs_gpu
def test_250_runs_give_the_same_bits(budget: "Budget") -> None:
    inputs, gradient = budget.make_inputs(
        (2, 3, 300, 300, 64), [-0.1, 0.02, 0.4], [0.0, 1.0, -1.0], torch.bfloat16, "cuda"
    )
    call: dict[str, Any] = {"key_padding_mask": None, "causal": False, "scale": 0.125}
    first = budget.run(lambda *leaves: fused.attention(*leaves, **call), inputs, gradient, None)
    for _ in range(250):
        again = budget.run(lambda *leaves: fused.attention(*leaves, **call), inputs, gradient, None)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.gpu
@needs_gpu
def test_compiles_into_one_graph() -> None:
    module = DistanceAwareAttention(64, 4, backend="fused").cuda()
    inputs = torch.randn(2, 50, 64, device="cuda")

    def train(attention: Callable[..., Any]) -> tuple[Tensor, ...]:
        output, _ = attention(inputs, inputs, inputs, need_weights=False)
        return torch.autograd.grad(output.square().sum(), list(module.parameters()))

    torch.testing.assert_close(train(torch.compile(module, fullgraph=True)), train(module))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("shape", "causal", "padding", "dropout_p"),
    [
        ((2, 3, 300, 300, 64), False, "none", 0.0), ((2, 3, 256, 256, 64), False, "none", 0.0),
        ((2, 3, 130, 300, 20), True, "tail", 0.1), ((1, 3, 300, 300, 128), False, "tail", 0.0),
        ((3, 3, 50, 50, 16), False, "none", 0.0), ((3, 3, 50, 37, 16), True, "tail", 0.1),
    ],
)  # fmt: skip
def test_every_kernel_runs(
    budget: "Budget",
    shape: tuple[int, int, int, int, int],
    causal: bool,
    padding: str,
    dropout_p: float,
    dtype: torch.dtype,
) -> None:
    """Few and small calls, for a tool that watches memory."""
    inputs, gradient = budget.make_inputs(shape, [-0.5, 0.0, 0.5], [-1.0, 1.5, 4.0], dtype, "cuda")
    mask = budget.make_padding(padding, shape[0], shape[3], "cuda")
    call: dict[str, Any] = {"key_padding_mask": mask, "causal": causal, "scale": 0.1, "dropout_p": dropout_p}
    for tensor in budget.run(lambda *leaves: fused.attention(*leaves, **call), inputs, gradient, None):
        assert tensor.isfinite().all()
