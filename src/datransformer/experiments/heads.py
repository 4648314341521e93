"""What the paper shows in heat maps, and numbers for it: how sharp, sparse and far-sighted each attention head is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from datransformer.nn.distance_aware import DistanceAwareAttention
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
    sums: dict[str, Sums] = {}

    def add(name: str, weights: Tensor, padding: Tensor | None) -> None:
        found = sums.setdefault(name, {})
        for key, number in _describe(weights.double(), padding).items():
            found[key] = found.get(key, torch.zeros_like(number)) + number

    with watched(model, add), torch.no_grad():
        for inputs in batches:
            model(**inputs)
    return {
        name: {key: (total[key] / total["queries"]).tolist() for key in ("entropy", "keys", "distance")}
        for name, total in sums.items()
        if total["queries"] > 0
    }


def draw_maps(model: nn.Module, inputs: Mapping[str, Tensor], words: Sequence[str]) -> dict[str, Any]:
    """The attention weights between the words of one text, as in Fig. 8.

    Levels that attend between other things than these words, as between sentences, are left out.

    Args:
        model: In evaluation mode.
        inputs: Arguments of its forward: a batch of one text, without padding.
        words: The words of that text, one a token.

    Returns:
        ``tokens``, the words, and ``levels``, by attention module the weights [head][query][key], three decimals.
    """
    levels: dict[str, Any] = {}
    shape = (1, len(words), len(words))

    def keep(name: str, weights: Tensor, padding: Tensor | None) -> None:
        batch, _, *lengths = weights.shape
        if (batch, *lengths) == shape:
            # Rounded as Python does it: float32 has no 0.1 to round to.
            levels[name] = [[[round(one, 3) for one in row] for row in head] for head in weights[0].tolist()]

    with watched(model, keep), torch.no_grad():
        model(**inputs)
    if not levels:
        raise ValueError(f"words: got {len(words)}, expected one for each token of one text")
    return {"tokens": list(words), "levels": levels}


def starting_distances(options: Mapping[str, Any], heads: int) -> dict[str, list[float]]:
    """W and v of every head before training.

    Args:
        options: ``attention_options`` of a model.
        heads: How many it has.
    """
    module = DistanceAwareAttention(heads, heads, **options)
    return {name: getattr(module, name).tolist() for name in ("distance_weight", "distance_shift")}


@contextmanager
def without_distances(model: nn.Module) -> Iterator[None]:
    """Let every head of distance-aware attention have w = 0, so that f is 1 at any distance, until the block ends."""
    own = {
        parameter: parameter.detach().clone()
        for module in model.modules()
        if isinstance(module, DistanceAwareAttention)
        for name, parameter in module.named_parameters()
        if name.startswith("distance_weight")  # one for each side, where there are two
    }
    for parameter in own:
        nn.init.zeros_(parameter)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, values in own.items():
                parameter.copy_(values)


@contextmanager
def watched(model: nn.Module, look: Callable[[str, Tensor, Tensor | None], None]) -> Iterator[None]:
    """Call ``look`` with name, weights [batch, heads, queries, keys] and padding of every attention that is called."""
    handles = [
        module.register_forward_pre_hook(_hook(name, look), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, MultiheadAttention)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, look: Callable[[str, Tensor, Tensor | None], None]) -> Any:
    """A hook that computes the weights of a call beside it: the call itself may not form them."""

    def hook(module: MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        query, key, value, padding, *_ = (*arguments, None)
        _, weights = MultiheadAttention.forward(module, query, key, value, padding, average_attn_weights=False)
        assert weights is not None
        look(name, weights, padding)

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
