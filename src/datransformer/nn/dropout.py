"""Dropout that does not spend most of its time drawing random numbers."""

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # the probability is rounded to a multiple of 1 / LEVELS


class Dropout(nn.Dropout):
    """torch.nn.Dropout, two to three times as fast on a CPU: one random number decides over four units.

    Elsewhere, and under torch.compile and torch.export, it is torch's own.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        eager_on_cpu = inputs.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (self.training and eager_on_cpu and 0 < dropped < LEVELS):
            return super().forward(inputs)
        count = inputs.numel()
        drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        levels = drawn.view(torch.int16)[:count].view(inputs.shape)  # −32768 … 32767, each as likely
        kept = (levels >= dropped - LEVELS // 2).to(inputs.dtype)
        return inputs * kept.mul_(LEVELS / (LEVELS - dropped))
