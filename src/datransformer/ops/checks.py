"""Checks on arguments. Every message names the argument, what came and what was expected."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral

import torch
from torch import Tensor


def check_choice(argument: str, value: object, known: Iterable[str]) -> None:
    """Raise unless ``value`` is one of the ``known`` names."""
    names = list(known)
    if value not in names:
        raise ValueError(f"{argument}: got {value!r}, expected one of {', '.join(map(repr, names))}")


def check_dropout(argument: str, value: object) -> None:
    """Raise unless ``value`` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument}: got {type(value).__name__}, expected a float in [0, 1)")
    if not 0 <= value < 1:
        raise ValueError(f"{argument}: got {value}, expected a float in [0, 1)")


def check_positive_float(argument: str, value: object) -> None:
    """Raise unless ``value`` is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument}: got {type(value).__name__}, expected a positive finite number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{argument}: got {value}, expected a positive finite number")


def check_positive_int(argument: str, value: object) -> None:
    """Raise unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{argument}: got {type(value).__name__} {value!r}, expected a positive int")
    if value < 1:
        raise ValueError(f"{argument}: got {value}, expected a positive int")


def check_tensor(argument: str, value: object) -> None:
    """Raise unless ``value`` is a dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{argument}: got {type(value).__name__}, expected a torch.Tensor")
    if value.is_nested:
        raise TypeError(f"{argument}: got a nested tensor, expected a padded one with key_padding_mask")


def check_floating(argument: str, value: object) -> None:
    """Raise unless ``value`` is a floating-point tensor."""
    check_tensor(argument, value)
    assert isinstance(value, Tensor)
    if not value.is_floating_point():
        raise TypeError(
            f"{argument}: got dtype {value.dtype}, expected a floating-point tensor (token ids are embedded first)"
        )


def check_shape(argument: str, value: Tensor, axes: str, expected: Sequence[int]) -> None:
    """Raise unless ``value`` has the ``expected`` shape, whose axes are called ``axes`` in the message."""
    if value.dim() != len(expected) or any(got != want for got, want in zip(value.shape, expected, strict=True)):
        raise ValueError(f"{argument}: got shape {tuple(value.shape)}, expected {axes} = {tuple(expected)}")


def check_length(argument: str, length: int) -> None:
    """Raise on an empty sequence."""
    if length == 0:
        raise ValueError(f"{argument}: got length 0, expected at least one token (pad an empty text and mask it)")


def check_bool_mask(argument: str, value: object, axes: str, expected: Sequence[int]) -> None:
    """Raise unless ``value`` is a bool tensor of the ``expected`` shape."""
    check_tensor(argument, value)
    assert isinstance(value, Tensor)
    if value.dtype != torch.bool:
        raise TypeError(f"{argument}: got dtype {value.dtype}, expected torch.bool (True = ignore)")
    check_shape(argument, value, axes, expected)


def check_attn_mask(argument: str, value: object, expected: Sequence[int]) -> None:
    """Raise unless ``value`` is a bool or float tensor that broadcasts to ``expected`` over its leading axes."""
    check_tensor(argument, value)
    assert isinstance(value, Tensor)
    if value.dtype != torch.bool and not value.is_floating_point():
        raise TypeError(f"{argument}: got dtype {value.dtype}, expected torch.bool (True = ignore) or a float dtype")
    shape, full = tuple(value.shape), tuple(expected)
    if len(shape) not in (2, 4) or any(
        got != want and not (got == 1 and axis < 2)
        for axis, (got, want) in enumerate(zip((1, 1, *shape)[-4:], full, strict=True))
    ):
        raise ValueError(
            f"{argument}: got shape {shape}, expected (query_length, key_length) = {full[2:]} "
            f"or (batch, heads, query_length, key_length) = {full}, where batch and heads may be 1"
        )


def under_autocast(tensor: Tensor) -> bool:
    """Whether operations on ``tensor`` choose their own precision here."""
    device = tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)
