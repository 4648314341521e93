"""Triton kernels of `word_rows.py`."""

import triton
import triton.language as tl


@triton.jit
def sum_rows_kernel(
    gradient_ptr, order_ptr, starts_ptr, words_ptr, sums_ptr, place_ptr, width,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of a word, that of its tokens together, and the place of the word in the table."""
    slot = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    start, end = tl.load(starts_ptr + slot), tl.load(starts_ptr + slot + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(start, end, TOKENS):
        index = first + tl.arange(0, TOKENS)
        tokens = tl.load(order_ptr + index, mask=index < end, other=0).to(tl.int64)
        inside = (index < end)[:, None] & (columns < width)[None, :]
        rows = tl.load(gradient_ptr + tokens[:, None] * width + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(rows.to(tl.float32), 0)
    tl.store(sums_ptr + slot * width + columns, total, mask=columns < width)
    if start < end:
        tl.store(place_ptr + tl.load(words_ptr + slot), slot.to(tl.int32))


@triton.jit
def move_rows_kernel(
    weight_ptr, average_ptr, square_ptr, sums_ptr, place_ptr, step_ptr, rate_ptr, scale_ptr, broken_ptr, rows, width,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, EPS: tl.constexpr,
    DECAY: tl.constexpr, FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A step of AdamW for some rows; ``LOG_BETA1`` and ``LOG_BETA2`` are to the base 2."""
    if tl.load(broken_ptr) == 0.0:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (columns < width)[None, :]
        slot = tl.load(place_ptr + row, mask=row < rows, other=-1).to(tl.int64)
        read = inside & (slot >= 0)[:, None]
        gradient = tl.load(sums_ptr + slot[:, None] * width + columns[None, :], mask=read, other=0.0)
        gradient *= tl.load(scale_ptr)
        place = row.to(tl.int64)[:, None] * width + columns[None, :]
        weight = tl.load(weight_ptr + place, mask=inside)
        average = tl.load(average_ptr + place, mask=inside)
        square = tl.load(square_ptr + place, mask=inside)

        rate = tl.load(rate_ptr) * FACTOR
        step = tl.load(step_ptr).to(tl.float64)
        first = (1.0 - tl.exp2(step * LOG_BETA1)).to(tl.float32)
        second = (1.0 - tl.exp2(step * LOG_BETA2)).to(tl.float32)
        average = BETA1 * average + (1.0 - BETA1) * gradient
        square = BETA2 * square + (1.0 - BETA2) * gradient * gradient
        weight -= rate * DECAY * weight
        weight -= rate / first * average / (tl.sqrt(square) / tl.sqrt(second) + EPS)
        tl.store(weight_ptr + place, weight, mask=inside)
        tl.store(average_ptr + place, average, mask=inside)
        tl.store(square_ptr + place, square, mask=inside)
