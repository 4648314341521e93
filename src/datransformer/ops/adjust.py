"""The four ways to adjust attention by the re-scaled coefficients (Section 3.3, and the comparison in Section 4.4).

Each takes the scaled scores QKᵀ/√d [batch, heads, query, key], coefficients that broadcast to them, and the softmax
to apply, which knows the masks: padding must be hidden after the adjusting, because a −inf put in before the ReLU
would come out as a visible score of 0. None of them hides what is masked once the softmax is done; the caller does.
"""

from collections.abc import Callable

from torch import Tensor

Softmax = Callable[[Tensor], Tensor]
Adjustment = Callable[[Tensor, Tensor, Softmax], Tensor]


def early_multiply(scores: Tensor, coefficients: Tensor, softmax: Softmax) -> Tensor:
    """Eq. 6: softmax(ReLU(QKᵀ) · f / √d). The paper's method, and the only one of the four with a ReLU."""
    return softmax(scores.relu() * coefficients)


def early_add(scores: Tensor, coefficients: Tensor, softmax: Softmax) -> Tensor:
    """softmax(QKᵀ/√d + f)."""
    return softmax(scores + coefficients)


def late_multiply(scores: Tensor, coefficients: Tensor, softmax: Softmax) -> Tensor:
    """softmax(QKᵀ/√d) · f: the weights of a query no longer sum to one."""
    return softmax(scores) * coefficients


def late_add(scores: Tensor, coefficients: Tensor, softmax: Softmax) -> Tensor:
    """softmax(QKᵀ/√d) + f: the weights of a query no longer sum to one."""
    return softmax(scores) + coefficients


ADJUSTMENTS: dict[str, Adjustment] = {
    "early_multiply": early_multiply,
    "early_add": early_add,
    "late_multiply": late_multiply,
    "late_add": late_add,
}
