"""What the fast paths, `fused.py` and `blocked.py`, have in common: the calls that are beyond both."""

import torch
from torch import Tensor

MAX_HEAD_DIM = 256


def empty_rows_like(tensor: Tensor) -> Tensor:
    """Memory in the layout of ``tensor`` if its rows are contiguous then, which ties between strides can prevent."""
    memory = torch.empty_like(tensor)
    return memory if memory.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def common_reason_against(
    query: Tensor, value: Tensor, *, mapping: str, adjust: str, attn_mask: Tensor | None, return_weights: bool
) -> str | None:
    """Why no kernel can run this call; None if one may."""
    if (mapping, adjust) != ("learnable_sigmoid", "early_multiply"):
        return (
            f"mapping {mapping!r} with adjust {adjust!r} has no kernel, only 'learnable_sigmoid' with 'early_multiply'"
        )
    if return_weights:
        return "the weights are asked for, by return_weights or need_weights, and are never formed"
    if attn_mask is not None:
        return "attn_mask is given"
    if query.shape[-1] > MAX_HEAD_DIM:
        return f"head_dim is {query.shape[-1]}, more than {MAX_HEAD_DIM}"
    if value.shape[-1] != query.shape[-1]:
        return f"value_dim is {value.shape[-1]}, not head_dim, {query.shape[-1]}"
    if query.numel() == 0 or value.numel() == 0:
        return "a tensor is empty"
    if torch.compiler._is_exporting_flag:  # is_exporting() is always true to torch.compile before torch 2.13
        return "an exported program holds plain operators only"
    if not torch.compiler.is_compiling() and is_transformed():
        return "torch.func and forward-mode derivatives see plain operators only"
    return None


def is_transformed() -> bool:
    """Whether the call is inside of vmap, grad, jvp and the like, or of a level of forward-mode derivatives."""
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None
