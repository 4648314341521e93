"""The CPU kernels answer to the fp64 reference: at most twice the error of the reference run in fp32."""

import ctypes
import importlib.metadata
import importlib.util
import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from datransformer import DistanceAwareAttention, distance_aware_attention
from datransformer.ops import blocked

if TYPE_CHECKING:
    from tests.ops.conftest import Budget

needs_kernels = pytest.mark.skipif(blocked.KERNELS is None, reason=f"{blocked.NOT_LOADED}")

# Heads that look near, at once and slowly, far, and not at all; far panels and near ones in one call.
WEIGHT = [-5.0, -0.4, -0.05, -1e-4, 0.0, 1e-4, 0.05, 0.5, 5.0]
SHIFT = [0.0, 1.0, -1.0, 2.0, 0.3, -10.0, 10.0, 0.0, -0.5]
CALL: dict[str, Any] = {"key_padding_mask": None, "causal": False, "dropout_p": 0.0, "scale": 0.25}


def attend(*leaves: Tensor, **call: Any) -> tuple[Tensor, None]:
    return blocked.attention(*leaves, **{"dropout_p": 0.0, **call})


def test_an_install_with_a_compiler_has_the_kernels() -> None:
    """They are optional, so that nothing else would tell of a build that fails."""
    try:
        origin = importlib.metadata.distribution("datransformer").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        origin = None
    if origin is None or not json.loads(origin)["url"].startswith("file:"):
        pytest.skip("not installed from a folder")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    assert blocked.KERNELS is not None, blocked.NOT_LOADED


@needs_kernels
@pytest.mark.parametrize(("causal", "padding"), [(False, "none"), (True, "none"), (False, "mixed"), (True, "tail")])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 9, 1, 1, 8),
        (2, 9, 63, 63, 20),
        (2, 9, 97, 97, 59),
        (2, 9, 257, 130, 16),
        (2, 9, 130, 257, 16),
        (2, 9, 5, 300, 1),
        (1, 9, 200, 200, 128),
    ],
)
def test_within_the_error_budget(
    budget: "Budget",
    shape: tuple[int, int, int, int, int],
    causal: bool,
    padding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget.check(
        attend, shape, WEIGHT, SHIFT,
        dtype=torch.float32, causal=causal, padding=padding, device="cpu", monkeypatch=monkeypatch,
    )  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("causal", [False, True])
def test_within_the_error_budget_at_length(budget: "Budget", causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries of a head are shared among several work items."""
    budget.check(
        attend, (1, 3, 1025, 1025, 64), [-0.3, 0.02, 0.5], [1.0, 1.0, 0.0],
        dtype=torch.float32, causal=causal, padding="tail" if causal else "none", device="cpu", monkeypatch=monkeypatch,
    )  # fmt: skip


@needs_kernels
def test_without_the_shortcut(budget: "Budget", monkeypatch: pytest.MonkeyPatch) -> None:
    budget.check(
        attend, (1, 2, 97, 130, 16), [-0.5, 0.5], [0.0, 0.0],
        dtype=torch.float32, causal=False, padding="tail", device="cpu", monkeypatch=monkeypatch, far_tolerance=0.0,
    )  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("size", [1.0, 6.0, 9.0, 40.0])
def test_large_scores(budget: "Budget", size: float) -> None:
    """The bound on a query's scores does as the softmax's shift, with one more and more subtracted, and not at all."""
    inputs, gradient = budget.make_inputs((2, 3, 50, 50, 16), [-0.2, 0.0, 0.3], [0.5, 0.0, 1.0], torch.float32, "cpu")
    inputs[0] *= size
    inputs[1] *= size
    padding = budget.make_padding("mixed", 2, 50, "cpu")
    call: dict[str, Any] = {"key_padding_mask": padding, "backend": "reference"}
    exact, rounded = (
        budget.run(lambda *leaves: (distance_aware_attention(*leaves, **call),), inputs, gradient, dtype)
        for dtype in (torch.float64, None)
    )
    got = budget.run(lambda *leaves: attend(*leaves, **{**CALL, "key_padding_mask": padding}), inputs, gradient, None)
    for want, rough, tensor in zip(exact, rounded, got, strict=True):
        assert tensor.isfinite().all()
        allowed = (rough.double() - want).norm() + 1e-7 * want.norm()
        assert (tensor.double() - want).norm() <= 3 * allowed


@needs_kernels
def test_the_tolerance_bounds_the_error_of_the_shortcut(budget: "Budget") -> None:
    """A far pair's weight is off by a factor of at most exp(tolerance · |q·k| · scale)."""
    inputs, _ = budget.make_inputs((1, 1, 257, 257, 16), [-0.05], [0.5], torch.float32, "cpu")
    exact, _ = attend(*inputs, **CALL, far_tolerance=0.0)
    largest = (inputs[0] @ inputs[1].mT).max().item() * 0.25
    differences = []
    for tolerance in (1e-1, 1e-2, 1e-3):
        output, _ = attend(*inputs, **CALL, far_tolerance=tolerance)
        differences.append((output - exact).abs().max().item())
        assert differences[-1] <= 2 * tolerance * largest * inputs[2].abs().max().item() + 1e-6
    assert differences[0] > differences[1] > 1e-5  # there was a shortcut to speak of


@needs_kernels
def test_strides_of_projected_heads(budget: "Budget") -> None:
    """[batch, length, heads, head_dim] memory, as the modules make it, and rows that are not contiguous."""
    inputs, gradient = budget.make_inputs((2, 2, 20, 20, 8), [-0.5, 0.5], [0.0, 0.0], torch.float32, "cpu")
    plain = budget.run(lambda *leaves: attend(*leaves, **CALL), inputs, gradient, None)
    rows = torch.stack(inputs[:3], 3).transpose(1, 2).flatten(3)  # [B, N, H, 3·D]
    layouts: list[Callable[[Tensor, int], Tensor]] = [
        lambda tensor, _: tensor.transpose(1, 2).contiguous().transpose(1, 2),
        lambda tensor, _: tensor.mT.contiguous().mT,
        lambda _, number: rows[..., 8 * number : 8 * number + 8].transpose(1, 2),
    ]
    for layout in layouts:
        leaves = [layout(tensor, n).detach().requires_grad_() for n, tensor in enumerate(inputs[:3])]
        leaves += [tensor.detach().clone().requires_grad_() for tensor in inputs[3:]]
        output, _ = attend(*leaves, **CALL)
        for given in (gradient, gradient.mT.contiguous().mT):
            got = [output, *torch.autograd.grad(output, leaves, given, retain_graph=True)]
            assert all(torch.equal(one, other) for one, other in zip(got, plain, strict=True))
    module_like = layouts[0](inputs[0], 0)
    output, _ = attend(module_like, *inputs[1:], **CALL)
    assert output.transpose(1, 2).is_contiguous()  # the module flattens it without a copy
    padding = torch.rand(1, 20) < 0.4
    expanded, _ = attend(*inputs, **{**CALL, "key_padding_mask": padding.expand(2, -1)})
    copied, _ = attend(*inputs, **{**CALL, "key_padding_mask": padding.repeat(2, 1)})
    assert torch.equal(expanded, copied)


@needs_kernels
@pytest.mark.parametrize("shape", [(3, 3, 70, 70, 16), (1, 3, 600, 600, 20)])
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_the_same_bits_on_every_run_and_any_number_of_threads(
    budget: "Budget", shape: tuple[int, int, int, int, int], dropout_p: float
) -> None:
    inputs, gradient = budget.make_inputs(shape, [-0.4, 0.02, 0.4], [0.0, 1.0, -1.0], torch.float32, "cpu")
    results = []
    for threads in [1, 2, 3] * 5:
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        results.append(
            budget.run(lambda *leaves: attend(*leaves, **{**CALL, "dropout_p": dropout_p}), inputs, gradient, None)
        )
    for again in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], again, strict=True))


@needs_kernels
def test_nan_stays_nan_and_hidden_keys_stay_hidden(budget: "Budget") -> None:
    inputs, gradient = budget.make_inputs((2, 2, 20, 20, 8), [-3.0, 0.5], [0.0, 0.0], torch.float32, "cpu")
    padding = torch.zeros(2, 20, dtype=torch.bool)
    padding[0, 3] = True
    call = {**CALL, "key_padding_mask": padding}
    clean, _ = attend(*inputs, **call)
    inputs[1][0, :, 3] = torch.nan  # a hidden key
    assert torch.equal(attend(*inputs, **call)[0], clean)
    inputs[0][1, 0, 5, 2] = torch.nan
    inputs[1][1, 1, 19, 2] = torch.inf
    output, _ = attend(*inputs, **call)
    want = distance_aware_attention(*inputs, key_padding_mask=padding, scale=0.25, backend="reference")
    assert torch.equal(output.isnan()[1, 0], want.isnan()[1, 0])
    assert output.isnan()[1, 1].any()
    got = budget.run(lambda *leaves: attend(*leaves, **call), inputs, gradient, None)
    assert got[4].isnan().all()


@needs_kernels
def test_no_visible_key_gives_zeros_and_no_gradient(budget: "Budget") -> None:
    inputs, gradient = budget.make_inputs((2, 2, 30, 17, 8), [-0.5, 0.5], [0.0, 0.0], torch.float32, "cpu")
    padding = torch.zeros(2, 17, dtype=torch.bool)
    padding[1] = True
    call = {**CALL, "key_padding_mask": padding, "causal": True}
    output, query, key, value, *_ = budget.run(lambda *leaves: attend(*leaves, **call), inputs, gradient, None)
    for tensor in (output, query, key, value):
        assert tensor[1].eq(0).all()
    assert output[0, :, :13].eq(0).all()
    assert query[0, :, :13].eq(0).all()
    assert output[0, :, 13:].ne(0).all()


def drawn(seed: int, dropout_p: float, shape: tuple[int, int, int, int]) -> Tensor:
    """The mask of dropout as the kernels apply it: values are unit vectors, the weights all 1 / key_length."""
    batch, heads, query_length, key_length = shape
    zeros = torch.zeros(heads)
    query, key = (torch.zeros(batch, heads, length, 256) for length in (query_length, key_length))
    value = torch.eye(key_length, 256).expand(batch, heads, -1, -1)
    output: Tensor
    output, _ = blocked.blocked_attention(
        query, key, value, zeros, zeros, None, torch.tensor([seed]), False, dropout_p, 1.0, 0.0, True
    )
    return output[..., :key_length] * key_length


@needs_kernels
def test_dropout_is_what_its_definition_says() -> None:
    shape = (2, 3, 70, 97)
    for seed, dropout_p in ((0, 0.5), (-5, 0.1), (2**62 + 1, 0.9)):
        torch.testing.assert_close(
            drawn(seed, dropout_p, shape), blocked.dropout_mask(torch.tensor([seed]), dropout_p, shape)
        )


@needs_kernels
def test_dropout_is_fair_and_independent() -> None:
    kept = (drawn(3, 0.3, (8, 4, 128, 256)) > 0).double()  # a million decisions
    assert abs(kept.mean() - 0.7) < 0.002
    for axis, size in enumerate(kept.shape):
        others = [other for other in range(4) if other != axis]
        spread = kept.mean(others) - 0.7
        assert spread.abs().max() < 5 * (0.21 * size / kept.numel()) ** 0.5
    centred = kept - 0.7
    for axis in range(4):
        for step in (1, 2, 3, 4, 8, 16):
            if step >= kept.shape[axis]:
                continue
            left = kept.shape[axis] - step
            one, other = centred.narrow(axis, 0, left), centred.narrow(axis, step, left)
            assert abs((one * other).mean()) < 5 * 0.21 / one.numel() ** 0.5, (axis, step)
    again = (drawn(4, 0.3, (8, 4, 128, 256)) > 0).double() - 0.7
    assert abs((centred * again).mean()) < 5 * 0.21 / kept.numel() ** 0.5
    torch.testing.assert_close(drawn(3, 0.3, (1, 1, 5, 7)).unique(), torch.tensor([0.0, 1 / 0.7]), atol=1e-4, rtol=0)


@needs_kernels
@pytest.mark.parametrize("causal", [False, True])
def test_the_backward_sees_the_mask_of_the_forward(budget: "Budget", causal: bool) -> None:
    inputs, gradient = budget.make_inputs((2, 3, 37, 53, 7), [-0.7, 0.01, 0.6], [0.3, -0.4, 1.1], torch.float32, "cpu")
    padding = budget.make_padding("tail", 2, 53, "cpu")
    call = {**CALL, "key_padding_mask": padding, "causal": causal}
    torch.manual_seed(11)
    seed = torch.randint(-(2**63), 2**63 - 1, (1,))
    mask = blocked.dropout_mask(seed, 0.4, (2, 3, 37, 53))

    def truth(*leaves: Tensor) -> tuple[Tensor]:
        _, weights = distance_aware_attention(
            *leaves, key_padding_mask=padding, causal=causal, scale=0.25, return_weights=True
        )
        return ((weights * mask.to(weights)) @ leaves[2],)

    torch.manual_seed(11)
    got = budget.run(lambda *leaves: attend(*leaves, **{**call, "dropout_p": 0.4}), inputs, gradient, None)
    want = budget.run(truth, inputs, gradient, torch.float64)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


@needs_kernels
def test_the_module_trains_on_it() -> None:
    module = DistanceAwareAttention(12, 3)
    inputs = torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    gradients = []
    for backend in ("blocked", "reference", "auto"):
        module.backend = backend
        output, _ = module(inputs, inputs, inputs, padding, need_weights=False)
        gradients.append(torch.autograd.grad(output.square().sum(), list(module.parameters())))
    torch.testing.assert_close(gradients[0], gradients[1])
    assert all(torch.equal(one, other) for one, other in zip(gradients[0], gradients[2], strict=True))


@needs_kernels
def test_auto_takes_it_and_the_generator_decides_over_dropout() -> None:
    module = DistanceAwareAttention(12, 3, dropout=0.3)
    inputs = torch.randn(2, 5, 12)
    outputs = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        output, _ = module(inputs, inputs, inputs, need_weights=False)
        outputs.append(output)
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
    leaf = torch.randn(1, 1, 5, 8, requires_grad=True)
    number = torch.zeros(1)
    attention: Any = distance_aware_attention
    assert "blocked" in type(attention(leaf, leaf, leaf, number, number).grad_fn).__name__


@needs_kernels
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_second_derivatives(budget: "Budget", dropout_p: float) -> None:
    """Under "auto" by way of the reference, with one tensor in three places; by name there are none."""
    inputs, _ = budget.make_inputs((1, 2, 5, 5, 8), [0.1, -0.3], [0.0, 0.2], torch.float32, "cpu")
    mask = torch.ones(1, 2, 5, 5)
    if dropout_p > 0:
        torch.manual_seed(3)
        mask = blocked.dropout_mask(torch.randint(-(2**63), 2**63 - 1, (1,)), dropout_p, (1, 2, 5, 5))

    attention: Any = distance_aware_attention

    def penalty(forward: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in (inputs[0], *inputs[3:])]
        output = forward(leaves[0], leaves[0], leaves[0], *leaves[1:])
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        loss = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return [*first, *torch.autograd.grad(loss, leaves)]

    def plain(*leaves: Tensor) -> Tensor:
        weights: Tensor
        _, weights = attention(*leaves, return_weights=True)
        return (weights * mask) @ leaves[2]

    torch.manual_seed(3)
    got = penalty(lambda *leaves: attention(*leaves, dropout_p=dropout_p))
    torch.testing.assert_close(got, penalty(plain), atol=1e-4, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="no second derivative: pass backend='auto' or 'reference'"):
        penalty(lambda *leaves: attention(*leaves, backend="blocked"))


@needs_kernels
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiles_into_one_graph_and_one_node(dropout: float) -> None:
    torch._dynamo.reset()
    module = DistanceAwareAttention(12, 3, dropout=dropout)
    nodes: list[str] = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        nodes.extend(str(node.target) for node in graph.graph.nodes if "datransformer" in str(node.target))
        return make_boxed_func(graph.forward)

    compiled = torch.compile(module, fullgraph=True, backend=aot_autograd(fw_compiler=count))
    inputs = torch.randn(2, 5, 12)

    def train(attention: Callable[..., Any]) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        output, _ = attention(inputs, inputs, inputs, need_weights=False)
        return torch.autograd.grad(output.square().sum(), list(module.parameters()))

    torch.testing.assert_close(train(compiled), train(module))
    assert nodes == [f"datransformer.blocked_attention{name}.default" for name in ("", "_backward")]


@needs_kernels
def test_torch_finds_nothing_wrong_with_the_operator(budget: "Budget") -> None:
    inputs, _ = budget.make_inputs((2, 3, 5, 7, 4), [0.1, -0.3, 0.0], [0.0, 0.2, 1.0], torch.float32, "cpu")
    leaves = [tensor.requires_grad_() for tensor in inputs]
    padding, seed = torch.rand(2, 7) < 0.4, torch.tensor([3])
    torch.library.opcheck(blocked.blocked_attention, (*leaves, padding, seed, True, 0.2, 0.5, 1e-7, True))
    leaves[0] = leaves[0].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    torch.library.opcheck(blocked.blocked_attention, (*leaves, None, None, False, 0.0, 0.5, 1e-7, True))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mapping": "clip"}, "mapping 'clip' with adjust 'early_multiply' has no kernel"),
    ({"adjust": "late_add"}, "mapping 'learnable_sigmoid' with adjust 'late_add' has no kernel"),
    ({"return_weights": True}, "the weights are asked for, by return_weights or need_weights, and are never formed"),
    ({"attn_mask": torch.zeros(5, 5)}, "attn_mask is given"),
    ({"value": torch.zeros(1, 1, 5, 9)}, "value_dim is 9, not head_dim, 8"),
    ({name: torch.zeros(1, 1, 0, 8) for name in ("key", "value")}, "a tensor is empty"),
    ({name: torch.zeros(1, 1, 5, 257) for name in ("query", "key", "value")}, "head_dim is 257, more than 256"),
    ({name: torch.zeros(1, 1, 5, 8).double() for name in ("query", "key", "value")}, "dtype is torch.float64, not "),
    ({name: torch.zeros(1, 1, 5, 8, device="meta") for name in ("query", "key", "value")}, "query is on meta, not on"),
]  # fmt: skip


@needs_kernels
@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_asked_for_by_name_it_raises_and_says_why(budget: "Budget", change: dict[str, Any], reason: str) -> None:
    names = ["query", "key", "value", "distance_weight", "distance_shift"]
    inputs, _ = budget.make_inputs((1, 1, 5, 5, 8), [0.1], [0.0], torch.float32, "cpu")
    call = {**dict(zip(names, inputs, strict=True)), **change}
    with pytest.raises(ValueError, match=f"^backend: got 'blocked', which cannot run this call: {reason}"):
        distance_aware_attention(**call, backend="blocked")
    if call["query"].device.type == "cpu":
        distance_aware_attention(**call)  # "auto" finds another way


@needs_kernels
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own, inside forward mode
def test_transforms_go_to_the_reference(budget: "Budget") -> None:
    inputs, _ = budget.make_inputs((1, 2, 5, 5, 8), [0.1, 0.2], [0.0, 0.0], torch.float32, "cpu")
    attention: Any = distance_aware_attention
    with pytest.raises(ValueError, match=r"torch\.func and forward-mode derivatives see plain operators only"):
        torch.vmap(lambda weight: attention(*inputs[:3], weight, inputs[4], backend="blocked"))(torch.zeros(3, 2))
    gradient = torch.func.grad(lambda query: attention(query, *inputs[1:]).square().sum())(inputs[0])
    jvp: Any = torch.func.jvp
    _, slope = jvp(lambda query: attention(query, *inputs[1:]).square().sum(), (inputs[0],), (gradient,))
    torch.testing.assert_close(slope, gradient.square().sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs[0], gradient)
        output = attention(dual, *inputs[1:]).square().sum()
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(output).tangent, gradient.square().sum())


def test_without_the_kernels_auto_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "KERNELS", None)
    monkeypatch.setattr(blocked, "NOT_LOADED", "its kernels are not built: …")
    rows, number = torch.randn(1, 1, 5, 8), torch.zeros(1)
    attention: Any = distance_aware_attention
    assert torch.equal(
        attention(rows, rows, rows, number, number),
        attention(rows, rows, rows, number, number, backend="reference"),
    )
    with pytest.raises(ValueError, match="which cannot run this call: its kernels are not built"):
        attention(rows, rows, rows, number, number, backend="blocked")


def test_what_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    kernels, reason = blocked._load()
    assert kernels is None
    assert reason is not None
    assert reason.startswith("its kernels are not built: install datransformer where there is a C++ compiler")
    monkeypatch.undo()

    def fail(name: str) -> None:
        raise OSError("undefined symbol: GOMP_parallel")

    if blocked.KERNELS is not None:
        monkeypatch.setattr(ctypes, "CDLL", fail)
        assert blocked._load() == (None, "its kernels cannot be loaded: undefined symbol: GOMP_parallel")


@needs_kernels
def test_rows_that_overlap() -> None:
    """Strides that tie: memory in the same layout would not have contiguous rows."""
    rows = torch.randn(1, 1, 19).unfold(-1, 16, 1)  # [1, 1, 4, 16], strides 19, 19, 1, 1
    numbers = torch.tensor([-0.1]), torch.tensor([1.0])
    results = []
    for backend in ("blocked", "reference"):
        leaf = rows.detach().requires_grad_()
        output = distance_aware_attention(leaf, leaf, leaf, *numbers, backend=backend)
        results.append((output, *torch.autograd.grad(output.square().sum(), leaf)))
    torch.testing.assert_close(results[0], results[1])


@needs_kernels
@pytest.mark.parametrize(("size", "weight", "shift"), [(1e5, 0.1, 0.0), (1.0, 100.0, 20.0), (1.0, 100.0, 30.0)])
def test_scores_of_any_size(size: float, weight: float, shift: float) -> None:
    """One key has all the weight then, and no gradient goes through the softmax."""
    inputs = [torch.randn(1, 2, 13, 8) * size, torch.randn(1, 2, 13, 8) * size, torch.randn(1, 2, 13, 8)]
    numbers = [torch.full((2,), weight), torch.full((2,), shift)]
    results = []
    for backend in ("blocked", "reference"):
        leaves = [tensor.clone().requires_grad_() for tensor in (*inputs, *numbers)]
        output = distance_aware_attention(*leaves, backend=backend)
        results.append([output, *torch.autograd.grad(output.sum(), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_second_derivative_where_nearly_all_is_dropped() -> None:
    leaves = [torch.randn(1, 1, 5, 4, requires_grad=True) for _ in range(3)]
    numbers = torch.zeros(1), torch.zeros(1)
    output = distance_aware_attention(leaves[0], leaves[1], leaves[2], *numbers, dropout_p=0.999999)
    (first,) = torch.autograd.grad(output.sum(), leaves[2], create_graph=True)
    assert first.isfinite().all()
