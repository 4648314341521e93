"""Triton kernels for sequences that fit into one tile: the paper's texts, where a training run spends its time.

One program takes one head through several sequences. The gates depend on the distance alone and are computed once for
all of them; a softmax sees all its keys at once; and the backward needs nothing from the forward but its inputs. Names
and layouts as in `fused_kernels.py`.
"""

import triton
import triton.language as tl

from datransformer.ops.fused_kernels import gate, kept, rectified, rise_of, row_keys, saturate, span_of


@triton.jit
def gates(positions, keys, weight, shift, PRECISION: tl.constexpr):
    """Distance and gate of every pair of the tile."""
    distance = tl.abs(positions.to(tl.float32)[:, None] - keys.to(tl.float32)[None, :])
    return distance, gate(distance, weight, shift, PRECISION)


@triton.jit
def soft_weights(
    query, key, opened, bound, positions, keys, key_length, padding_ptr, padding_start,
    CAUSAL: tl.constexpr, HAS_PADDING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention weights [M, N], and the query-key products that they come from. A query that sees no key has zeros."""
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)  # [M, N]
    scaled = rectified(scores) * opened * bound
    seen = keys < key_length
    if HAS_PADDING:
        seen &= tl.load(padding_ptr + padding_start + keys, mask=seen, other=1) == 0
    if CAUSAL:
        scaled = tl.where(seen[None, :] & (keys[None, :] <= positions[:, None]), scaled, float("-inf"))
    else:
        scaled = tl.where(seen[None, :], scaled, float("-inf"))
    peak = tl.maximum(tl.max(scaled, 1), 0.0)
    weights = tl.exp2(scaled - peak[:, None])
    total = tl.sum(weights, 1)
    total = tl.where(total == 0.0, 1.0, total)
    if PRECISION == "ieee":
        weights = tl.div_rn(weights, tl.broadcast_to(total[:, None], weights.shape))
    else:
        weights = weights * (1.0 / total)[:, None]
    return weights, scores


@triton.jit
def short_forward_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, query_starts_ptr, key_starts_ptr, seed_ptr,
    output_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on,
    sequences, heads, max_query_length, max_key_length, line_length, key_total, scale, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROUND: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_PADDING: tl.constexpr, VARLEN: tl.constexpr, ALIGNED: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of ROUND sequences. ALIGNED: key and query lengths differ by the same in all of them."""
    head, first_sequence = tl.program_id(0) % heads, tl.program_id(0) // heads * ROUND
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    _growth, bound = rise_of(shift, scale)
    rows, keys, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    in_head = (dims < HEAD_DIM)[None, :]
    positions = rows + max_key_length - max_query_length
    _, opened = gates(positions, keys, weight, shift, PRECISION)

    for sequence in range(first_sequence, tl.minimum(first_sequence + ROUND, sequences)):
        query_start, query_length, batch = span_of(query_starts_ptr, sequence, max_query_length, line_length, VARLEN)
        key_start, key_length, batch = span_of(key_starts_ptr, sequence, max_key_length, key_total, VARLEN)
        if not ALIGNED:
            positions = rows + key_length - query_length
            _, opened = gates(positions, keys, weight, shift, PRECISION)
        of_query, of_key = (rows < query_length)[:, None] & in_head, (keys < key_length)[:, None] & in_head
        query_at = query_ptr + batch * stride_qb + head * stride_qh + query_start * stride_qn
        query = tl.load(query_at + rows[:, None] * stride_qn + dims[None, :], mask=of_query, other=0.0)  # [M, D]
        key_at = key_ptr + batch * stride_kb + head * stride_kh + key_start * stride_kn
        key = tl.load(key_at + keys[:, None] * stride_kn + dims[None, :], mask=of_key, other=0.0)  # [N, D]
        value_at = value_ptr + batch * stride_vb + head * stride_vh + key_start * stride_vn
        value = tl.load(value_at + keys[:, None] * stride_vn + dims[None, :], mask=of_key, other=0.0)  # [N, D]
        weights, _ = soft_weights(
            query, key, opened, bound, positions, keys, key_length, padding_ptr, batch * max_key_length,
            CAUSAL, HAS_PADDING, PRECISION,
        )  # fmt: skip
        if DROPOUT:
            line = (batch * heads + head) * line_length + query_start
            first_key, second_key = row_keys(seed_ptr, line + rows)
            left = kept(first_key[:, None], second_key[:, None], keys[None, :], dropped)
            weights = tl.where(left, weights * gain, 0.0)
        mixed = tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)  # [M, D]
        output_at = output_ptr + batch * stride_ob + head * stride_oh + query_start * stride_on
        output_at += rows[:, None] * stride_on + dims[None, :]
        tl.store(output_at, saturate(mixed, output_ptr.dtype.element_ty), mask=of_query)


@triton.jit
def short_backward_kernel(
    query_ptr, key_ptr, value_ptr, weight_ptr, shift_ptr, padding_ptr, query_starts_ptr, key_starts_ptr, seed_ptr,
    gradient_ptr, query_gradient_ptr, key_gradient_ptr, value_gradient_ptr, weight_gradient_ptr, shift_gradient_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_ob, stride_oh, stride_on, stride_tb, stride_th, stride_tn,
    stride_ub, stride_uh, stride_un,
    sequences, heads, max_query_length, max_key_length, line_length, key_total, scale, dropped, gain,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROUND: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_PADDING: tl.constexpr, VARLEN: tl.constexpr, ALIGNED: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of ROUND sequences, and their share of those of w and v."""
    head, first_sequence = tl.program_id(0) % heads, tl.program_id(0) // heads * ROUND
    weight, shift = tl.load(weight_ptr + head), tl.load(shift_ptr + head)
    growth, bound = rise_of(shift, scale)
    rows, keys, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    in_head = (dims < HEAD_DIM)[None, :]
    positions = rows + max_key_length - max_query_length
    distance, opened = gates(positions, keys, weight, shift, PRECISION)
    factor = (1.0 + growth) * scale
    weight_slope, shift_slope = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    rises = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)  # Σ over the sequences: what each pair's c has to do with the loss

    for sequence in range(first_sequence, tl.minimum(first_sequence + ROUND, sequences)):
        query_start, query_length, batch = span_of(query_starts_ptr, sequence, max_query_length, line_length, VARLEN)
        key_start, key_length, batch = span_of(key_starts_ptr, sequence, max_key_length, key_total, VARLEN)
        if not ALIGNED:
            positions = rows + key_length - query_length
            distance, opened = gates(positions, keys, weight, shift, PRECISION)
        of_query, of_key = (rows < query_length)[:, None] & in_head, (keys < key_length)[:, None] & in_head
        query_at = query_ptr + batch * stride_qb + head * stride_qh + query_start * stride_qn
        query = tl.load(query_at + rows[:, None] * stride_qn + dims[None, :], mask=of_query, other=0.0)  # [M, D]
        gradient_at = gradient_ptr + batch * stride_gb + head * stride_gh + query_start * stride_gn
        gradient = tl.load(gradient_at + rows[:, None] * stride_gn + dims[None, :], mask=of_query, other=0.0)  # [M, D]
        key_at = key_ptr + batch * stride_kb + head * stride_kh + key_start * stride_kn
        key = tl.load(key_at + keys[:, None] * stride_kn + dims[None, :], mask=of_key, other=0.0)  # [N, D]
        value_at = value_ptr + batch * stride_vb + head * stride_vh + key_start * stride_vn
        value = tl.load(value_at + keys[:, None] * stride_vn + dims[None, :], mask=of_key, other=0.0)  # [N, D]
        weights, scores = soft_weights(
            query, key, opened, bound, positions, keys, key_length, padding_ptr, batch * max_key_length,
            CAUSAL, HAS_PADDING, PRECISION,
        )  # fmt: skip
        product = tl.dot(gradient, tl.trans(value), input_precision=PRECISION)  # [M, N]
        used = weights
        if DROPOUT:
            line = (batch * heads + head) * line_length + query_start
            first_key, second_key = row_keys(seed_ptr, line + rows)
            left = kept(first_key[:, None], second_key[:, None], keys[None, :], dropped)
            used = tl.where(left, weights * gain, 0.0)
            product = tl.where(left, product * gain, 0.0)
        value_gradient = tl.dot(tl.trans(used.to(gradient.dtype)), gradient, input_precision=PRECISION)  # [N, D]
        slope = weights * (product - tl.sum(weights * product, 1)[:, None])
        slope = tl.where(scores <= 0.0, 0.0, slope * opened)
        rises += slope * scores
        if not ALIGNED:
            weight_slope += tl.sum(rises * (1.0 - opened) * distance, 1)
            shift_slope += tl.sum(rises * (growth - (1.0 + growth) * (1.0 - opened)), 1)
            rises = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        slope = saturate(slope, key.dtype)
        query_gradient = tl.dot(slope, key, input_precision=PRECISION) * factor  # [M, D]
        key_gradient = tl.dot(tl.trans(slope), query, input_precision=PRECISION) * factor  # [N, D]

        out_at = query_gradient_ptr + batch * stride_ob + head * stride_oh + query_start * stride_on
        out_at += rows[:, None] * stride_on + dims[None, :]
        tl.store(out_at, saturate(query_gradient, query_gradient_ptr.dtype.element_ty), mask=of_query)
        out_at = key_gradient_ptr + batch * stride_tb + head * stride_th + key_start * stride_tn
        out_at += keys[:, None] * stride_tn + dims[None, :]
        tl.store(out_at, saturate(key_gradient, key_gradient_ptr.dtype.element_ty), mask=of_key)
        out_at = value_gradient_ptr + batch * stride_ub + head * stride_uh + key_start * stride_un
        out_at += keys[:, None] * stride_un + dims[None, :]
        tl.store(out_at, saturate(value_gradient, value_gradient_ptr.dtype.element_ty), mask=of_key)

    weight_slope += tl.sum(rises * (1.0 - opened) * distance, 1)
    shift_slope += tl.sum(rises * (growth - (1.0 + growth) * (1.0 - opened)), 1)
    tl.store(weight_gradient_ptr + tl.program_id(0), tl.sum(weight_slope, 0) * factor)
    tl.store(shift_gradient_ptr + tl.program_id(0), tl.sum(shift_slope, 0) * scale)
