"""The Triton kernels behind `datransformer.ops.fused`: Eq. 6 with the learnable sigmoid, forward and backward.

Names: c = (1 + e^v)·g is the re-scaled coefficient of a pair and g = sigmoid(w·|i−j| − v) its gate. A tile is *far*
when all of its pairs are so far apart that c has reached its limit: 1 + e^v for w > 0, 0 for w < 0. Far tiles of a
head with w > 0 need no gate. Those of a head with w < 0 are never visited: every far key has score 0, hence one
common weight per query, and all that is needed of the values, or of the output gradients, is their sum, which comes
from prefix sums over blocks.

Scores are ≥ 0 and live in the log2 domain; the running maximum starts at 0, which no masked score can spoil. Of each
query two statistics are kept: the maximum `peak`, and `volume`, which is the log2 of the sum, or in fp32 (PRECISION
"ieee") the sum itself. It is +inf if the query sees no key. exp2(score − peak − volume), or exp2(score − peak) / volume
in fp32, is an attention weight.

Coefficients above 1 magnify errors of the weights' gradients: with v = 10 scores reach 1e5 and c is 2e4. A query with
a single winner must then have a weight of 1 and a gradient of 0, as in the reference, and not nearly. That is why the
sum is not rounded through a logarithm in fp32, and why there and in heads with large v the query kernel makes delta
from the very products it is subtracted from, in a pass of its own. Elsewhere delta is output · gradient.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950216293335)  # the nearest fp32
LOG2E_REST: tl.constexpr = tl.constexpr(1.9259629911266175e-08)
# v beyond which c can be so large, 1 + e^3 = 21, that delta must be exact.
EXACT_DELTA_ABOVE: tl.constexpr = tl.constexpr(3.0)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def head_of_rank(weight_ptr, rank, heads, HEADS: tl.constexpr):
    """The head whose weight is the rank-th largest: large w means much work, and the longest job should start first."""
    index = tl.arange(0, HEADS)
    weight = tl.load(weight_ptr + index, mask=index < heads, other=float("-inf"))
    weight = tl.where(weight == weight, weight, float("-inf"))  # a NaN must not leave a head without its turn
    ahead = (weight[None, :] > weight[:, None]) | (
        (weight[None, :] == weight[:, None]) & (index[None, :] < index[:, None])
    )
    ranks = tl.sum(ahead.to(tl.int32), 1)
    return tl.sum(tl.where(ranks == rank, index, 0), 0)


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
def reach_of(weight, shift, tail):
    """The distance beyond which c differs from its limit by less than e^−tail."""
    if weight < 0:  # c < (1 + e^−v) e^(w·distance)
        reach = (tail + tl.log2(1.0 + tl.exp2(-shift * LOG2E)) / LOG2E) / -weight
    else:  # 1 + e^v − c < (1 + e^v) e^(v − w·distance)
        reach = tl.maximum(tail + shift + tl.log2(1.0 + tl.exp2(shift * LOG2E)) / LOG2E, 0.0) / weight
    return reach


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
def load_statistics(statistics_ptr, batch_head, length, rows):
    """Peak and volume of each row; a row past the end gets a volume of +inf, hence weights of 0."""
    statistics_ptr += batch_head * 2 * length + rows
    peak = tl.load(statistics_ptr, mask=rows < length, other=0.0)
    volume = tl.load(statistics_ptr + length, mask=rows < length, other=float("inf"))
    return peak, volume


@triton.jit
def block_sums_kernel(
    tensor_ptr, padding_ptr, statistics_ptr, weight_ptr, sums_ptr, counts_ptr,
    stride_b, stride_h, stride_n, heads, length, blocks,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    HAS_PADDING: tl.constexpr, HAS_STATISTICS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the rows of each block: of values that are not padding, or of output gradients times the weight of score 0.

    Only heads with w < 0 have a use for them.
    """
    block, batch_head = tl.program_id(0), tl.program_id(1)
    batch, head = batch_head // heads, batch_head % heads
    if tl.load(weight_ptr + head) < 0:
        rows, dims = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
        taken = rows < length
        if HAS_PADDING:
            taken &= tl.load(padding_ptr + batch * length + rows, mask=taken, other=1) == 0
        pointer = tensor_ptr + batch.to(tl.int64) * stride_b + head * stride_h
        tile = tl.load(
            pointer + rows[:, None] * stride_n + dims[None, :],
            mask=taken[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        ).to(tl.float32)  # [BLOCK, D]
        if HAS_STATISTICS:
            peak, volume = load_statistics(statistics_ptr, batch_head.to(tl.int64), length, rows)
            if PRECISION == "ieee":
                tile = tile * (tl.exp2(-peak) / volume)[:, None]
            else:
                tile = tile * tl.exp2(-peak - volume)[:, None]
        place = batch_head.to(tl.int64) * blocks + block
        tl.store(sums_ptr + place * HEAD_DIM + dims, tl.sum(tile, 0), mask=dims < HEAD_DIM)
        if HAS_PADDING:
            tl.store(counts_ptr + batch.to(tl.int64) * blocks + block, tl.sum(taken.to(tl.float32), 0))


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
    stride_kn, stride_vn, key_length, weight, shift, bound,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key blocks first … last of one query block; far tiles have the constant ``bound``."""
    dims = tl.arange(0, BLOCK_D)
    places = positions.to(tl.float32)  # converting pair by pair would cost as much as an exponential
    for block in range(first_block, last_block):
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = keys < key_length
        key_at = key_ptr + keys[None, :] * stride_kn + dims[:, None]
        value_at = value_ptr + keys[:, None] * stride_vn + dims[None, :]
        if RAGGED:
            key = tl.load(key_at, mask=inside[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)  # [D, N]
            value = tl.load(value_at, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)  # [N, D]
        else:
            key = tl.load(key_at)
            value = tl.load(value_at)
        positive = tl.maximum(tl.dot(query, key, input_precision=PRECISION), 0.0)  # [M, N]
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
        new_max = tl.maximum(row_max, tl.max(positive, 1) * bound)
        weights = tl.exp2(positive * bound - new_max[:, None])
        fade = tl.exp2(row_max - new_max)
        row_sum = row_sum * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weights.to(value.dtype), value, mixed, input_precision=PRECISION)
        row_max = new_max
    return mixed, row_sum, row_max


@triton.jit
def forward_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, sums_ptr, counts_ptr, output_ptr, statistics_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    batches, heads, query_length, key_length, query_blocks, scale, tail,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One query block of one head: gate near tiles, skip what is far."""
    program = tl.program_id(0)
    query_block = query_blocks - 1 - program % query_blocks  # causal: the longest first
    batch = (program // query_blocks) % batches
    head = head_of_rank(weight_ptr, program // (query_blocks * batches), heads, HEADS)
    batch_head = batch.to(tl.int64) * heads + head
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    _, bound = rise_of(shift, scale)

    rows, dims = query_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    offset = key_length - query_length
    positions = rows + offset
    query_at = query_ptr + batch.to(tl.int64) * stride_qb + head * stride_qh + rows[:, None] * stride_qn + dims[None, :]
    query = tl.load(query_at, mask=(rows < query_length)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)  # [M, D]
    key_ptr += batch.to(tl.int64) * stride_kb + head * stride_kh
    value_ptr += batch.to(tl.int64) * stride_vb + head * stride_vh
    if HAS_PADDING:
        padding_ptr += batch.to(tl.int64) * key_length

    reach = reach_of(weight, shift, tail)
    first, last = query_block * BLOCK_M + offset, tl.minimum(query_block * BLOCK_M + BLOCK_M, query_length) - 1 + offset
    visible = key_length
    if CAUSAL:
        visible = tl.maximum(tl.minimum(last + 1, key_length), 0)
    near_start, near_stop = near_blocks(first, last, reach, visible, BLOCK_N)
    if CAUSAL:  # the diagonal needs the causal mask, which only near tiles have
        near_start = tl.minimum(near_start, tl.maximum(first, 0) // BLOCK_N)
        near_stop = tl.cdiv(visible, BLOCK_N)
    blocks = tl.cdiv(visible, BLOCK_N)

    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_sum, row_max = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    if weight >= 0:
        mixed, row_sum, row_max = forward_tiles(
            mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, 0, near_start,
            stride_kn, stride_vn, key_length, weight, shift, bound,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING,
        )  # fmt: skip
    mixed, row_sum, row_max = forward_tiles(
        mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, near_start, near_stop,
        stride_kn, stride_vn, key_length, weight, shift, bound,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, True, CAUSAL, RAGGED, HAS_PADDING,
    )  # fmt: skip
    if weight >= 0:
        if not CAUSAL:
            mixed, row_sum, row_max = forward_tiles(
                mixed, row_sum, row_max, query, positions, key_ptr, value_ptr, padding_ptr, near_stop, blocks,
                stride_kn, stride_vn, key_length, weight, shift, bound,
                HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING,
            )  # fmt: skip
    elif (near_start > 0) | (near_stop < blocks):
        all_blocks = tl.cdiv(key_length, BLOCK_N)
        sums_at = sums_ptr + batch_head * (all_blocks + 1) * HEAD_DIM + dims
        in_head = dims < HEAD_DIM
        far = tl.load(sums_at + near_start * HEAD_DIM, mask=in_head, other=0.0)
        counts_at = counts_ptr + batch.to(tl.int64) * (all_blocks + 1)
        if HAS_PADDING:
            count = tl.load(counts_at + near_start)
        else:
            count = (near_start * BLOCK_N).to(tl.float32)
        if not CAUSAL:
            far += tl.load(sums_at + all_blocks * HEAD_DIM, mask=in_head, other=0.0)
            far -= tl.load(sums_at + near_stop * HEAD_DIM, mask=in_head, other=0.0)
            if HAS_PADDING:
                count += tl.load(counts_at + all_blocks) - tl.load(counts_at + near_stop)
            else:
                count += tl.maximum(key_length - near_stop * BLOCK_N, 0).to(tl.float32)
        common = tl.exp2(-row_max)
        mixed += common[:, None] * far[None, :]
        row_sum += common * count

    blind = row_sum == 0.0
    mixed = mixed / tl.where(blind, 1.0, row_sum)[:, None]
    statistics_ptr += batch_head * 2 * query_length + rows
    tl.store(statistics_ptr, row_max, mask=rows < query_length)
    volume = tl.where(blind, 1.0, row_sum)
    if PRECISION != "ieee":
        volume = tl.log2(volume)
    tl.store(statistics_ptr + query_length, tl.where(blind, float("inf"), volume), mask=rows < query_length)
    output_at = output_ptr + (batch_head * query_length + rows[:, None]) * HEAD_DIM + dims[None, :]
    mask = (rows < query_length)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(output_at, saturate(mixed, output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def delta_kernel(output_ptr, gradient_ptr, delta_ptr, stride_b, stride_h, stride_n, heads, length,
                 HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Σ over head_dim of output · gradient for each query: what the softmax's backward subtracts."""
    block, batch_head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, dims = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    mask = (rows < length)[:, None] & (dims < HEAD_DIM)[None, :]
    output = tl.load(
        output_ptr + (batch_head * length + rows[:, None]) * HEAD_DIM + dims[None, :], mask=mask, other=0.0
    )
    at = gradient_ptr + (batch_head // heads) * stride_b + (batch_head % heads) * stride_h
    gradient = tl.load(at + rows[:, None] * stride_n + dims[None, :], mask=mask, other=0.0)
    delta = tl.sum(output.to(tl.float32) * gradient.to(tl.float32), 1)
    tl.store(delta_ptr + batch_head * length + rows, delta, mask=rows < length)


@triton.jit
def query_tiles(
    query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
    key_ptr, value_ptr, padding_ptr, first_block, last_block, stride_kn, stride_vn, key_length,
    weight, shift, growth, bound,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Gradient of one query block, and of w and v from near tiles, before the factors that do not vary over keys.

    A padded key is read as zeros: its score is 0, the ReLU lets no gradient through, and no mask is needed. With
    DELTA only Σ weight · (gradient · value) is added up, in place of ``shift_slope``.
    """
    dims = tl.arange(0, BLOCK_D)
    places = positions.to(tl.float32)  # converting pair by pair would cost as much as an exponential
    for block in range(first_block, last_block):
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        key_at = key_ptr + keys[None, :] * stride_kn + dims[:, None]
        value_at = value_ptr + keys[None, :] * stride_vn + dims[:, None]
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
        positive = tl.maximum(scores, 0.0)
        if NEAR:
            distance = tl.abs(places[:, None] - keys.to(tl.float32)[None, :])
            opened = gate(distance, weight, shift, PRECISION)
            weights = tl.exp2(positive * opened * bound - peak[:, None])
        else:
            weights = tl.exp2(positive * bound - peak[:, None])
        if CAUSAL & NEAR:
            weights = tl.where(keys[None, :] <= positions[:, None], weights, 0.0)
        if PRECISION == "ieee":
            weights = tl.div_rn(weights, tl.broadcast_to(volume[:, None], weights.shape))
        product = tl.dot(gradient, value, input_precision=PRECISION)
        if DELTA:
            shift_slope += tl.sum(weights * product, 1)
        else:
            slope = weights * (product - delta[:, None])
            if NEAR:
                rise = slope * positive * opened
                shut = 1.0 - opened
                weight_slope += tl.sum(rise * shut * distance, 1)
                shift_slope += tl.sum(rise * (growth - (1.0 + growth) * shut), 1)
                slope = slope * opened
            slope = tl.where(scores > 0.0, slope, 0.0)
            query_gradient = tl.dot(
                saturate(slope, key.dtype), tl.trans(key), query_gradient, input_precision=PRECISION
            )
    return query_gradient, weight_slope, shift_slope


@triton.jit
def all_query_tiles(
    query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
    key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
    stride_kn, stride_vn, key_length, weight, shift, growth, bound,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Far tiles on the left, far tiles on the right, near tiles."""
    query_gradient, weight_slope, shift_slope = query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, 0, left_stop, stride_kn, stride_vn, key_length,
        weight, shift, growth, bound,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DELTA,
    )  # fmt: skip
    if not CAUSAL:
        query_gradient, weight_slope, shift_slope = query_tiles(
            query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
            key_ptr, value_ptr, padding_ptr, right_start, blocks, stride_kn, stride_vn, key_length,
            weight, shift, growth, bound,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False, CAUSAL, RAGGED, HAS_PADDING, DELTA,
        )  # fmt: skip
    if not DELTA:
        # Over far tiles Σ slope·ReLU(q·k) is query · (gradient of query): no need to add it up pair by pair.
        shift_slope += growth * tl.sum(query_gradient * query.to(tl.float32), 1)
    return query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, near_start, near_stop, stride_kn, stride_vn, key_length,
        weight, shift, growth, bound,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, True, CAUSAL, RAGGED, HAS_PADDING, DELTA,
    )  # fmt: skip


@triton.jit
def query_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, gradient_ptr, statistics_ptr, delta_ptr,
    query_gradient_ptr, weight_gradient_ptr, shift_gradient_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn,
    batches, heads, query_length, key_length, query_blocks, scale, tail,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one query block, and its share of those of w and v."""
    program = tl.program_id(0)
    query_block = query_blocks - 1 - program % query_blocks
    batch = (program // query_blocks) % batches
    head = head_of_rank(weight_ptr, program // (query_blocks * batches), heads, HEADS)
    batch_head = batch.to(tl.int64) * heads + head
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    growth, bound = rise_of(shift, scale)

    rows, dims = query_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    offset = key_length - query_length
    positions = rows + offset
    mask = (rows < query_length)[:, None] & (dims < HEAD_DIM)[None, :]
    query_at = query_ptr + batch.to(tl.int64) * stride_qb + head * stride_qh + rows[:, None] * stride_qn + dims[None, :]
    query = tl.load(query_at, mask=mask, other=0.0)  # [M, D]
    at = gradient_ptr + batch.to(tl.int64) * stride_gb + head * stride_gh + rows[:, None] * stride_gn + dims[None, :]
    gradient = tl.load(at, mask=mask, other=0.0)  # [M, D]
    peak, volume = load_statistics(statistics_ptr, batch_head, query_length, rows)
    delta_at = delta_ptr + batch_head * query_length + rows
    delta = tl.load(delta_at, mask=rows < query_length, other=0.0)
    key_ptr += batch.to(tl.int64) * stride_kb + head * stride_kh
    value_ptr += batch.to(tl.int64) * stride_vb + head * stride_vh
    if HAS_PADDING:
        padding_ptr += batch.to(tl.int64) * key_length

    reach = reach_of(weight, shift, tail)
    first, last = query_block * BLOCK_M + offset, tl.minimum(query_block * BLOCK_M + BLOCK_M, query_length) - 1 + offset
    visible = key_length
    if CAUSAL:
        visible = tl.maximum(tl.minimum(last + 1, key_length), 0)
    near_start, near_stop = near_blocks(first, last, reach, visible, BLOCK_N)
    if CAUSAL:
        near_start = tl.minimum(near_start, tl.maximum(first, 0) // BLOCK_N)
        near_stop = tl.cdiv(visible, BLOCK_N)
    blocks = tl.cdiv(visible, BLOCK_N)

    query_gradient = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    weight_slope, shift_slope = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    # A head with w < 0 visits near tiles only.
    left_stop, right_start = near_start, near_stop
    if weight < 0:
        left_stop, right_start = near_start * 0, blocks
    exact = weight >= 0
    if PRECISION == "ieee":
        exact |= (near_start == 0) & (near_stop >= blocks)  # w < 0, but nothing is far
    if exact & ((shift > EXACT_DELTA_ABOVE) | (PRECISION == "ieee")):
        _, _, delta = all_query_tiles(
            query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
            key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
            stride_kn, stride_vn, key_length, weight, shift, growth, bound,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, True,
        )  # fmt: skip
        if PRECISION != "ieee":
            delta *= tl.exp2(-volume)
        tl.store(delta_at, delta, mask=rows < query_length)
    query_gradient, weight_slope, shift_slope = all_query_tiles(
        query_gradient, weight_slope, shift_slope, query, gradient, peak, volume, delta, positions,
        key_ptr, value_ptr, padding_ptr, left_stop, near_start, near_stop, right_start, blocks,
        stride_kn, stride_vn, key_length, weight, shift, growth, bound,
        HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, CAUSAL, RAGGED, HAS_PADDING, False,
    )  # fmt: skip

    if PRECISION == "ieee":
        share = tl.full((BLOCK_M,), 1.0, tl.float32)
    else:
        share = tl.exp2(-volume)
    query_gradient *= (share * (1.0 + growth) * scale)[:, None]
    out_at = query_gradient_ptr + (batch_head * query_length + rows[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(out_at, saturate(query_gradient, query_gradient_ptr.dtype.element_ty), mask=mask)
    place = batch_head * query_blocks + query_block
    tl.store(weight_gradient_ptr + place, tl.sum(weight_slope * share, 0) * (1.0 + growth) * scale)
    tl.store(shift_gradient_ptr + place, tl.sum(shift_slope * share, 0) * scale)


@triton.jit
def key_tiles(
    key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
    first_block, last_block, stride_qn, stride_gn, query_length, offset, weight, shift, bound,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
    NEAR: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Gradients of one key block from query blocks first … last, the keys' before the factor (1 + e^v)·scale.

    A row past the last query has a volume of +inf, hence weights of 0, and no mask is needed.
    """
    dims = tl.arange(0, BLOCK_D)
    places = keys.to(tl.float32)
    for block in range(first_block, last_block):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        query_at = query_ptr + rows[None, :] * stride_qn + dims[:, None]
        gradient_at = gradient_ptr + rows[:, None] * stride_gn + dims[None, :]
        if RAGGED:
            inside = rows < query_length
            query = tl.load(query_at, mask=inside[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)  # [D, M]
            gradient = tl.load(gradient_at, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)  # [M, D]
            peak, volume = load_statistics(statistics_ptr, 0, query_length, rows)
            delta = tl.load(delta_ptr + rows, mask=inside, other=0.0)
        else:
            query = tl.load(query_at)
            gradient = tl.load(gradient_at)
            peak, volume = tl.load(statistics_ptr + rows), tl.load(statistics_ptr + query_length + rows)
            delta = tl.load(delta_ptr + rows)
        scores = tl.dot(key, query, input_precision=PRECISION)  # [N, M]
        positive = tl.maximum(scores, 0.0)
        if NEAR:
            distance = tl.abs((rows + offset).to(tl.float32)[None, :] - places[:, None])
            opened = gate(distance, weight, shift, PRECISION)
            scaled = positive * opened * bound
        else:
            scaled = positive * bound
        if PRECISION == "ieee":
            weights = tl.exp2(scaled - peak[None, :])
            weights = tl.div_rn(weights, tl.broadcast_to(volume[None, :], weights.shape))
        else:
            weights = tl.exp2(scaled - (peak + volume)[None, :])
        if CAUSAL & NEAR:
            weights = tl.where(keys[:, None] <= rows[None, :] + offset, weights, 0.0)
        value_gradient = tl.dot(weights.to(gradient.dtype), gradient, value_gradient, input_precision=PRECISION)
        slope = weights * (tl.dot(value, tl.trans(gradient), input_precision=PRECISION) - delta[None, :])
        if NEAR:
            slope = slope * opened
        slope = tl.where(scores > 0.0, slope, 0.0)
        key_gradient = tl.dot(saturate(slope, query.dtype), tl.trans(query), key_gradient, input_precision=PRECISION)
    return key_gradient, value_gradient


@triton.jit
def key_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, gradient_ptr, statistics_ptr, delta_ptr,
    sums_ptr, key_gradient_ptr, value_gradient_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn,
    batches, heads, query_length, key_length, key_blocks, scale, tail,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, HAS_PADDING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values."""
    program = tl.program_id(0)
    key_block = program % key_blocks
    batch = (program // key_blocks) % batches
    head = head_of_rank(weight_ptr, program // (key_blocks * batches), heads, HEADS)
    batch_head = batch.to(tl.int64) * heads + head
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    growth, bound = rise_of(shift, scale)

    keys, dims = key_block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    offset = key_length - query_length
    mask = (keys < key_length)[:, None] & (dims < HEAD_DIM)[None, :]
    key_at = key_ptr + batch.to(tl.int64) * stride_kb + head * stride_kh + keys[:, None] * stride_kn + dims[None, :]
    value_at = value_ptr + batch.to(tl.int64) * stride_vb + head * stride_vh + keys[:, None] * stride_vn + dims[None, :]
    key = tl.load(key_at, mask=mask, other=0.0)  # [N, D]
    value = tl.load(value_at, mask=mask, other=0.0)  # [N, D]
    query_ptr += batch.to(tl.int64) * stride_qb + head * stride_qh
    gradient_ptr += batch.to(tl.int64) * stride_gb + head * stride_gh
    statistics_ptr += batch_head * 2 * query_length
    delta_ptr += batch_head * query_length

    reach = reach_of(weight, shift, tail)
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
    if weight >= 0:
        if not CAUSAL:
            key_gradient, value_gradient = key_tiles(
                key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
                0, near_start, stride_qn, stride_gn, query_length, offset, weight, shift, bound,
                HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, False, CAUSAL, RAGGED,
            )  # fmt: skip
        key_gradient, value_gradient = key_tiles(
            key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
            near_stop, blocks, stride_qn, stride_gn, query_length, offset, weight, shift, bound,
            HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, False, CAUSAL, RAGGED,
        )  # fmt: skip
    elif (near_start > 0) | (near_stop < blocks):
        sums_at = sums_ptr + batch_head * (blocks + 1) * HEAD_DIM + dims
        in_head = dims < HEAD_DIM
        far = tl.load(sums_at + blocks * HEAD_DIM, mask=in_head, other=0.0)
        far -= tl.load(sums_at + near_stop * HEAD_DIM, mask=in_head, other=0.0)
        if not CAUSAL:
            far += tl.load(sums_at + near_start * HEAD_DIM, mask=in_head, other=0.0)
        value_gradient += far[None, :]
    key_gradient, value_gradient = key_tiles(
        key_gradient, value_gradient, key, value, keys, query_ptr, gradient_ptr, statistics_ptr, delta_ptr,
        near_start, near_stop, stride_qn, stride_gn, query_length, offset, weight, shift, bound,
        HEAD_DIM, BLOCK_D, BLOCK_M, PRECISION, True, CAUSAL, RAGGED,
    )  # fmt: skip

    key_gradient *= (1.0 + growth) * scale
    if HAS_PADDING:
        hidden = tl.load(padding_ptr + batch.to(tl.int64) * key_length + keys, mask=keys < key_length, other=1) != 0
        key_gradient = tl.where(hidden[:, None], 0.0, key_gradient)
        value_gradient = tl.where(hidden[:, None], 0.0, value_gradient)
    out_at = (batch_head * key_length + keys[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(key_gradient_ptr + out_at, saturate(key_gradient, key_gradient_ptr.dtype.element_ty), mask=mask)
    tl.store(value_gradient_ptr + out_at, saturate(value_gradient, value_gradient_ptr.dtype.element_ty), mask=mask)
