"""Second derivatives of the fast paths, whose own backward is no graph: by way of the reference."""

import torch
from torch import Tensor

from datransformer.ops import reference


def differentiable_gradients(
    gradient: Tensor,
    inputs: list[Tensor],
    *,
    key_padding_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropped: Tensor | None = None,
) -> list[Tensor | None]:
    """Gradients of ``inputs`` (query, key, value, distance_weight, distance_shift) that can be differentiated again.

    A backward calls this where grad mode is on inside it: the caller then asked for create_graph=True. ``dropped`` is
    the mask of dropout with its scale, ``[batch, heads, query_length, key_length]``. O(query · key) memory.
    """
    with torch.enable_grad():
        # Views: query, key and value may be one tensor, and its gradient would be counted three times.
        query, key, value, weight, shift = views = [tensor.view_as(tensor) for tensor in inputs]
        output, weights = reference.attention(
            query,
            key,
            value,
            weight,
            shift,
            mapping="learnable_sigmoid",
            adjust="early_multiply",
            key_padding_mask=key_padding_mask,
            attn_mask=None,
            causal=causal,
            dropout_p=0.0,
            scale=scale,
        )
        if dropped is not None:
            output = (weights * dropped) @ value  # [B, H, Nq, D]
        needed = [view for view in views if view.requires_grad]
        found = iter(torch.autograd.grad(output, needed, gradient, create_graph=True))
    return [next(found) if view.requires_grad else None for view in views]
