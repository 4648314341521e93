"""Relative positions, and the ways between them and (query, key) pairs.

Queries are aligned to the end of the keys: query i sits at position i + key_length − query_length. Along the axis
that this file calls `offset`, entry m stands for key position − query position = m − (key_length − 1). The axis has
query_length + key_length entries; the last one belongs to no pair and is there to make the reshape come out even.
"""

import torch
from torch import Tensor


def relative_positions(query_length: int, key_length: int, *, like: Tensor) -> Tensor:
    """Query position minus key position for every offset: key_length − 1 down to −query_length, on like's device."""
    return torch.arange(key_length - 1, -query_length - 1, -1, device=like.device)  # [Nq+Nk]


def skew(by_offset: Tensor, key_length: int) -> Tensor:
    """[..., query, offset] to [..., query, key]: row i is shifted so that each entry meets the key it belongs to.

    Entry (i, j) is offset j + (query_length − 1 − i) of row i, which in row-major order lies one element further
    left in each following row. Cutting the flattened rows one element shorter therefore lines all of them up.
    """
    query_length, offsets = by_offset.shape[-2:]
    flat = by_offset.flatten(-2)[..., query_length - 1 : query_length * offsets - 1]
    rows: Tensor = flat.unflatten(-1, (query_length, offsets - 1))  # [..., Nq, Nq+Nk-1]
    return rows[..., :key_length]


def unskew(by_pair: Tensor) -> Tensor:
    """[..., query, key] to [..., query, offset]: the inverse of `skew`, zero where an offset belongs to no pair."""
    query_length, key_length = by_pair.shape[-2:]
    rows = torch.nn.functional.pad(by_pair, (0, query_length - 1))  # [..., Nq, Nq+Nk-1]
    flat = torch.nn.functional.pad(rows.flatten(-2), (query_length - 1, 1))
    by_offset: Tensor = flat.unflatten(-1, (query_length, query_length + key_length))
    return by_offset


def toeplitz(by_offset: Tensor, query_length: int, key_length: int) -> Tensor:
    """[..., offset] to [..., query, key]: the matrix whose entries depend on the offset alone.

    By index and not by `skew`: from torch.compile with dynamic lengths the latter gets a backward for one length only.
    """
    rows = torch.arange(query_length - 1, -1, -1, device=by_offset.device)
    keys = torch.arange(key_length, device=by_offset.device)
    return by_offset[..., rows.unsqueeze(-1) + keys]
