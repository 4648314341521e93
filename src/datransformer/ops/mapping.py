"""The five distance mappings f(·) of the paper (Section 3.2, and the comparison in Section 4.3).

Every mapping takes the weighted distances ``weighted`` = w·R and the head's second number, ``shift``, and returns
the re-scaled coefficients. R_ij = |i−j| is Toeplitz, so f is evaluated once per distance and never once per pair.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from datransformer.ops.checks import check_choice

Mapping = Callable[[Tensor, Tensor], Tensor]

# e^50 ≈ 5e21 times a score, a distance and a sum over 100,000 of them still fits in fp32; e^88 alone does not.
MAX_EXPONENT = 50.0


def clip(weighted: Tensor, shift: Tensor) -> Tensor:
    """f(x) = min(x, T). The threshold T is the head's ``shift``; freeze that parameter to hold T constant."""
    return torch.minimum(weighted, shift)


def linear(weighted: Tensor, shift: Tensor) -> Tensor:
    """f(x) = k·x + b. The slope k is absorbed by w (k·w·R is one number times R); b is the head's ``shift``."""
    return weighted + shift


def exponent(weighted: Tensor, shift: Tensor) -> Tensor:
    """f(x) = e^x, held at e^50: printed as it stands it is infinite in fp32 from w·R = 89 on. Ignores ``shift``."""
    return weighted.clamp(max=MAX_EXPONENT).exp()


def sigmoid(weighted: Tensor, shift: Tensor) -> Tensor:
    """f(x) = 1 / (1 + e^−x). Ignores ``shift``."""
    return weighted.sigmoid()


def learnable_sigmoid(weighted: Tensor, shift: Tensor) -> Tensor:
    """Eq. 5: f(x; v) = (1 + e^v) / (1 + e^(v−x)), with v the head's ``shift``.

    Written as (1 + e^v) · sigmoid(x − v), the same function. The printed quotient overflows: with w = −1 and
    R = 100 its denominator is infinite in fp32 and its gradient NaN.
    """
    return (1 + shift.exp()) * torch.sigmoid(weighted - shift)


MAPPINGS: dict[str, Mapping] = {
    "clip": clip,
    "linear": linear,
    "exponent": exponent,
    "sigmoid": sigmoid,
    "learnable_sigmoid": learnable_sigmoid,
}


def distance_coefficients(distances: Tensor, weight: Tensor, shift: Tensor, mapping: str) -> Tensor:
    """Map ``distances`` [length] with each head's ``weight`` and ``shift`` [heads] to coefficients [heads, length]."""
    check_choice("mapping", mapping, MAPPINGS)
    weighted = weight.unsqueeze(-1) * distances  # [H, L]
    return MAPPINGS[mapping](weighted, shift.unsqueeze(-1)).expand_as(weighted)  # [H, L]
