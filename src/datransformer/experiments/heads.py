"""Numbers for what the paper shows in heat maps: how sharp, how sparse and how far-sighted each attention head is."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from datransformer.nn.multihead import MultiheadAttention

MASS = 0.9  # of a query's attention
Sums = dict[str, Tensor]


def measure_heads(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, dict[str, list[float]]]:
    """For every attention module by name, a list over its heads of each of these, averaged over queries.

    - ``entropy``: of the attention weights, as a share of the entropy of equal weights. 1: soft, 0: one key.
    - ``keys``: the share of the visible keys that hold 90 % of the weight. Small: sparse.
    - ``distance``: mean distance to what is attended to, as a share of the mean distance to all visible keys. Below 1:
      near, above 1: far.

    Queries that see a single key say nothing and are left out.

    Args:
        model: In evaluation mode.
        batches: Arguments of its forward.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, MultiheadAttention)}
    sums: dict[str, Sums] = {name: {} for name in modules}
    handles = [
        module.register_forward_pre_hook(_watch(sums[name]), with_kwargs=True) for name, module in modules.items()
    ]
    try:
        with torch.no_grad():
            for inputs in batches:
                model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: {key: (total[key] / total["queries"]).tolist() for key in ("entropy", "keys", "distance")}
        for name, total in sums.items()
        if total and total["queries"] > 0
    }


def _watch(sums: Sums) -> Any:
    """A hook that computes the weights of a call beside it, and adds up what they say."""

    def hook(module: MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        query, key, value, padding, *_ = (*arguments, None)
        _, weights = MultiheadAttention.forward(module, query, key, value, padding, average_attn_weights=False)
        assert weights is not None
        for name, number in _describe(weights.double(), padding).items():
            sums[name] = sums.get(name, torch.zeros_like(number)) + number

    return hook


def _describe(weights: Tensor, padding: Tensor | None) -> Sums:
    """Sums over the queries of weights [batch, heads, queries, keys]."""
    batch, _, queries, keys = weights.shape
    hidden = torch.zeros(batch, keys, dtype=torch.bool, device=weights.device) if padding is None else padding
    seen = (~hidden)[:, None, None].double()  # [B, 1, 1, K]
    count = seen.sum(-1)  # [B, 1, 1]
    counted = ((~hidden[:, keys - queries :]) & (count[:, 0] > 1))[:, None]  # [B, 1, Q]
    places = torch.arange(keys, device=weights.device)
    apart = (places[keys - queries :, None] - places).abs().double()  # [Q, K]
    weights = weights.clamp(min=0)  # late methods may go below, and do not add up to 1
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / count.clamp(min=2).log()  # [B, H, Q]
    largest = weights.sort(-1, descending=True).values.cumsum(-1)  # [B, H, Q, K]
    needed = ((largest < MASS).sum(-1) + 1) / count.clamp(min=1)
    mean = (apart * seen).sum(-1) / count.clamp(min=1)  # [B, 1, Q]
    distance = (weights * apart).sum(-1) / mean.clamp(min=1e-12)

    def total(values: Tensor) -> Tensor:
        return torch.where(counted, values, 0.0).sum((0, 2))  # [H]

    return {
        "entropy": total(entropy),
        "keys": total(needed),
        "distance": total(distance),
        "queries": counted.sum().double(),
    }
