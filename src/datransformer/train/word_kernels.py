"""Triton kernels of `word_rows.py`. A width that is known lets them read and write four numbers at a time."""

import triton
import triton.language as tl


@triton.jit
def sum_rows_kernel(
    gradient_ptr, order_ptr, starts_ptr, words_ptr, sums_ptr, place_ptr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The gradient of a word, that of its tokens together, and the place of the word in the table."""
    slot = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    start, end = tl.load(starts_ptr + slot), tl.load(starts_ptr + slot + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(start, end, TOKENS):
        index = first + tl.arange(0, TOKENS)
        tokens = tl.load(order_ptr + index, mask=index < end, other=0).to(tl.int64)
        inside = (index < end)[:, None] & (columns < WIDTH)[None, :]
        rows = tl.load(gradient_ptr + tokens[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(rows.to(tl.float32), 0)
    tl.store(sums_ptr + slot * WIDTH + columns, total, mask=columns < WIDTH)
    if start < end:
        tl.store(place_ptr + tl.load(words_ptr + slot), slot.to(tl.int32))


@triton.jit
def count_step_kernel(step_ptr, rate_ptr, broken_ptr, pace_ptr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr):
    """Count a step, unless it is broken, and find what AdamW's corrections make of the rate and of the root.

    In float64: 1 − β₂ is lost in float32 otherwise. The logarithms are to the base 2.
    """
    step = tl.load(step_ptr) + (1.0 - tl.load(broken_ptr))
    tl.store(step_ptr, step)
    first = 1.0 - tl.exp2(step.to(tl.float64) * LOG_BETA1)
    second = 1.0 - tl.exp2(step.to(tl.float64) * LOG_BETA2)
    tl.store(pace_ptr, (tl.load(rate_ptr).to(tl.float64) / first).to(tl.float32))
    tl.store(pace_ptr + 1, tl.rsqrt(second).to(tl.float32))


@triton.jit
def move_rows_kernel(
    weight_ptr, average_ptr, square_ptr, sums_ptr, place_ptr, rate_ptr, pace_ptr, scale_ptr, broken_ptr, rows,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, DECAY: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A step of AdamW for some rows."""
    if tl.load(broken_ptr) == 0.0:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (columns < WIDTH)[None, :]
        place = row[:, None] * WIDTH + columns[None, :]
        weight = tl.load(weight_ptr + place, mask=inside)
        average = tl.load(average_ptr + place, mask=inside)
        square = tl.load(square_ptr + place, mask=inside)
        slot = tl.load(place_ptr + row, mask=row < rows, other=-1).to(tl.int64)
        read = inside & (slot >= 0)[:, None]
        gradient = tl.load(sums_ptr + slot[:, None] * WIDTH + columns[None, :], mask=read, other=0.0)
        gradient *= tl.load(scale_ptr)

        average = BETA1 * average + (1.0 - BETA1) * gradient
        square = BETA2 * square + (1.0 - BETA2) * gradient * gradient
        weight -= tl.load(rate_ptr) * DECAY * weight
        weight -= tl.load(pace_ptr) * average / (tl.sqrt(square) * tl.load(pace_ptr + 1) + EPS)
        tl.store(weight_ptr + place, weight, mask=inside)
        tl.store(average_ptr + place, average, mask=inside)
        tl.store(square_ptr + place, square, mask=inside)
