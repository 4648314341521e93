"""AdamW on a GPU for a table of word vectors, of which a batch reads a few thousand rows.

As a whole, the gradient of such a table is written, added up, scaled and read again in every step, and nearly all of it
is 0. Here it is a row for each word of the batch, and one kernel moves all rows of the table by it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor, nn

from datransformer.train.optimizer import FACTOR
from datransformer.train.word_kernels import count_step_kernel, move_rows_kernel, sum_rows_kernel

TOKENS = 16  # of a word, that are added up at a time; fewer where vectors are wide
ROWS = 8  # of the table, that a program moves; fewer where they are wide
WIDEST = 4096


class WordRows:
    """A table of word vectors in training.

    Args:
        table: On its CUDA device; its weight has to fit.
    """

    def __init__(self, table: nn.Embedding) -> None:
        assert self.fits(table.weight)
        self.weight, self._table = table.weight, table
        width = table.embedding_dim
        columns = triton.next_power_of_2(width)
        self._widths = {"WIDTH": width, "COLUMNS": columns}
        self._tokens, self._rows = min(TOKENS, WIDEST // columns), max(min(ROWS, 1024 // columns), 1)
        self._place = torch.empty(len(table.weight), dtype=torch.int32, device=table.weight.device)
        self._pace = torch.empty(2, device=table.weight.device)
        self._looked_up: list[Tensor] = []

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether the kernels are for such a table."""
        return weight.dtype == torch.float32 and weight.is_contiguous() and weight.shape[1] <= WIDEST

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Let gradients go as far as what is looked up in the table, and no further."""
        self._looked_up.clear()
        hook = self._table.register_forward_hook(self._catch, prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def _catch(self, module: nn.Module, arguments: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        leaf = vectors.detach().requires_grad_()
        self._looked_up.append(leaf)
        return leaf

    def gradient(self, words: Tensor, starts: Tensor, order: Tensor) -> Tensor:
        """That of each word, a row each, once all is differentiated; arguments as from `graphs.index_words`."""
        (looked_up,) = self._looked_up
        assert looked_up.grad is not None
        sums = torch.empty(len(words), self.weight.shape[1], device=words.device)
        self._place.fill_(-1)
        sum_rows_kernel[(len(words),)](
            looked_up.grad.contiguous(), order, starts, words, sums, self._place, TOKENS=self._tokens, **self._widths
        )
        self._looked_up.clear()
        return sums

    def move(
        self,
        state: Mapping[str, Tensor],
        options: Mapping[str, Any],
        sums: Tensor,
        rate: Tensor,
        scale: Tensor,
        broken: Tensor,
    ) -> None:
        """A step of AdamW.

        Args:
            state: The table's, as torch.optim.AdamW keeps it.
            options: Of its group, as `in_groups` has them.
            sums: What `gradient` gave last.
            rate: The learning rate.
            scale: What gradients are multiplied by.
            broken: Unless it is 0, nothing changes.
        """
        beta1, beta2 = options["betas"]
        rate = rate if options[FACTOR] == 1 else rate * options[FACTOR]
        logarithms = {"LOG_BETA1": math.log2(beta1), "LOG_BETA2": math.log2(beta2)}
        count_step_kernel[(1,)](state["step"], rate, broken, self._pace, **logarithms, num_warps=1)
        rows = len(self.weight)
        tables = self.weight, state["exp_avg"], state["exp_avg_sq"]
        move_rows_kernel[(triton.cdiv(rows, self._rows),)](
            *tables, sums, self._place, rate, self._pace, scale, broken, rows,
            BETA1=beta1, BETA2=beta2, EPS=options["eps"], DECAY=options["weight_decay"],
            ROWS=self._rows, **self._widths,
        )  # fmt: skip
