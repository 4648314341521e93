"""DA-Transformer: Distance-aware Transformer (Wu et al., NAACL 2021). Each head has a taste for near or far."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from datransformer.nn.multihead import MixOptions, MultiheadAttention
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.attention import BACKENDS, AttentionOptions, distance_aware_attention
from datransformer.ops.checks import check_choice, check_shape
from datransformer.ops.mapping import MAPPINGS

# T of `clip` and b of `linear` start where f leaves room on both sides of zero distance; v = 0 is twice the sigmoid.
INITIAL_SHIFT = {"clip": 1.0, "linear": 1.0, "exponent": 0.0, "sigmoid": 0.0, "learnable_sigmoid": 0.0}


class DistanceAwareAttention(MultiheadAttention):
    """Multi-head attention re-scaled by real token distance (Eq. 6), a drop-in for torch.nn.MultiheadAttention.

    Has exactly 2 · num_heads parameters more than plain attention: ``distance_weight`` (the paper's w) and
    ``distance_shift`` (its v), each ``[num_heads]``.

    The paper gives no initial values. Here w is spread evenly over [−0.5, 0.5], so that the heads start with
    different tastes, as many near as far, and the stack as a whole with none; a single head starts at 0. v starts
    at 0, the plain sigmoid times two; T of ``clip`` and b of ``linear`` start at 1.

    A distance has no direction: reversing a text reverses the output and does nothing else. Where left and right
    matter, keep position embeddings beside it, or pass a causal mask.

    Args:
        embed_dim: Width of the inputs and of the output.
        num_heads: Number of heads.
        head_dim: Width of a head, embed_dim / num_heads if None.
        dropout: Probability of dropping an attention weight in training.
        bias: Whether the projections have a bias.
        mapping: A key of `MAPPINGS`.
        adjust: A key of `ADJUSTMENTS`.
        distance_weight_init: First value of w: a number for all heads, or one per head.
        distance_shift_init: First value of v, likewise.
        backend: Passed on to `datransformer.distance_aware_attention`.
        batch_first: True, for those who are used to writing it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        mapping: str = "learnable_sigmoid",
        adjust: str = "early_multiply",
        distance_weight_init: float | Sequence[float] | Tensor | None = None,
        distance_shift_init: float | Sequence[float] | Tensor | None = None,
        backend: str = "auto",
        batch_first: bool = True,
    ) -> None:
        if not batch_first:
            raise ValueError("batch_first: got False, expected True: inputs are (batch, length, embed_dim)")
        super().__init__(embed_dim, num_heads, head_dim, dropout=dropout, bias=bias)
        check_choice("mapping", mapping, MAPPINGS)
        check_choice("adjust", adjust, ADJUSTMENTS)
        check_choice("backend", backend, ["auto", *BACKENDS])
        self.mapping = mapping
        self.adjust = adjust
        self.backend = backend
        weight, shift = initial_distances(num_heads, mapping, distance_weight_init, distance_shift_init)
        self.distance_weight = nn.Parameter(weight)  # [H]
        self.distance_shift = nn.Parameter(shift)  # [H]

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        """Eq. 6, or the chosen mapping and adjusting method."""
        inputs = (query, key, value, self.distance_weight, self.distance_shift)
        chosen: AttentionOptions = {
            "mapping": self.mapping,
            "adjust": self.adjust,
            "backend": self.backend,
            "scale": None,
            **options,
        }
        if return_weights:
            return distance_aware_attention(*inputs, return_weights=True, **chosen)
        return distance_aware_attention(*inputs, **chosen), None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mapping={self.mapping!r}, adjust={self.adjust!r}, backend={self.backend!r}"


def initial_distances(
    num_heads: int,
    mapping: str,
    weight_init: float | Sequence[float] | Tensor | None,
    shift_init: float | Sequence[float] | Tensor | None,
) -> tuple[Tensor, Tensor]:
    """First values of w and v [num_heads], arguments as `DistanceAwareAttention` takes them."""
    if weight_init is None:
        weight_init = [head / (num_heads - 1) - 0.5 for head in range(num_heads)] if num_heads > 1 else 0.0
    if shift_init is None:
        shift_init = INITIAL_SHIFT[mapping]
    return (
        _per_head("distance_weight_init", weight_init, num_heads),
        _per_head("distance_shift_init", shift_init, num_heads),
    )


def _per_head(argument: str, values: float | Sequence[float] | Tensor, num_heads: int) -> Tensor:
    try:
        tensor = torch.as_tensor(values, dtype=torch.get_default_dtype()).detach()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{argument}: got {values!r}, expected a number, or one per head") from error
    if tensor.dim() == 0:
        tensor = tensor.expand(num_heads)
    check_shape(argument, tensor, "one number, or (num_heads,)", (num_heads,))
    if tensor.device.type != "meta" and not tensor.isfinite().all():
        raise ValueError(f"{argument}: got {tensor.tolist()}, expected finite numbers")
    return tensor.clone()  # [H]
