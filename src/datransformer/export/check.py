"""Whether a file answers what torch answers."""

from collections.abc import Callable

import numpy as np
import torch

from datransformer.data.errors import InputError
from datransformer.export.graphs import Graph
from datransformer.train.tasks import Answers

TOLERANCE = 1e-5
Runtime = Callable[[dict[str, torch.Tensor]], Answers]


def largest_difference(graph: Graph, runtime: Runtime) -> float:
    """The largest difference from torch in eager mode over all batches; raises if it is beyond `TOLERANCE`.

    Differences of numbers beyond 1, which ratings and scores may be, are relative.
    """
    worst = 0.0
    for inputs in graph.batches:
        with torch.no_grad():
            expected = graph.module(**inputs).numpy()
        if np.isnan(expected).any():
            raise InputError("the model answers NaN: its training diverged; a smaller --lr may help")
        sizes = " and ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
        worst = max(worst, check_difference(graph.name, sizes, runtime(inputs), expected))
    return worst


def check_difference(name: str, asked: str, got: Answers, expected: Answers) -> float:
    """The largest difference of what ``name`` has ``got`` for what was ``asked``; raises if it is too large."""
    if got.shape != expected.shape:
        raise InputError(f"{name}: answers {asked} with {list(got.shape)}, expected {list(expected.shape)}")
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - expected) / np.maximum(np.abs(expected), 1)
    apart[got == expected] = 0  # also where both are −inf, the score of a candidate that is padding
    difference = float(apart.max())
    if not difference <= TOLERANCE:
        raise InputError(
            f"{name}: answers {asked} otherwise than torch, largest difference {difference:.1e}, "
            f"expected at most {TOLERANCE:.0e}; nothing was written"
        )
    return difference
