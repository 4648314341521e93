"""A running mean of the weights of a run, which is often better than where they are at any one step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LONGEST = 25  # steps between two looks at most
OFTEN = 10  # looks in the time that counts: whoever reads all weights pays for all rows of word vectors


class Average:
    """A mean in which a step counts ``keep`` times as much as the one after it.

    Weights are looked at every tenth of that time or oftener, and stand for the steps since they were last looked at.

    Args:
        model: Whose parameters are averaged, as far as they are trained.
        keep: Below 1; the mean is over the last 1 / (1 − keep) steps or so. 0: there is none.
    """

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._keep = keep
        self._every = min(max(round(1 / (1 - keep) / OFTEN), 1), LONGEST)
        self._weights = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.means: dict[str, Tensor] = {}
        self.step = 0

    def is_due(self, step: int, *, at_once: bool = False) -> bool:
        """Whether weights should be looked at after ``step``: now and then, or whenever the mean is needed."""
        return self._keep > 0 and step > self.step and (at_once or step % self._every == 0)

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Look at the weights as they are after ``step``."""
        share = (1 - self._keep ** (step - self.step)) / (1 - self._keep**step)
        self.step = step
        if not self.means:
            self.means = {name: weight.detach().clone() for name, weight in self._weights.items()}
        else:
            torch._foreach_lerp_(list(self.means.values()), list(self._weights.values()), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the mean, if there is one, until the block ends."""
        if not self.means:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self.means)
        try:
            yield
        finally:
            self._put(own)

    def load(self, means: Mapping[str, Tensor], step: int) -> None:
        """Go on from ``means``, as they were after ``step``."""
        self.step = step
        self.means = {name: means[name].to(weight.device) for name, weight in self._weights.items() if means}

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._weights[name].copy_(value)
