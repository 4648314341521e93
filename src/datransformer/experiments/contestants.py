"""Attention in the ways that torch offers, ours among them, behind one interface; and the inputs they get."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from datransformer.ops.attention import distance_aware_attention

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WEIGHTS = {"mixed": (-0.5, 0.5), "far": (0.03, 0.5), "near": (-0.5, -0.03)}  # w of the first and of the last head
WEIGHT_NAMES = {"mixed": "", "far": "w > 0", "near": "w < 0"}


@dataclass(frozen=True)
class Case:
    """What is computed.

    Args:
        shape: Batch, heads, length, head_dim.
        dtype: A key of `DTYPES`.
        weights: A key of `WEIGHTS`. v goes from −1 to 1.
        causal: Whether keys after the query are hidden.
        padded: Whether the second half of every row is padding.
        full: Whether those take part that are slow or that torch has to compile.
    """

    shape: tuple[int, int, int, int]
    dtype: str = "bf16"
    weights: str = "mixed"
    causal: bool = False
    padded: bool = False
    full: bool = False

    @property
    def name(self) -> str:
        """For people, and the key of `TARGETS`."""
        return self._name(*self.shape)

    @property
    def series(self) -> str:
        """The name of all cases that differ in their length alone."""
        batch, heads, _, head_dim = self.shape
        return self._name(batch, heads, "N", head_dim)

    def _name(self, *axes: object) -> str:
        notes = (WEIGHT_NAMES[self.weights], "causal" if self.causal else "", "half padding" if self.padded else "")
        return ", ".join((f"{'×'.join(map(str, axes))} {self.dtype}", *filter(None, notes)))

    @property
    def flops(self) -> int:
        """Operations of plain attention's forward pass."""
        batch, heads, length, head_dim = self.shape
        return 4 * batch * heads * length**2 * head_dim

    @property
    def bytes(self) -> int:
        """Size of query, key and value."""
        return 3 * DTYPES[self.dtype].itemsize * math.prod(self.shape)

    def baseline(self, device: str) -> str:
        """The contestant that the others are compared with: flash takes neither fp32 nor padding."""
        if device == "cpu":
            return "sdpa"
        return "sdpa_efficient" if self.padded or self.dtype == "fp32" else "sdpa_flash"


@dataclass(frozen=True)
class Inputs:
    """What an attention gets, and what comes back to it.

    Args:
        query: ``[batch, heads, length, head_dim]``, as key, value and gradient.
        key: Keys.
        value: Values.
        gradient: Of the output.
        weight: w, ``[heads]``; fp32, as a layer keeps it.
        shift: v, ``[heads]``.
        padding: ``[batch, length]``, True = ignore; None if the case has none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    weight: Tensor
    shift: Tensor
    padding: Tensor | None

    def detached(self) -> "Inputs":
        """The same numbers without gradients."""
        tensors = {name: value.detach() for name, value in vars(self).items() if value is not None}
        return replace(self, **tensors)


def make_inputs(case: Case, device: torch.device, copies: int) -> list[Inputs]:
    """Sets of inputs that share w, v and padding."""
    batch, heads, length, _ = case.shape
    generator = torch.Generator(device).manual_seed(0)
    low, high = WEIGHTS[case.weights]
    weight = torch.linspace(low, high, heads, device=device).requires_grad_()  # [H]
    shift = torch.linspace(-1, 1, heads, device=device).requires_grad_()  # [H]
    padding = (torch.arange(length, device=device) >= (length + 1) // 2).expand(batch, length).contiguous()  # [B, N]
    inputs = []
    for _ in range(copies):
        drawn = [
            torch.randn(case.shape, generator=generator, device=device, dtype=DTYPES[case.dtype]) for _ in range(4)
        ]
        query, key, value = (tensor.requires_grad_() for tensor in drawn[:3])
        inputs.append(Inputs(query, key, value, drawn[3], weight, shift, padding if case.padded else None))
    return inputs


# Contestants

Attend = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Contestant:
    """Somebody who computes attention.

    Args:
        label: The name for people.
        make: The attention of a case; the inputs are a sample.
        devices: Where it runs.
        ours: Whether the targets are its targets.
        distance: Whether it computes Eq. 6, and so has gradients of w and v.
        extra: Whether it takes part in full cases only, and where it is the baseline.
        compiled: Whether torch compiles it first, which takes long.
        quadratic: Whether it may form matrices of length².
        no_backward: Why its backward pass is left out; None if it is not.
    """

    label: str
    make: Callable[[Case, Inputs], Attend]
    devices: tuple[str, ...] = ("cpu", "cuda")
    ours: bool = False
    distance: bool = False
    extra: bool = False
    compiled: bool = False
    quadratic: bool = False
    no_backward: str | None = None


def distance_aware(backend: str) -> Callable[[Case, Inputs], Attend]:
    """Eq. 6 as the library computes it."""

    def make(case: Case, _: Inputs) -> Attend:
        return lambda one: distance_aware_attention(
            one.query,
            one.key,
            one.value,
            one.weight,
            one.shift,
            key_padding_mask=one.padding,
            causal=case.causal,
            backend=backend,
        )

    return make


def compiled_reference(case: Case, inputs: Inputs) -> Attend:
    """Eq. 6 in plain torch, through torch.compile."""
    attend = distance_aware("reference")(case, inputs)
    compiled: Attend = torch.compile(attend, dynamic=False)
    return compiled


def plain(backend: SDPBackend | None) -> Callable[[Case, Inputs], Attend]:
    """Attention without distances, torch's scaled_dot_product_attention."""

    def make(case: Case, sample: Inputs) -> Attend:
        # True = take part, the other way round than our padding. [B, 1, 1, N]
        mask = None if sample.padding is None else ~sample.padding[:, None, None]

        def attend(one: Inputs) -> Tensor:
            with nullcontext() if backend is None else sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    one.query, one.key, one.value, attn_mask=mask, is_causal=case.causal
                )

        return attend

    return make


def distance_score(weight: Tensor, shift: Tensor) -> Callable[..., Tensor]:
    """Eq. 6 as FlexAttention's score_mod: gets q·k/√d and answers ReLU(q·k/√d) · f(w·|i−j|; v)."""

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        weighted = weight[head] * (query - key).abs()
        coefficient = (1 + torch.exp(shift[head])) * torch.sigmoid(weighted - shift[head])
        return torch.relu(score) * coefficient

    return score_mod


def flex(case: Case, sample: Inputs, compiler: Callable[..., Any] = torch.compile) -> Attend:
    """Eq. 6 through FlexAttention; what is hidden is a block mask, which lets it skip blocks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, _, length, _ = case.shape
    padding = sample.padding

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key if case.causal else key >= 0
        return seen if padding is None else seen & ~padding[row, key]

    mask = None
    if case.causal or padding is not None:
        mask = create_block_mask(visible, batch, None, length, length, device=str(sample.query.device))
    attention = compiler(flex_attention, dynamic=False)
    score_mod = distance_score(sample.weight, sample.shift)

    def attend(one: Inputs) -> Tensor:
        output: Tensor = attention(one.query, one.key, one.value, score_mod=score_mod, block_mask=mask)
        return output

    return attend


FLEX_BACKWARD = (
    "left out: on CUDA it sums the gradients of w and v by atomics, which takes seconds; on a CPU it has no backward"
)

CONTESTANTS: dict[str, Contestant] = {
    "ours": Contestant("ours", distance_aware("auto"), ours=True, distance=True),
    "sdpa": Contestant("SDPA", plain(None), ("cpu",)),
    "sdpa_flash": Contestant("SDPA flash", plain(SDPBackend.FLASH_ATTENTION), ("cuda",)),
    "sdpa_cudnn": Contestant("SDPA cuDNN", plain(SDPBackend.CUDNN_ATTENTION), ("cuda",)),
    "sdpa_efficient": Contestant("SDPA efficient", plain(SDPBackend.EFFICIENT_ATTENTION), ("cuda",), extra=True),
    "sdpa_math": Contestant("SDPA math", plain(SDPBackend.MATH), extra=True, quadratic=True),
    "flex": Contestant(
        "Eq. 6, FlexAttention", flex, distance=True, extra=True, compiled=True, no_backward=FLEX_BACKWARD
    ),
    "compiled": Contestant(
        "Eq. 6, torch.compile", compiled_reference, distance=True, extra=True, compiled=True, quadratic=True
    ),
    "reference": Contestant(
        "Eq. 6, eager", distance_aware("reference"), distance=True, extra=True, quadratic=True
    ),
}  # fmt: skip
