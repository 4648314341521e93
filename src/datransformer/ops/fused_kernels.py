"""The Triton kernels behind `datransformer.ops.fused`: Eq. 6 with the learnable sigmoid, forward and backward.

Names: c = (1 + e^v)·g is the re-scaled coefficient of a pair and g = sigmoid(w·|i−j| − v) its gate. A tile is *far*
when all of its pairs are so far apart that c has reached its limit: 1 + e^v for w > 0, 0 for w < 0. Far tiles of a
head with w > 0 need no gate. Those of a head with w < 0 are never visited: every far key has score 0, hence one
common weight per query, and all that is needed of the values, or of the output gradients, is their sum, which comes
from prefix sums over blocks.

Scores are ≥ 0 and live in the log2 domain; the running maximum starts at 0, which no masked score can spoil. Of each
query two statistics are kept: the maximum `peak` (or 0 where that does, see `forward_kernel`), and `volume`, which is
the log2 of the sum, or in fp32 (PRECISION "ieee") the sum itself. It is +inf if the query sees no key.
exp2(score − peak − volume), or exp2(score − peak) / volume in fp32, is an attention weight.

Coefficients above 1 magnify errors of the weights' gradients: with v = 10 scores reach 1e5 and c is 2e4. A query with
a single winner must then have a weight of 1 and a gradient of 0, as in the reference, and not nearly. That is why the
sum is not rounded through a logarithm in fp32, and why there and in heads with large v the query kernel makes delta
from the very products it is subtracted from, in a pass of its own. Elsewhere delta is output · gradient.

Sequences are either the batches of [batch, heads, length, head_dim], or, with VARLEN, stretches of one long row of
tokens, [1, heads, total, head_dim], between starts[i] and starts[i + 1]. What is kept of each query lies in
[batch, heads, …, length], or [1, heads, …, total]; a *line* is a row of that.

Dropout draws a number for each pair from its place alone, by integer hashing, so that the backward draws the same.
Every far key of a head with w < 0 may then be dropped or not, and none of its tiles is skipped.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950216293335)  # the nearest fp32
LOG2E_REST: tl.constexpr = tl.constexpr(1.9259629911266175e-08)
# v beyond which c can be so large, 1 + e^3 = 21, that delta must be exact.
EXACT_DELTA_ABOVE: tl.constexpr = tl.constexpr(3.0)
DARING_LIMIT: tl.constexpr = tl.constexpr(2.0**100)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def order_kernel(weight_ptr, order_ptr, heads, HEADS: tl.constexpr):
    """Heads by falling weight: large w means much work, and the longest job should start first. A program a head.

    In a kernel of its own: the assembler knows that all threads load the same number, but not that all compute it, and
    a loop that some threads might leave early is slower.
    """
    head, index = tl.program_id(0), tl.arange(0, HEADS)
    inside = index < heads
    weight = tl.load(weight_ptr + index, mask=inside, other=float("-inf"))
    weight = tl.where(weight == weight, weight, float("-inf"))  # a NaN must not leave a head without its turn
    mine = tl.load(weight_ptr + head)
    mine = tl.where(mine == mine, mine, float("-inf"))
    ahead = ((weight > mine) | ((weight == mine) & (index < head))) & inside
    tl.store(order_ptr + tl.sum(ahead.to(tl.int32), 0), head)


@triton.jit
def rectified(scores):
    """ReLU, through which a NaN goes as in torch."""
    return tl.maximum(scores, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gate(distance, weight, shift, PRECISION: tl.constexpr):
    """sigmoid(w·distance − v).

    In fp32 the rounding of the exponent is made good: with v = 10 scores are c ≈ 2e4 times as large as the query-key
    product, and a relative error of 1e-6 in c would show in the weights. Elsewhere the root of the reciprocal is
    squared, one instruction where a division is many.
    """
    if PRECISION == "ieee":
        exponent = shift - weight * distance
        scaled = exponent * LOG2E
        power = tl.exp2(scaled)
        lost = tl.fma(exponent, LOG2E, -scaled) + exponent * LOG2E_REST
        power = tl.where(power < float("inf"), tl.fma(power, lost * LN2, power), power)
        opened = tl.div_rn(tl.full(power.shape, 1.0, tl.float32), 1.0 + power)
    else:
        root = tl.rsqrt(1.0 + tl.exp2(shift * LOG2E - (weight * LOG2E) * distance))
        opened = root * root
    return opened


@triton.jit
def rise_of(shift, scale):
    """e^v, and (1 + e^v)·scale·log2(e), which takes a gated product to its score in the log2 domain.

    In fp64, for once: an error here is in all scores of the head alike, and with v = 10 they reach 1e5.
    """
    growth = tl.exp(shift.to(tl.float64))
    bound = (1.0 + growth) * scale * (LOG2E + LOG2E_REST)
    return growth.to(tl.float32), bound.to(tl.float32)


@triton.jit
def reach_of(weight, shift, tail, DROPOUT: tl.constexpr):
    """The distance beyond which c differs from its limit by less than e^−tail."""
    if weight < 0:  # c < (1 + e^−v) e^(w·distance)
        reach = (tail + tl.log2(1.0 + tl.exp2(-shift * LOG2E)) / LOG2E) / -weight
        if DROPOUT:
            reach += float("inf")
    else:  # 1 + e^v − c < (1 + e^v) e^(v − w·distance)
        reach = tl.maximum(tail + shift + tl.log2(1.0 + tl.exp2(shift * LOG2E)) / LOG2E, 0.0) / tl.abs(weight)
    return tl.where(reach == reach, reach, float("inf"))  # w is 0, or −0: there is no limit to come near to


@triton.jit
def near_blocks(first, last, reach, length, BLOCK: tl.constexpr):
    """The range of blocks of [0, length) with an element within ``reach`` of the positions first … last."""
    # In floating point first: reach may be infinite.
    start = tl.maximum(first.to(tl.float32) - reach, 0.0)
    start = tl.minimum(start, length + 0.0).to(tl.int32)
    stop = tl.minimum(last.to(tl.float32) + reach + 2.0, length + 0.0)
    stop = tl.maximum(stop, start.to(tl.float32)).to(tl.int32)
    return start // BLOCK, tl.cdiv(stop, BLOCK)


@triton.jit
def saturate(tensor, dtype: tl.constexpr):
    """Cast; what fp16 cannot hold becomes ±65504."""
    if dtype == tl.float16:
        tensor = tl.minimum(tl.maximum(tensor, -65504.0), 65504.0)
    return tensor.to(dtype)


@triton.jit
def load_statistics(statistics_ptr, line_length, rows, length):
    """Two numbers of each row; a row past the end has a volume of +inf, hence weights of 0."""
    peak = tl.load(statistics_ptr + rows, mask=rows < length, other=0.0)
    volume = tl.load(statistics_ptr + line_length + rows, mask=rows < length, other=float("inf"))
    return peak, volume


@triton.jit
def block_statistics(
    statistics_ptr, line_length, block, length, BLOCK: tl.constexpr, RAGGED: tl.constexpr
):  # fmt: skip
    """`load_statistics` for a block of rows, which may lie behind the last one: then nobody uses what comes back."""
    if RAGGED:
        first, second = load_statistics(statistics_ptr, line_length, block * BLOCK + tl.arange(0, BLOCK), length)
    else:
        rows = tl.minimum(block, length // BLOCK - 1) * BLOCK + tl.arange(0, BLOCK)
        first, second = tl.load(statistics_ptr + rows), tl.load(statistics_ptr + line_length + rows)
    return first, second


@triton.jit
def span_of(starts_ptr, sequence, length, total, VARLEN: tl.constexpr):
    """First row and number of rows of a sequence, and the batch that it lies in. Nothing is outside of ``total``."""
    zero = tl.zeros((), tl.int64)
    if VARLEN:
        start = tl.minimum(tl.maximum(tl.load(starts_ptr + sequence).to(tl.int64), 0), total)
        stop = tl.minimum(tl.load(starts_ptr + sequence + 1).to(tl.int64), total)
        return start, tl.minimum(tl.maximum(stop - start, 0), length).to(tl.int32), zero
    else:  # noqa: RET505  Triton compiles both sides otherwise
        return zero, length, zero + sequence


@triton.jit
def scramble(number):
    """A bijection of 32 bits that spreads every bit over all: two multiplications between shifts."""
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def row_keys(seed_ptr, rows):
    """Two 32-bit numbers for each of the int64 ``rows``, from a 64-bit seed."""
    seed = tl.load(seed_ptr)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    first = scramble(scramble(rows.to(tl.uint32) ^ low) + (rows >> 32).to(tl.uint32) + high)
    return first, scramble(first + 0x9E3779B9)


@triton.jit
def kept(first, second, keys, dropped):
    """Whether dropout leaves a pair alone, of a query with the row keys ``first`` and ``second``.

    The second enters half-way, so that two queries whose first are close do not draw the same numbers in another
    order. ``dropped`` is the probability times 2³².
    """
    number = keys.to(tl.uint32) ^ first
    number = (number ^ (number >> 16)) * 0x7FEB352D + second
    number = (number ^ (number >> 15)) * 0x846CA68B
    return (number ^ (number >> 16)) >= dropped.to(tl.uint32)


@triton.jit
def block_sums_kernel(
    tensor_ptr, padding_ptr, statistics_ptr, starts_ptr, weight_ptr, sums_ptr, counts_ptr,
    stride_b, stride_h, stride_n, heads, length, line_length, blocks,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, HAS_PADDING: tl.constexpr,
    HAS_STATISTICS: tl.constexpr, VARLEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the rows of each block: of values that are not padding, or of output gradients times the weight of score 0.

    Only heads with w < 0 have a use for them.
    """
    place = tl.program_id(0).to(tl.int64)
    block, head, sequence = (place % blocks).to(tl.int32), (place // blocks) % heads, place // blocks // heads
    if tl.load(weight_ptr + head) < 0:
        start, length, batch = span_of(starts_ptr, sequence, length, line_length, VARLEN)
        rows, dims = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
        taken = rows < length
        if HAS_PADDING:
            taken &= tl.load(padding_ptr + batch * length + rows, mask=taken, other=1) == 0
        pointer = tensor_ptr + batch * stride_b + head * stride_h + start * stride_n
        tile = tl.load(
            pointer + rows[:, None] * stride_n + dims[None, :],
            mask=taken[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        ).to(tl.float32)  # [BLOCK, D]
        if HAS_STATISTICS:
            line = statistics_ptr + (batch * heads + head) * 2 * line_length + start
            peak, volume = load_statistics(line, line_length, rows, length)
            if PRECISION == "ieee":
                tile = tile * (tl.exp2(-peak) / volume)[:, None]
            else:
                tile = tile * tl.exp2(-peak - volume)[:, None]
        tl.store(sums_ptr + place * HEAD_DIM + dims, tl.sum(tile, 0), mask=dims < HEAD_DIM)
        if HAS_PADDING:
            tl.store(counts_ptr + batch * blocks + block, tl.sum(taken.to(tl.float32), 0))


@triton.jit
def prefix_kernel(sums_ptr, prefix_ptr, blocks, width, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """Exclusive prefix sums along the first axis of [blocks, width], with the total as entry number ``blocks``."""
    sums_ptr += tl.program_id(0).to(tl.int64) * blocks * width
    prefix_ptr += tl.program_id(0).to(tl.int64) * (blocks + 1) * width
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    carry = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, blocks, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        at = rows[:, None] * width + columns[None, :]
        chunk = tl.load(sums_ptr + at, mask=(rows < blocks)[:, None] & inside[None, :], other=0.0)
        running = tl.cumsum(chunk, 0)
        tl.store(prefix_ptr + at, carry[None, :] + running - chunk, mask=(rows < blocks)[:, None] & inside[None, :])
        carry += tl.sum(chunk, 0)
    tl.store(prefix_ptr + blocks * width + columns, carry, mask=inside)


@triton.jit
def forward_tiles(
    mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, first_block, last_block,
    stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, DROPOUT: tl.constexpr,
    SAFE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key blocks first … last of one query block; far tiles have the constant ``bound``."""
    dims = tl.arange(0, BLOCK_D)
    places = positions.to(tl.float32)  # converting pair by pair would cost as much as an exponential
    keys = first_block * BLOCK_N + tl.arange(0, BLOCK_N)
    key_at = key_ptr + keys[None, :] * stride_kn + dims[:, None]
    value_at = value_ptr + keys[:, None] * stride_vn + dims[None, :]
    for block in range(first_block, last_block):
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = keys < key_length
        if RAGGED:
            key = tl.load(key_at, mask=inside[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)  # [D, N]
            value = tl.load(value_at, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)  # [N, D]
        else:
            key = tl.load(key_at)
            value = tl.load(value_at)
        positive = rectified(tl.dot(query, key, input_precision=PRECISION))  # [M, N]
        if NEAR:
            distance = tl.abs(places[:, None] - keys.to(tl.float32)[None, :])
            positive = positive * gate(distance, weight, shift, PRECISION)
        if HAS_PADDING:
            inside &= tl.load(padding_ptr + keys, mask=inside, other=1) == 0
        if CAUSAL & NEAR:
            seen = (keys[None, :] <= positions[:, None]) & inside[None, :]
            positive = tl.where(seen, positive, float("-inf"))
        elif RAGGED | HAS_PADDING:
            positive = tl.where(inside[None, :], positive, float("-inf"))
        if SAFE:
            new_max = tl.maximum(row_max, tl.max(positive, 1) * bound)
            weights = tl.exp2(positive * bound - new_max[:, None])
            fade = tl.exp2(row_max - new_max)
            row_sum = row_sum * fade + tl.sum(weights, 1)
            mixed = mixed * fade[:, None]
            row_max = new_max
        else:
            weights = tl.exp2(positive * bound)
            row_sum += tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(kept(first_key[:, None], second_key[:, None], keys[None, :], dropped), weights, 0.0)
        mixed = tl.dot(weights.to(value.dtype), value, mixed, input_precision=PRECISION)
        key_at += BLOCK_N * stride_kn
        value_at += BLOCK_N * stride_vn
    return mixed, row_sum, row_max


@triton.jit
def visible_blocks(
    query_block, query_length, key_length, weight, shift, tail,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Of the key blocks that a query block sees: the first near one, the one after the last near one, and how many."""
    offset = key_length - query_length
    first = query_block * BLOCK_M + offset
    last = tl.minimum(query_block * BLOCK_M + BLOCK_M, query_length) - 1 + offset
    visible = key_length
    if CAUSAL:
        visible = tl.maximum(tl.minimum(last + 1, key_length), 0)
    blocks = tl.cdiv(visible, BLOCK_N)
    near_start, near_stop = near_blocks(first, last, reach_of(weight, shift, tail, DROPOUT), visible, BLOCK_N)
    if CAUSAL:  # the diagonal needs the causal mask, which only near tiles have
        near_start = tl.minimum(near_start, tl.maximum(first, 0) // BLOCK_N)
        near_stop = blocks
    return near_start, near_stop, blocks


@triton.jit
def far_blocks(near_start, near_stop, blocks, weight):
    """Where the far tiles on the left stop and those on the right start: a head with w < 0 visits near ones only.

    An empty range rather than a branch: around a loop with matrix products in it, a branch makes the assembler wait for
    each of them.
    """
    return tl.where(weight < 0, 0, near_start), tl.where(weight < 0, blocks, near_stop)


@triton.jit
def all_forward_tiles(
    mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, sums_ptr, counts_ptr,
    near_start, near_stop, blocks, key_blocks,
    stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr,
    DROPOUT: tl.constexpr, SAFE: tl.constexpr,
):  # fmt: skip
    """Far tiles on the left, near tiles, far tiles on the right; for w < 0 near tiles and the sums of what is far."""
    left_stop, right_start = far_blocks(near_start, near_stop, blocks, weight)
    mixed, row_sum, row_max = forward_tiles(
        mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, 0, left_stop,
        stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, SAFE,
    )  # fmt: skip
    if not CAUSAL:
        mixed, row_sum, row_max = forward_tiles(
            mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, right_start, blocks,
            stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, SAFE,
        )  # fmt: skip
    mixed, row_sum, row_max = forward_tiles(
        mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, near_start, near_stop,
        stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, True, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, SAFE,
    )  # fmt: skip

    summed = (weight < 0) & ((near_start > 0) | (near_stop < blocks))
    dims = tl.arange(0, BLOCK_D)
    sums_at, taken = sums_ptr + dims, dims < tl.where(summed, HEAD_DIM, 0)
    far = tl.load(sums_at + near_start * HEAD_DIM, mask=taken, other=0.0)
    if HAS_PADDING:
        count = tl.load(counts_ptr + near_start, mask=summed, other=0.0)
    else:
        count = (near_start * BLOCK_N).to(tl.float32)
    if not CAUSAL:
        far += tl.load(sums_at + key_blocks * HEAD_DIM, mask=taken, other=0.0)
        far -= tl.load(sums_at + near_stop * HEAD_DIM, mask=taken, other=0.0)
        if HAS_PADDING:
            count += tl.load(counts_ptr + key_blocks, mask=summed, other=0.0)
            count -= tl.load(counts_ptr + near_stop, mask=summed, other=0.0)
        else:
            count += tl.maximum(key_length - near_stop * BLOCK_N, 0).to(tl.float32)
    common = tl.exp2(-row_max)
    mixed += common[:, None] * far[None, :]
    row_sum += common * tl.where(summed, count, 0.0)
    return mixed, row_sum, row_max


@triton.jit
def forward_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, query_starts_ptr, key_starts_ptr, seed_ptr,
    order_ptr, sums_ptr, counts_ptr, output_ptr, statistics_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on,
    sequences, heads, query_length, key_length, line_length, key_total, query_blocks, key_blocks,
    scale, tail, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, VARLEN: tl.constexpr,
    DROPOUT: tl.constexpr, DARING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One query block of one head: gate near tiles, skip what is far.

    DARING: the ReLU makes every score ≥ 0, so that no weight exp2(score) is smaller than 1, whatever is subtracted
    from the scores. Nothing is, to begin with: no maximum is sought and nothing re-scaled on the way. In the rare case
    that the sums get too large, the block is done again, with the running maximum.
    """
    program = tl.program_id(0)
    query_block = query_blocks - 1 - program % query_blocks  # causal: the longest first
    sequence = (program // query_blocks) % sequences
    head = tl.load(order_ptr + program // (query_blocks * sequences)).to(tl.int64)
    query_start, query_length, batch = span_of(query_starts_ptr, sequence, query_length, line_length, VARLEN)
    key_start, key_length, batch = span_of(key_starts_ptr, sequence, key_length, key_total, VARLEN)
    if query_block * BLOCK_M >= query_length:
        return
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    _growth, bound = rise_of(shift, scale)

    rows, dims = query_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    positions = rows + key_length - query_length
    mask = (rows < query_length)[:, None] & (dims < HEAD_DIM)[None, :]
    query_ptr += batch * stride_qb + head * stride_qh + query_start * stride_qn
    query = tl.load(query_ptr + rows[:, None] * stride_qn + dims[None, :], mask=mask, other=0.0)  # [M, D]
    key_ptr += batch * stride_kb + head * stride_kh + key_start * stride_kn
    value_ptr += batch * stride_vb + head * stride_vh + key_start * stride_vn
    line = batch * heads + head
    first_key, second_key = rows, rows
    if DROPOUT:
        first_key, second_key = row_keys(seed_ptr, line * line_length + query_start + rows)
    if HAS_PADDING:
        padding_ptr += batch * key_length

    near_start, near_stop, blocks = visible_blocks(
        query_block, query_length, key_length, weight, shift, tail, BLOCK_M, BLOCK_N, CAUSAL, DROPOUT
    )
    sums_ptr += (sequence.to(tl.int64) * heads + head) * (key_blocks + 1) * HEAD_DIM
    counts_ptr += batch * (key_blocks + 1)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_sum, row_max = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    mixed, row_sum, row_max = all_forward_tiles(
        mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, sums_ptr, counts_ptr,
        near_start, near_stop, blocks, key_blocks,
        stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, not DARING,
    )  # fmt: skip
    if DARING:
        largest = tl.maximum(tl.max(row_sum, 0), tl.max(tl.max(tl.abs(mixed), 1), 0))
        again = largest > DARING_LIMIT
        # Otherwise nothing is left to visit.
        near_start, near_stop = tl.where(again, near_start, 0), tl.where(again, near_stop, 0)
        blocks = tl.where(again, blocks, 0)
        mixed, row_sum = tl.where(again, 0.0, mixed), tl.where(again, 0.0, row_sum)
        mixed, row_sum, row_max = all_forward_tiles(
            mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, sums_ptr, counts_ptr,
            near_start, near_stop, blocks, key_blocks,
            stride_kn, stride_vn, key_length, weight, shift, bound, first_key, second_key, dropped,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, True,
        )  # fmt: skip

    blind = row_sum == 0.0
    volume = tl.where(blind, 1.0, row_sum)
    mixed = mixed / volume[:, None]
    if DROPOUT:
        mixed *= gain
    if PRECISION != "ieee":
        volume = tl.log2(volume)
    statistics_ptr += line * 2 * line_length + query_start + rows
    tl.store(statistics_ptr, row_max, mask=rows < query_length)
    tl.store(statistics_ptr + line_length, tl.where(blind, float("inf"), volume), mask=rows < query_length)
    output_ptr += batch * stride_ob + head * stride_oh + query_start * stride_on
    output_at = output_ptr + rows[:, None] * stride_on + dims[None, :]
    tl.store(output_at, saturate(mixed, output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def delta_kernel(
    output_ptr, gradient_ptr, statistics_ptr, delta_ptr,
    stride_ob, stride_oh, stride_on, stride_gb, stride_gh, stride_gn, heads, length, blocks,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each query: delta = Σ output · gradient over head_dim, what the softmax's backward subtracts; peak + volume.

    The second is for the key kernel, in whose loop an addition less counts. It has no meaning in fp32.
    """
    program = tl.program_id(0).to(tl.int64)
    line = program // blocks
    batch, head = line // heads, line % heads
    rows, dims = program % blocks * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    mask = (rows < length)[:, None] & (dims < HEAD_DIM)[None, :]
    output_at = output_ptr + batch * stride_ob + head * stride_oh + rows[:, None] * stride_on + dims[None, :]
    output = tl.load(output_at, mask=mask, other=0.0)
    gradient_at = gradient_ptr + batch * stride_gb + head * stride_gh + rows[:, None] * stride_gn + dims[None, :]
    gradient = tl.load(gradient_at, mask=mask, other=0.0)
    delta = tl.sum(output.to(tl.float32) * gradient.to(tl.float32), 1)
    peak, volume = load_statistics(statistics_ptr + line * 2 * length, length, rows, length)
    delta_ptr += line * 2 * length + rows
    tl.store(delta_ptr, delta, mask=rows < length)
    tl.store(delta_ptr + length, peak + volume, mask=rows < length)


@triton.jit
def query_tiles(
    query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
    key_ptr, value_ptr, padding_ptr, first_block, last_block, stride_kn, stride_vn, key_length,
    weight, shift, growth, bound, first_key, second_key, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, DROPOUT: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Gradient of one query block, and of w and v from near tiles, before the factors that do not vary over keys.

    A padded key is read as zeros: its score is 0, the ReLU lets no gradient through, and no mask is needed. With
    DELTA only Σ weight · (gradient · value) is added up, in place of ``shift_slope``.
    """
    dims = tl.arange(0, BLOCK_D)
    places = positions.to(tl.float32)
    keys = first_block * BLOCK_N + tl.arange(0, BLOCK_N)
    key_at = key_ptr + keys[None, :] * stride_kn + dims[:, None]
    value_at = value_ptr + keys[None, :] * stride_vn + dims[:, None]
    for block in range(first_block, last_block):
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        if RAGGED | HAS_PADDING:
            inside = keys < key_length
            if HAS_PADDING:
                inside &= tl.load(padding_ptr + keys, mask=inside, other=1) == 0
            mask = inside[None, :] & (dims < HEAD_DIM)[:, None]
            key = tl.load(key_at, mask=mask, other=0.0)  # [D, N]
            value = tl.load(value_at, mask=mask, other=0.0)  # [D, N]
        else:
            key = tl.load(key_at)
            value = tl.load(value_at)
        scores = tl.dot(query, key, input_precision=PRECISION)  # [M, N]
        if DELTA:  # elsewhere no weight of a score below 0 is used
            scores = rectified(scores)
        if NEAR:
            distance = tl.abs(places[:, None] - keys.to(tl.float32)[None, :])
            opened = gate(distance, weight, shift, PRECISION)
            weights = tl.exp2(scores * opened * bound - peak[:, None])
        else:
            weights = tl.exp2(scores * bound - peak[:, None])
        if CAUSAL & NEAR:
            weights = tl.where(keys[None, :] <= positions[:, None], weights, 0.0)
        if PRECISION == "ieee":
            weights = tl.div_rn(weights, tl.broadcast_to(volume[:, None], weights.shape))
        product = tl.dot(gradient, value, input_precision=PRECISION)
        if DROPOUT:
            left = kept(first_key[:, None], second_key[:, None], keys[None, :], dropped)
            product = tl.where(left, product * gain, 0.0)
        if DELTA:
            shift_slope += tl.sum(weights * product, 1)
        else:
            slope = tl.where(scores <= 0.0, 0.0, weights * (product - delta[:, None]))
            if NEAR:
                slope = slope * opened
                rise, shut = slope * scores, 1.0 - opened
                weight_slope += tl.sum(rise * shut * distance, 1)
                shift_slope += tl.sum(rise * (growth - (1.0 + growth) * shut), 1)
            query_gradient = tl.dot(
                saturate(slope, key.dtype), tl.trans(key), query_gradient, input_precision=PRECISION
            )
        key_at += BLOCK_N * stride_kn
        value_at += BLOCK_N * stride_vn
    return query_gradient, weight_slope, shift_slope


@triton.jit
def all_query_tiles(
    query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
    key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
    stride_kn, stride_vn, key_length, weight, shift, growth, bound, first_key, second_key, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, DROPOUT: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Far tiles on the left, far tiles on the right, near tiles."""
    query_gradient, weight_slope, shift_slope = query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, 0, left_stop, stride_kn, stride_vn, key_length,
        weight, shift, growth, bound, first_key, second_key, dropped, gain,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, DELTA,
    )  # fmt: skip
    if not CAUSAL:
        query_gradient, weight_slope, shift_slope = query_tiles(
            query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
            key_ptr, value_ptr, padding_ptr, right_start, blocks, stride_kn, stride_vn, key_length,
            weight, shift, growth, bound, first_key, second_key, dropped, gain,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, DELTA,
        )  # fmt: skip
    if not DELTA:
        # Over far tiles Σ slope·ReLU(q·k) is query · (gradient of query): no need to add it up pair by pair.
        shift_slope += growth * tl.sum(query_gradient * query.to(tl.float32), 1)
    return query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, near_start, near_stop, stride_kn, stride_vn, key_length,
        weight, shift, growth, bound, first_key, second_key, dropped, gain,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, True, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, DELTA,
    )  # fmt: skip


@triton.jit
def query_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, query_starts_ptr, key_starts_ptr, seed_ptr,
    order_ptr, gradient_ptr, statistics_ptr, delta_ptr, query_gradient_ptr, weight_gradient_ptr, shift_gradient_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_ob, stride_oh, stride_on,
    sequences, heads, query_length, key_length, line_length, key_total, query_blocks, scale, tail, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, VARLEN: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one query block, and its share of those of w and v."""
    program = tl.program_id(0)
    query_block = query_blocks - 1 - program % query_blocks
    sequence = (program // query_blocks) % sequences
    head = tl.load(order_ptr + program // (query_blocks * sequences)).to(tl.int64)
    query_start, query_length, batch = span_of(query_starts_ptr, sequence, query_length, line_length, VARLEN)
    key_start, key_length, batch = span_of(key_starts_ptr, sequence, key_length, key_total, VARLEN)
    if query_block * BLOCK_M >= query_length:
        return
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    growth, bound = rise_of(shift, scale)

    rows, dims = query_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    positions = rows + key_length - query_length
    mask = (rows < query_length)[:, None] & (dims < HEAD_DIM)[None, :]
    query_ptr += batch * stride_qb + head * stride_qh + query_start * stride_qn
    query = tl.load(query_ptr + rows[:, None] * stride_qn + dims[None, :], mask=mask, other=0.0)  # [M, D]
    gradient_ptr += batch * stride_gb + head * stride_gh + query_start * stride_gn
    gradient = tl.load(gradient_ptr + rows[:, None] * stride_gn + dims[None, :], mask=mask, other=0.0)  # [M, D]
    key_ptr += batch * stride_kb + head * stride_kh + key_start * stride_kn
    value_ptr += batch * stride_vb + head * stride_vh + key_start * stride_vn
    line = batch * heads + head
    peak, volume = load_statistics(
        statistics_ptr + line * 2 * line_length + query_start, line_length, rows, query_length
    )  # fmt: skip
    delta_at = delta_ptr + line * 2 * line_length + query_start + rows
    delta = tl.load(delta_at, mask=rows < query_length, other=0.0)
    first_key, second_key = rows, rows
    if DROPOUT:
        first_key, second_key = row_keys(seed_ptr, line * line_length + query_start + rows)
    if HAS_PADDING:
        padding_ptr += batch * key_length

    near_start, near_stop, blocks = visible_blocks(
        query_block, query_length, key_length, weight, shift, tail, BLOCK_M, BLOCK_N, CAUSAL, DROPOUT
    )
    query_gradient = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    weight_slope, shift_slope = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    left_stop, right_start = far_blocks(near_start, near_stop, blocks, weight)
    exact = weight >= 0
    if PRECISION == "ieee":
        exact |= (near_start == 0) & (near_stop >= blocks)  # w < 0, but nothing is far
    if exact & ((shift > EXACT_DELTA_ABOVE) | (PRECISION == "ieee")):
        _, _, delta = all_query_tiles(
            query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
            key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
            stride_kn, stride_vn, key_length, weight, shift, growth, bound, first_key, second_key, dropped, gain,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, True,
        )  # fmt: skip
        if PRECISION != "ieee":
            delta *= tl.exp2(-volume)
        tl.store(delta_at, delta, mask=rows < query_length)
    query_gradient, weight_slope, shift_slope = all_query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
        stride_kn, stride_vn, key_length, weight, shift, growth, bound, first_key, second_key, dropped, gain,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, DROPOUT, False,
    )  # fmt: skip

    if PRECISION == "ieee":
        share = tl.full((BLOCK_M,), 1.0, tl.float32)
    else:
        share = tl.exp2(-volume)
    query_gradient *= (share * (1.0 + growth) * scale)[:, None]
    query_gradient_ptr += batch * stride_ob + head * stride_oh + query_start * stride_on
    out_at = query_gradient_ptr + rows[:, None] * stride_on + dims[None, :]
    tl.store(out_at, saturate(query_gradient, query_gradient_ptr.dtype.element_ty), mask=mask)
    place = (sequence.to(tl.int64) * heads + head) * query_blocks + query_block
    tl.store(weight_gradient_ptr + place, tl.sum(weight_slope * share, 0) * (1.0 + growth) * scale)
    tl.store(shift_gradient_ptr + place, tl.sum(shift_slope * share, 0) * scale)


@triton.jit
def key_tiles(
    key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr, seed_ptr,
    first_block, last_block, stride_qn, stride_gn, query_length, line_length, first_line, offset,
    weight, shift, bound, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of one key block from query blocks first … last, the keys' before the factor (1 + e^v)·scale.

    A row past the last query has a volume of +inf, hence weights of 0, and no mask is needed. With DROPOUT the
    values' gradients lack the factor ``gain``.
    """
    dims = tl.arange(0, BLOCK_D)
    places = keys.to(tl.float32)
    rows = first_block * BLOCK_M + tl.arange(0, BLOCK_M)
    query_at = query_ptr + rows[None, :] * stride_qn + dims[:, None]
    gradient_at = gradient_ptr + rows[:, None] * stride_gn + dims[None, :]
    # One block ahead, so that the compiler does not bring them by way of shared memory.
    delta, total = block_statistics(delta_ptr, line_length, first_block, query_length, BLOCK_M, RAGGED)
    for block in range(first_block, last_block):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        if RAGGED:
            inside = rows < query_length
            query = tl.load(query_at, mask=inside[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)  # [D, M]
            gradient = tl.load(gradient_at, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)  # [M, D]
        else:
            query = tl.load(query_at)
            gradient = tl.load(gradient_at)
        next_delta, next_total = block_statistics(delta_ptr, line_length, block + 1, query_length, BLOCK_M, RAGGED)
        scores = tl.dot(key, query, input_precision=PRECISION)  # [N, M]
        positive = rectified(scores)
        if NEAR:
            distance = tl.abs((rows + offset).to(tl.float32)[None, :] - places[:, None])
            opened = gate(distance, weight, shift, PRECISION)
            scaled = positive * opened * bound
        else:
            scaled = positive * bound
        if PRECISION == "ieee":
            peak, volume = load_statistics(statistics_ptr, line_length, rows, query_length)
            weights = tl.exp2(scaled - peak[None, :])
            weights = tl.div_rn(weights, tl.broadcast_to(volume[None, :], weights.shape))
        else:
            weights = tl.exp2(scaled - total[None, :])
        if CAUSAL & NEAR:
            weights = tl.where(keys[:, None] <= rows[None, :] + offset, weights, 0.0)
        product = tl.dot(value, tl.trans(gradient), input_precision=PRECISION)
        used = weights
        if DROPOUT:
            first_key, second_key = row_keys(seed_ptr, first_line + rows)
            left = kept(first_key[None, :], second_key[None, :], keys[:, None], dropped)
            used = tl.where(left, weights, 0.0)
            product = tl.where(left, product * gain, 0.0)
        value_gradient = tl.dot(used.to(gradient.dtype), gradient, value_gradient, input_precision=PRECISION)
        slope = weights * (product - delta[None, :])
        if NEAR:
            slope = slope * opened
        slope = tl.where(scores <= 0.0, 0.0, slope)
        key_gradient = tl.dot(saturate(slope, query.dtype), tl.trans(query), key_gradient, input_precision=PRECISION)
        query_at += BLOCK_M * stride_qn
        gradient_at += BLOCK_M * stride_gn
        delta, total = next_delta, next_total
    return key_gradient, value_gradient


@triton.jit
def key_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, query_starts_ptr, key_starts_ptr, seed_ptr,
    order_ptr, gradient_ptr, statistics_ptr, delta_ptr, sums_ptr, key_gradient_ptr, value_gradient_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_ob, stride_oh, stride_on, stride_ub, stride_uh, stride_un,
    sequences, heads, query_length, key_length, line_length, key_total, query_blocks, key_blocks,
    scale, tail, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, VARLEN: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values."""
    program = tl.program_id(0)
    key_block = program % key_blocks
    sequence = (program // key_blocks) % sequences
    head = tl.load(order_ptr + program // (key_blocks * sequences)).to(tl.int64)
    query_start, query_length, batch = span_of(query_starts_ptr, sequence, query_length, line_length, VARLEN)
    key_start, key_length, batch = span_of(key_starts_ptr, sequence, key_length, key_total, VARLEN)
    if key_block * BLOCK_N >= key_length:
        return
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    growth, bound = rise_of(shift, scale)

    keys, dims = key_block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    offset = key_length - query_length
    mask = (keys < key_length)[:, None] & (dims < HEAD_DIM)[None, :]
    key_ptr += batch * stride_kb + head * stride_kh + key_start * stride_kn
    key = tl.load(key_ptr + keys[:, None] * stride_kn + dims[None, :], mask=mask, other=0.0)  # [N, D]
    value_ptr += batch * stride_vb + head * stride_vh + key_start * stride_vn
    value = tl.load(value_ptr + keys[:, None] * stride_vn + dims[None, :], mask=mask, other=0.0)  # [N, D]
    query_ptr += batch * stride_qb + head * stride_qh + query_start * stride_qn
    gradient_ptr += batch * stride_gb + head * stride_gh + query_start * stride_gn
    line = batch * heads + head
    statistics_ptr += line * 2 * line_length + query_start
    delta_ptr += line * 2 * line_length + query_start
    first_line = line * line_length + query_start

    reach = reach_of(weight, shift, tail, DROPOUT)
    first = key_block * BLOCK_N - offset  # as a row of the queries
    last = tl.minimum(key_block * BLOCK_N + BLOCK_N, key_length) - 1 - offset
    near_start, near_stop = near_blocks(first, last, reach, query_length, BLOCK_M)
    blocks = tl.cdiv(query_length, BLOCK_M)
    if CAUSAL:  # no query before the first key of the block sees any of it; the diagonal needs the mask
        near_start = tl.minimum(tl.maximum(first, 0) // BLOCK_M, blocks)
        diagonal = tl.cdiv(tl.minimum(tl.maximum(last + 1, 0), query_length), BLOCK_M)
        near_stop = tl.maximum(tl.maximum(near_stop, diagonal), near_start)

    key_gradient = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    value_gradient = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    left_stop, right_start = far_blocks(near_start, near_stop, blocks, weight)
    if not CAUSAL:
        key_gradient, value_gradient = key_tiles(
            key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
            seed_ptr, 0, left_stop, stride_qn, stride_gn, query_length, line_length, first_line, offset,
            weight, shift, bound, dropped, gain,
            HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, False, CAUSAL, RAGGED, DROPOUT,
        )  # fmt: skip
    key_gradient, value_gradient = key_tiles(
        key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
        seed_ptr, right_start, blocks, stride_qn, stride_gn, query_length, line_length, first_line, offset,
        weight, shift, bound, dropped, gain,
        HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, False, CAUSAL, RAGGED, DROPOUT,
    )  # fmt: skip
    key_gradient, value_gradient = key_tiles(
        key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
        seed_ptr, near_start, near_stop, stride_qn, stride_gn, query_length, line_length, first_line, offset,
        weight, shift, bound, dropped, gain,
        HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, True, CAUSAL, RAGGED, DROPOUT,
    )  # fmt: skip

    summed = near_stop < blocks
    if not CAUSAL:  # where queries before the near ones see nothing of these keys
        summed |= near_start > 0
    taken = dims < tl.where((weight < 0) & summed, HEAD_DIM, 0)
    sums_at = sums_ptr + (sequence.to(tl.int64) * heads + head) * (query_blocks + 1) * HEAD_DIM + dims
    far = tl.load(sums_at + query_blocks * HEAD_DIM, mask=taken, other=0.0)
    far -= tl.load(sums_at + near_stop * HEAD_DIM, mask=taken, other=0.0)
    if not CAUSAL:
        far += tl.load(sums_at + near_start * HEAD_DIM, mask=taken, other=0.0)
    value_gradient += far[None, :]

    key_gradient *= (1.0 + growth) * scale
    if DROPOUT:
        value_gradient *= gain
    if HAS_PADDING:
        hidden = tl.load(padding_ptr + batch * key_length + keys, mask=keys < key_length, other=1) != 0
        key_gradient = tl.where(hidden[:, None], 0.0, key_gradient)
        value_gradient = tl.where(hidden[:, None], 0.0, value_gradient)
    key_gradient_ptr += batch * stride_ob + head * stride_oh + key_start * stride_on
    key_gradient_at = key_gradient_ptr + keys[:, None] * stride_on + dims[None, :]
    tl.store(key_gradient_at, saturate(key_gradient, key_gradient_ptr.dtype.element_ty), mask=mask)
    value_gradient_ptr += batch * stride_ub + head * stride_uh + key_start * stride_un
    value_gradient_at = value_gradient_ptr + keys[:, None] * stride_un + dims[None, :]
    tl.store(value_gradient_at, saturate(value_gradient, value_gradient_ptr.dtype.element_ty), mask=mask)
