// Distance-aware attention on the CPU, learnable sigmoid × early multiply, in fp32: the loops behind blocked.py.
//
// A plain C interface without Python's or torch's headers: tensors come as addresses and strides. The threads are
// those of the OpenMP runtime that torch has loaded, which is why the library is linked without one of its own.
// Every sum has an order that no thread changes: the same bits on any number of threads.

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

const float LN2 = 0.693147181f;
const double LOG2E = 1.4426950408889634;

// Floats [batch, heads, length, head_dim]; the last axis is contiguous.
struct Tensor {
    float *data;
    int64_t batch, head, row; // strides

    float *at(long b, long h) const { return data + b * batch + h * head; }
};

} // namespace

extern "C" {

// One call, as `blocked.py` describes it; the fields correspond.
struct Call {
    int64_t batch, heads, query_length, key_length, head_dim;
    int64_t causal, threads;
    uint64_t seed;
    double dropout, scale, far_tolerance;
    const float *weight, *shift; // [heads]
    const uint8_t *hidden;       // [batch, key_length] or null
    Tensor query, key, value, output;
    float *statistics; // [batch, heads, 2, query_length]: log2 of the softmax's shift, and 1 / the sum of weights
    Tensor gradient, query_gradient, key_gradient, value_gradient;
    float *weight_gradient, *shift_gradient; // [heads]

    // Filled in here.
    int64_t parts; // of a head's queries, each one work item
    int64_t table_length, table_middle;
    float *log_coefficients, *by_weight, *by_shift; // [heads, table_length], distance 0 at table_middle
    float *largest;                                 // [heads] coefficient
    int64_t *reach;                                 // [heads]
    int32_t *before;                                // [table_length]
    uint32_t threshold;
    float kept_scale;
    float *shares_of_keys, *shares_of_values; // [items, key_length, head_dim]
    double *shares_of_numbers;                // [items, 2]
};
}

namespace {

// Memory for one thread, handed out piece by piece.
struct Scratch {
    char *memory;
    size_t used;

    template <class T>
    T *take(size_t count) {
        T *piece = (T *)(memory + used);
        used += (count * sizeof(T) + 63) / 64 * 64;
        return piece;
    }
};

// splitmix64: neighbouring numbers in, unrelated ones out.
inline uint64_t mixed(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

alignas(64) const int32_t WORD_OF_KEY[32] = {0, 1, 2,  3,  4,  5,  6,  7,  0, 1, 2,  3,  4,  5,  6,  7,
                                             8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) const int32_t BITS_OF_KEY[32] = {0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16,
                                             0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16};

#define ISA baseline
#define WIDTH 4
#define ROWS 6
#include "blocked_tiles.h"
#undef ISA
#undef WIDTH
#undef ROWS

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_WIDER 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define WIDTH 8
#define ROWS 6
#include "blocked_tiles.h"
#undef ISA
#undef WIDTH
#undef ROWS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#define ISA avx512
#define WIDTH 16
#define ROWS 12
#include "blocked_tiles.h"
#undef ISA
#undef WIDTH
#undef ROWS
#pragma GCC pop_options
#endif

struct Loops {
    void (*forward_item)(const Call &, long, Scratch &);
    void (*backward_item)(const Call &, long, Scratch &);
    void (*drop_row)(float *, const float *, long, uint64_t, uint32_t, float);
};

Loops chosen() {
#ifdef HAS_WIDER
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return {avx512::forward_item, avx512::backward_item, avx512::drop_row};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {avx2::forward_item, avx2::backward_item, avx2::drop_row};
#endif
    return {baseline::forward_item, baseline::backward_item, baseline::drop_row};
}

const long DROPOUT_ROW = 4096;
const long MARGIN = 128; // more than a tile reaches past the last query and the last key

// f(d) = (1 + e^v) · sigmoid(w·d − v) of one head, and its slopes: by w it is (1 + e^v) · s · (1 − s) · d, by v it is
// s · (f − 1), with s the sigmoid.
void fill_tables(Call &call, long head) {
    const double weight = call.weight[head], shift = call.shift[head], height = 1 + exp(shift);
    const long longest = call.query_length > call.key_length ? call.query_length : call.key_length;
    float *log_coefficient = call.log_coefficients + head * call.table_length;
    float *by_weight = call.by_weight ? call.by_weight + head * call.table_length : nullptr;
    float *by_shift = call.by_shift ? call.by_shift + head * call.table_length : nullptr;
    memset(log_coefficient, 0, sizeof(float) * call.table_length);
    if (by_weight) memset(by_weight, 0, sizeof(float) * call.table_length);
    if (by_shift) memset(by_shift, 0, sizeof(float) * call.table_length);
    call.reach[head] = INT64_MAX / 2;
    double largest = 0;
    for (long distance = 0; distance < longest; distance++) {
        const double x = weight * distance - shift, small = exp(-fabs(x));
        const double most = 1 / (1 + small), least = small / (1 + small);
        const double open = x >= 0 ? most : least, closed = x >= 0 ? least : most;
        const double coefficient = height * open;
        if (!(coefficient <= largest)) largest = coefficient;
        if (weight < 0 && coefficient <= call.far_tolerance && distance < call.reach[head]) call.reach[head] = distance;
        for (long side = -1; side <= 1; side += 2) {
            const long at = call.table_middle + side * distance;
            if (at < 0 || at >= call.table_length) continue;
            log_coefficient[at] = (float)(coefficient * call.scale * LOG2E);
            if (by_weight) by_weight[at] = (float)(height * open * closed * distance * call.scale);
            if (by_shift) by_shift[at] = (float)(open * (coefficient - 1) * call.scale);
        }
    }
    call.largest[head] = (float)largest;
}

bool prepare(Call &call, bool backward, char *&memory) {
    const long pairs = call.batch * call.heads;
    // Enough items for many threads, whatever their number here, so that it has no part in the result.
    call.parts = 1;
    if (pairs < 32) {
        const long wanted = (32 + pairs - 1) / pairs, worth = (call.query_length + 255) / 256;
        call.parts = wanted < worth ? wanted : worth;
    }
    call.table_middle = call.key_length + MARGIN;
    call.table_length = call.table_middle + call.query_length + MARGIN;
    call.threshold = (uint32_t)lrint(call.dropout * 65536);
    if (call.threshold > 65535) call.threshold = 65535;
    call.kept_scale = (float)(65536.0 / (65536 - call.threshold));
    if (call.threshold) call.far_tolerance = 0;

    const size_t table = call.heads * call.table_length, items = pairs * call.parts;
    const size_t shares = backward && call.parts > 1 ? items * call.key_length * call.head_dim : 0;
    const size_t size = (3 * table + call.heads + call.table_length + 2 * shares) * 4 + (call.heads + 2 * items) * 8;
    memory = (char *)malloc(size + 64 * 16);
    if (!memory) return false;
    Scratch pieces = {memory, (64 - (size_t)memory % 64) % 64};
    call.log_coefficients = pieces.take<float>(table);
    call.by_weight = backward ? pieces.take<float>(table) : nullptr;
    call.by_shift = backward ? pieces.take<float>(table) : nullptr;
    call.largest = pieces.take<float>(call.heads);
    call.reach = pieces.take<int64_t>(call.heads);
    call.before = pieces.take<int32_t>(call.table_length);
    call.shares_of_keys = pieces.take<float>(shares);
    call.shares_of_values = pieces.take<float>(shares);
    call.shares_of_numbers = pieces.take<double>(2 * items);
    for (long at = 0; at < call.table_length; at++) call.before[at] = -(int32_t)(!call.causal || at <= call.table_middle);
#pragma omp parallel for num_threads(call.threads) if (table > 16384)
    for (long head = 0; head < call.heads; head++) fill_tables(call, head);
    return true;
}

size_t scratch_size(const Call &call, bool backward) {
    const size_t keys = (call.key_length + 31) / 32 * 32, padded = (call.head_dim + 15) / 16 * 16, rows = 96;
    size_t floats = 2 * keys;                         // masks
    floats += 7 * keys * padded;                      // packed keys and values, their gradients, sums over panels
    floats += rows * (3 * padded + 256 + 2 * 16 + 4); // a block of queries
    if (backward) floats += rows * 3 * keys;          // and whole rows of weights
    return floats * 4 + 8 * (keys + 2 * padded) + 64 * 32;
}

bool run_items(Call &call, bool backward) {
    const Loops loops = chosen();
    const auto run = backward ? loops.backward_item : loops.forward_item;
    const long items = call.batch * call.heads * call.parts;
    const size_t size = scratch_size(call, backward);
    const long threads = call.threads < items ? call.threads : items;
    char *memory = (char *)malloc(threads * size + 64);
    if (!memory) return false;
    char *aligned = memory + (64 - (size_t)memory % 64) % 64;
    const long chunk = items / (threads * 16) + 1;
#pragma omp parallel num_threads(threads)
    {
        char *own = aligned + (size_t)omp_get_thread_num() * size;
#pragma omp for schedule(dynamic, chunk)
        for (long item = 0; item < items; item++) {
            Scratch scratch = {own, 0};
            run(call, item, scratch);
        }
    }
    free(memory);
    return true;
}

} // namespace

extern "C" {

// Both return 0, or 1 where memory ran out.

__attribute__((visibility("default"))) int blocked_forward(Call *given) {
    Call call = *given;
    char *memory = nullptr;
    const bool done = prepare(call, false, memory) && run_items(call, false);
    free(memory);
    return !done;
}

__attribute__((visibility("default"))) int blocked_backward(Call *given) {
    Call call = *given;
    char *memory = nullptr;
    const bool done = prepare(call, true, memory) && run_items(call, true);
    if (done) {
        const long pairs = call.batch * call.heads;
        for (long head = 0; head < call.heads; head++) {
            double by_weight = 0, by_shift = 0;
            for (long batch = 0; batch < call.batch; batch++)
                for (long part = 0; part < call.parts; part++) {
                    const double *share = call.shares_of_numbers + 2 * ((batch * call.heads + head) * call.parts + part);
                    by_weight += share[0];
                    by_shift += share[1];
                }
            call.weight_gradient[head] = (float)by_weight;
            call.shift_gradient[head] = (float)by_shift;
        }
        if (call.parts > 1) {
            const long size = call.key_length * call.head_dim;
#pragma omp parallel for collapse(2) num_threads(call.threads)
            for (long pair = 0; pair < pairs; pair++)
                for (long row = 0; row < call.key_length; row++) {
                    const long batch = pair / call.heads, head = pair % call.heads;
                    float *key = call.key_gradient.at(batch, head) + row * call.key_gradient.row;
                    float *value = call.value_gradient.at(batch, head) + row * call.value_gradient.row;
                    for (long d = 0; d < call.head_dim; d++) {
                        const long at = pair * call.parts * size + row * call.head_dim + d;
                        float key_sum = 0, value_sum = 0;
                        for (long part = 0; part < call.parts; part++) {
                            key_sum += call.shares_of_keys[at + part * size];
                            value_sum += call.shares_of_values[at + part * size];
                        }
                        key[d] = key_sum;
                        value[d] = value_sum;
                    }
                }
        }
    }
    free(memory);
    return !done;
}

// out = in / (1 − probability) where dropout keeps it, 0 elsewhere; the probability is threshold / 65536.
__attribute__((visibility("default"))) void blocked_dropout(float *out, const float *in, int64_t count, uint64_t seed,
                                                            uint32_t threshold, int64_t threads) {
    const auto drop_row = chosen().drop_row;
    const float factor = (float)(65536.0 / (65536 - threshold));
    const long rows = (count + DROPOUT_ROW - 1) / DROPOUT_ROW;
#pragma omp parallel for num_threads(threads) if (rows > 8)
    for (long row = 0; row < rows; row++) {
        const long start = row * DROPOUT_ROW, length = count - start < DROPOUT_ROW ? count - start : DROPOUT_ROW;
        drop_row(out + start, in + start, length, mixed(seed + 0x9E3779B97F4A7C15ull * (row + 1)), threshold, factor);
    }
}
}
