"""Which parameters weight decay is for."""

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: decay for matrices, none for vectors, which are biases, norms, and w and v.

    transformers' Trainer leaves out biases and norms by their names, but not w and v, and decay pulls a head's w to 0,
    where it has no taste: pass ``optimizers=(torch.optim.AdamW(parameter_groups(model, 0.01)), None)``.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
