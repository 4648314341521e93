// The arithmetic of blocked_kernels.cpp, which includes this file once for each instruction set, in a namespace of its
// own: ISA names it, WIDTH is the floats in a vector, ROWS the query rows of a tile in registers.
//
// One work item is one head of one batch element, or a share of its queries. Keys and values are packed first:
// transposed in panels of PANEL keys where the keys run along the vector, row by row where the features do, features
// padded with zeros to whole vectors. All five matrix products are then the same loop, `multiply`.

namespace ISA {

constexpr long W = WIDTH, R = ROWS, PANEL = 2 * W;

typedef float Vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef float VecAt __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t IntsAt __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE Vec load(const float *at) { return *(const VecAt *)at; }
INLINE void store(float *at, Vec values) { *(VecAt *)at = values; }
INLINE Ints load_ints(const int32_t *at) { return *(const IntsAt *)at; }
INLINE Vec splat(float value) { return value - Vec{}; }
INLINE Vec keep(Vec values, Ints where) { return (Vec)((Ints)values & where); }

// The larger of the two, and `value` where it is NaN.
INLINE Vec at_least(Vec floor, Vec value) {
#if WIDTH == 16
    return _mm512_max_ps(floor, value);
#elif WIDTH == 8
    return _mm256_max_ps(floor, value);
#elif defined(__SSE__)
    return _mm_max_ps(floor, value);
#else
    return floor > value ? floor : value;
#endif
}

// Keeps a product from becoming part of a multiply-add. The peak is a rounded product: where it is large, the key that
// it belongs to would not get a weight of 1 if the same product were subtracted from it unrounded.
INLINE Vec rounded(Vec product) {
#if defined(__x86_64__)
    __asm__("" : "+v"(product));
#endif
    return product;
}

INLINE float sum(Vec values) {
#pragma GCC unroll 4
    for (long step = W / 2; step > 0; step /= 2) {
        Ints other;
#pragma GCC unroll 16
        for (long lane = 0; lane < W; lane++) other[lane] = lane ^ step;
        values += __builtin_shuffle(values, other);
    }
    return values[0];
}

INLINE double wide_sum(Vec values) {
    double total = 0;
    for (long lane = 0; lane < W; lane++) total += values[lane];
    return total;
}

INLINE float largest(Vec values) {
    float found = values[0];
    for (long lane = 1; lane < W; lane++) found = values[lane] > found ? values[lane] : found;
    return found;
}

// 2^x for x below 127, from -126 on right to 1.5 units in the last place; what lies below is held at 2^-126, NaN stays
// NaN. The sum with `magic` rounds x and leaves the biased exponent in the lowest bits.
INLINE Vec power_of_two(Vec x) {
    const Vec magic = splat(12582912.0f + 127.0f);
    x = at_least(splat(-126.0f), x);
    const Vec shifted = x + magic;
    const Vec rest = x - (shifted - magic);
    Vec poly = splat(1.327647205e-3f);
    poly = poly * rest + splat(9.675541385e-3f);
    poly = poly * rest + splat(5.550713274e-2f);
    poly = poly * rest + splat(2.402211972e-1f);
    poly = poly * rest + splat(6.931469671e-1f);
    poly = poly * rest + splat(1.000000072f);
    return poly * (Vec)((Words)shifted << 23);
}

// found[r][c] += Σ_k left[r·row + k·step] · right[k·stride + c·W …]; one of `row` and `step` is 1.
template <bool TRANSPOSED, long ROW_COUNT, long COLUMNS>
INLINE void multiply(Vec (&found)[ROW_COUNT][COLUMNS], const float *left, long pitch, const float *right, long stride,
                     long count) {
    for (long k = 0; k < count; k++) {
        Vec row[COLUMNS];
#pragma GCC unroll 4
        for (long c = 0; c < COLUMNS; c++) row[c] = load(right + k * stride + c * W);
#pragma GCC unroll 16
        for (long r = 0; r < ROW_COUNT; r++) {
            const Vec factor = splat(TRANSPOSED ? left[k * pitch + r] : left[r * pitch + k]);
#pragma GCC unroll 4
            for (long c = 0; c < COLUMNS; c++) found[r][c] += factor * row[c];
        }
    }
}

// out[R, PANEL] = left[R, count] · panel[count, PANEL]
INLINE void multiply_panel(float *out, const float *left, long pitch, const float *panel, long count) {
    Vec found[R][2];
#pragma GCC unroll 16
    for (long r = 0; r < R; r++)
#pragma GCC unroll 4
        for (long c = 0; c < 2; c++) found[r][c] = Vec{};
    multiply<false, R, 2>(found, left, pitch, panel, PANEL, count);
#pragma GCC unroll 16
    for (long r = 0; r < R; r++)
#pragma GCC unroll 4
        for (long c = 0; c < 2; c++) store(out + r * PANEL + c * W, found[r][c]);
}

template <bool TRANSPOSED, long ROW_COUNT, long COLUMNS>
static __attribute__((noinline)) void add_tile(float *out, long out_pitch, const float *left, long pitch,
                                               const float *right, long stride, long count) {
    Vec found[ROW_COUNT][COLUMNS];
#pragma GCC unroll 16
    for (long r = 0; r < ROW_COUNT; r++)
#pragma GCC unroll 4
        for (long c = 0; c < COLUMNS; c++) found[r][c] = load(out + r * out_pitch + c * W);
    multiply<TRANSPOSED, ROW_COUNT, COLUMNS>(found, left, pitch, right, stride, count);
#pragma GCC unroll 16
    for (long r = 0; r < ROW_COUNT; r++)
#pragma GCC unroll 4
        for (long c = 0; c < COLUMNS; c++) store(out + r * out_pitch + c * W, found[r][c]);
}

typedef void (*AddTile)(float *, long, const float *, long, const float *, long, long);

template <bool TRANSPOSED, long ROW_COUNT>
struct AddTiles {
    static AddTile of(long rows, long columns) {
        if (rows == ROW_COUNT) return columns == 2 ? add_tile<TRANSPOSED, ROW_COUNT, 2> : add_tile<TRANSPOSED, ROW_COUNT, 1>;
        return AddTiles<TRANSPOSED, ROW_COUNT - 1>::of(rows, columns);
    }
};
template <bool TRANSPOSED>
struct AddTiles<TRANSPOSED, 0> {
    static AddTile of(long, long) { return nullptr; }
};

// out[rows, columns] += left[rows, count] · right[count, columns], or left transposed; columns a multiple of W.
template <bool TRANSPOSED>
static void add_product(float *out, const float *left, long pitch, const float *right, long rows, long columns,
                        long count) {
    for (long c = 0; c < columns; c += 2 * W) {
        const long vectors = columns - c > W ? 2 : 1;
        const AddTile whole = AddTiles<TRANSPOSED, R>::of(R, vectors);
        long r = 0;
        for (; r + R <= rows; r += R)
            whole(out + r * columns + c, columns, left + (TRANSPOSED ? r : r * pitch), pitch, right + c, columns, count);
        if (r < rows)
            AddTiles<TRANSPOSED, R>::of(rows - r, vectors)(out + r * columns + c, columns,
                                                           left + (TRANSPOSED ? r : r * pitch), pitch, right + c, columns,
                                                           count);
    }
}

// Which of PANEL weights dropout keeps. One hashed word decides over two keys, eight apart, with 16 bits each; the
// answer depends on row and key alone, not on the instruction set.
struct Dropout {
    uint32_t threshold; // of 65536
    long key;           // the first of the panel
};

INLINE Words hashed(Words words, uint64_t row) {
    words = words * 0x9E3779B9u + (uint32_t)row;
    words ^= words >> 16;
    words *= 0x7feb352du;
    words ^= (uint32_t)(row >> 32);
    words ^= words >> 15;
    words *= 0x846ca68bu;
    return words ^ (words >> 16);
}

INLINE void draw(Ints (&kept)[2], const Dropout &dropout, uint64_t row) {
    const uint32_t first = (uint32_t)(dropout.key >> 4) * 8, half = (uint32_t)(dropout.key >> 3 & 1) * 16;
    Words words[2];
    for (long c = 0; c < 2; c++) {
        if (c == 0 || W != 8) words[c] = hashed((Words)load_ints(WORD_OF_KEY + c * W) + first, row);
        else words[1] = words[0];
    }
    for (long c = 0; c < 2; c++) {
        const Words level = words[c] >> ((Words)load_ints(BITS_OF_KEY + c * W) + half) & 0xffffu;
        kept[c] = (Ints)level >= (Ints)(Words{} + dropout.threshold);
    }
}

// Everything a tile of R queries × PANEL keys reads besides its two factors.
struct Tile {
    const float *log_coefficient; // of the first row's distance to the first key; the next row's lies one before it
    const int32_t *visible;       // of the first key
    const int32_t *before;        // causal mask, indexed as the coefficients
    const float *peak, *origin;   // of the first row: log2 of the softmax's shift, and Σ gradient · output
    const uint64_t *row_key;
    Dropout dropout;
};

template <bool MASK>
INLINE void weigh(Vec (&weights)[2], Vec (&scores)[2], const float *products, const Tile &tile, long r) {
#pragma GCC unroll 2
    for (long c = 0; c < 2; c++) {
        scores[c] = at_least(Vec{}, load(products + r * PANEL + c * W));
        weights[c] = power_of_two(rounded(scores[c] * load(tile.log_coefficient - r + c * W)) - splat(tile.peak[r]));
        if (MASK) {
            const Ints seen = load_ints(tile.visible + c * W) & load_ints(tile.before - r + c * W);
            weights[c] = keep(weights[c], seen);
            scores[c] = keep(scores[c], seen); // in the backward: a hidden key's NaN
        }
    }
}

template <bool MASK, bool DROP>
static __attribute__((noinline)) void forward_tile(const float *query, long pitch, const float *panel, long features,
                                                   const Tile &tile, float *weights_out, long weights_pitch,
                                                   float *sums) {
    alignas(64) float products[R * PANEL];
    multiply_panel(products, query, pitch, panel, features);
    for (long r = 0; r < R; r++) {
        Vec weights[2], scores[2];
        weigh<MASK>(weights, scores, products, tile, r);
        store(sums + r * W, load(sums + r * W) + (weights[0] + weights[1]));
        if (DROP) {
            Ints kept[2];
            draw(kept, tile.dropout, tile.row_key[r]);
            for (long c = 0; c < 2; c++) weights[c] = keep(weights[c], kept[c]);
        }
        for (long c = 0; c < 2; c++) store(weights_out + r * weights_pitch + c * W, weights[c]);
    }
}

// log2 of the largest weight so far, where a bound on it does not do.
static __attribute__((noinline)) void peak_tile(const float *query, long pitch, const float *panel, long features,
                                                const Tile &tile, float *peaks) {
    alignas(64) float products[R * PANEL];
    multiply_panel(products, query, pitch, panel, features);
    for (long r = 0; r < R; r++)
        for (long c = 0; c < 2; c++) {
            Vec score = at_least(Vec{}, load(products + r * PANEL + c * W)) * load(tile.log_coefficient - r + c * W);
            score = keep(score, load_ints(tile.visible + c * W) & load_ints(tile.before - r + c * W));
            store(peaks + r * W, at_least(load(peaks + r * W), score));
        }
}

// The first half of the backward: scores, weights, and what the output's gradient says of each weight, relative to
// the row's origin. A weight that dropout dropped is stored negative.
template <bool MASK, bool DROP>
static __attribute__((noinline)) void backward_tile(const float *query, const float *gradient, long pitch,
                                                    const float *key_panel, const float *value_panel, long features,
                                                    const Tile &tile, float *scores_out, float *weights_out,
                                                    float *directs_out, long out_pitch, float *totals) {
    alignas(64) float products[R * PANEL], directs[R * PANEL];
    multiply_panel(products, query, pitch, key_panel, features);
    multiply_panel(directs, gradient, pitch, value_panel, features);
    for (long r = 0; r < R; r++) {
        Vec weights[2], scores[2], total = load(totals + r * W);
        weigh<MASK>(weights, scores, products, tile, r);
        Ints kept[2];
        if (DROP) draw(kept, tile.dropout, tile.row_key[r]);
#pragma GCC unroll 2
        for (long c = 0; c < 2; c++) {
            Vec direct = load(directs + r * PANEL + c * W);
            if (DROP) direct = keep(direct, kept[c]);
            direct -= splat(tile.origin[r]);
            total += weights[c] * direct;
            if (DROP) weights[c] = (Vec)((Ints)weights[c] | (~kept[c] & (Ints)splat(-0.0f)));
            store(scores_out + r * out_pitch + c * W, scores[c]);
            store(weights_out + r * out_pitch + c * W, weights[c]);
            store(directs_out + r * out_pitch + c * W, direct);
        }
        store(totals + r * W, total);
    }
}

// The second half, for one row: the softmax's gradient weight · (direct − mean), where the mean is that of `directs`
// under the weights. It would be 0, as their origin is Σ gradient · output, were it not for rounding. Where one key
// has all the weight the difference must vanish: large coefficients magnify what is left of it.
template <bool DROP>
INLINE void backward_row(const float *scores, float *weights, float *directs, long count, float row_mean,
                         const float *log_coefficient, const float *by_weight, const float *by_shift, Vec &weight_sum,
                         Vec &shift_sum) {
    const Vec mean = splat(row_mean);
    for (long k = 0; k < count; k += W) {
        const Vec score = load(scores + k);
        Vec weight = load(weights + k);
        if (DROP) {
            store(weights + k, at_least(Vec{}, weight));
            weight = (Vec)((Ints)weight & 0x7fffffff);
        }
        const Vec slope = keep(weight * (load(directs + k) - mean), ~(score <= Vec{}));
        const Vec share = slope * score;
        weight_sum += share * load(by_weight + k);
        shift_sum += share * load(by_shift + k);
        store(directs + k, slope * load(log_coefficient + k));
    }
}

// rows × columns of a tensor into panels [columns][PANEL] with the rows along the vector; rows beyond the last are 0.
static void pack_panels(float *out, const float *from, long stride, long rows, long columns) {
    for (long first = 0; first < rows; first += PANEL) {
        const long count = rows - first < PANEL ? rows - first : PANEL;
        if (count < PANEL) memset(out, 0, sizeof(float) * PANEL * columns);
        const float *rows_from = from + first * stride;
        long r = 0;
        for (; r + 4 <= count; r += 4) {
            long c = 0;
            for (; c + 4 <= columns; c += 4) {
                typedef float Four __attribute__((vector_size(16)));
                typedef float FourAt __attribute__((vector_size(16), aligned(4), may_alias));
                typedef int32_t Order __attribute__((vector_size(16)));
                const float *at = rows_from + r * stride + c;
                const Four one = *(const FourAt *)at, two = *(const FourAt *)(at + stride);
                const Four three = *(const FourAt *)(at + 2 * stride), four = *(const FourAt *)(at + 3 * stride);
                const Four low = __builtin_shuffle(one, two, Order{0, 4, 1, 5});
                const Four high = __builtin_shuffle(one, two, Order{2, 6, 3, 7});
                const Four next_low = __builtin_shuffle(three, four, Order{0, 4, 1, 5});
                const Four next_high = __builtin_shuffle(three, four, Order{2, 6, 3, 7});
                float *to = out + c * PANEL + r;
                *(FourAt *)to = __builtin_shuffle(low, next_low, Order{0, 1, 4, 5});
                *(FourAt *)(to + PANEL) = __builtin_shuffle(low, next_low, Order{2, 3, 6, 7});
                *(FourAt *)(to + 2 * PANEL) = __builtin_shuffle(high, next_high, Order{0, 1, 4, 5});
                *(FourAt *)(to + 3 * PANEL) = __builtin_shuffle(high, next_high, Order{2, 3, 6, 7});
            }
            for (; c < columns; c++)
                for (long one = r; one < r + 4; one++) out[c * PANEL + one] = rows_from[one * stride + c];
        }
        for (; r < count; r++)
            for (long c = 0; c < columns; c++) out[c * PANEL + r] = rows_from[r * stride + c];
        out += PANEL * columns;
    }
}

// One row into whole vectors, the rest of the last one 0; returns its squared length.
INLINE float pack_row(float *out, const float *from, long columns, long padded, float factor) {
    Vec squares = {};
    long c = 0;
    for (; c + W <= columns; c += W) {
        const Vec values = load(from + c);
        squares += values * values;
        store(out + c, values * splat(factor));
    }
    if (c < padded) {
        Vec values = {};
        for (long lane = 0; c + lane < columns; lane++) values[lane] = from[c + lane];
        squares += values * values;
        store(out + c, values * splat(factor));
    }
    return sum(squares);
}

INLINE void unpack_row(float *out, const float *from, long columns, float factor) {
    long c = 0;
    for (; c + W <= columns; c += W) store(out + c, load(from + c) * splat(factor));
    for (; c < columns; c++) out[c] = from[c] * factor;
}

// What both passes know of one work item.
struct Item {
    const Call &call;
    long batch, head, first_query, last_query; // queries [first, last)
    long padded;                               // features in whole vectors
    long keys;                                 // up to the last visible one
    long panels;
    const float *log_coefficient, *by_weight, *by_shift;
    long reach; // beyond it, keys are far
    bool has_far;
    int32_t *visible;    // [panels · PANEL]
    int32_t *panel_mask; // [panels] whether a panel has a key to hide

    Item(const Call &call, long number, Scratch &scratch) : call(call) {
        const long part = number % call.parts, pair = number / call.parts;
        batch = pair / call.heads;
        head = pair % call.heads;
        const long share = (call.query_length + call.parts - 1) / call.parts;
        first_query = part * share < call.query_length ? part * share : call.query_length;
        last_query = first_query + share < call.query_length ? first_query + share : call.query_length;
        padded = (call.head_dim + W - 1) / W * W;
        const long all_panels = (call.key_length + PANEL - 1) / PANEL;
        visible = scratch.take<int32_t>(all_panels * PANEL);
        panel_mask = scratch.take<int32_t>(all_panels);
        const uint8_t *hidden = call.hidden ? call.hidden + batch * call.key_length : nullptr;
        keys = 0;
        for (long j = 0; j < all_panels * PANEL; j++) {
            const bool seen = j < call.key_length && !(hidden && hidden[j]);
            visible[j] = -(int32_t)seen;
            if (seen) keys = j + 1;
        }
        panels = (keys + PANEL - 1) / PANEL;
        for (long p = 0; p < panels; p++) {
            int32_t all = -1;
            for (long j = p * PANEL; j < (p + 1) * PANEL; j++) all &= visible[j];
            panel_mask[p] = !all;
        }
        log_coefficient = call.log_coefficients + head * call.table_length + call.table_middle;
        by_weight = call.by_weight ? call.by_weight + head * call.table_length + call.table_middle : nullptr;
        by_shift = call.by_shift ? call.by_shift + head * call.table_length + call.table_middle : nullptr;
        reach = call.reach[head];
        has_far = reach < keys;
    }

    long position(long query) const { return query + call.key_length - call.query_length; }

    // Panels [first, last) that queries [one, other) see from near; those outside are far, or hidden.
    void window(long one, long other, long &first, long &last) const {
        first = 0;
        last = panels;
        if (has_far) {
            const long from = position(one) - reach + 1, to = position(other - 1) + reach;
            if (from > 0) first = from / PANEL;
            if (to <= 0) last = 0;
            else if ((to + PANEL - 1) / PANEL < last) last = (to + PANEL - 1) / PANEL;
        }
        if (call.causal) {
            const long to = position(other - 1) + 1;
            if (to <= 0) last = 0;
            else if ((to + PANEL - 1) / PANEL < last) last = (to + PANEL - 1) / PANEL;
        }
        if (first > last) first = last;
    }

    Tile tile(long query, long panel, const float *peak, const float *origin, const uint64_t *row_key) const {
        const long key = panel * PANEL, offset = key - position(query);
        return {log_coefficient + offset, visible + key, call.before + call.table_middle + offset, peak, origin,
                row_key, {call.threshold, key}};
    }

    bool masked(long query, long panel) const {
        return panel_mask[panel] || (call.causal && panel * PANEL + PANEL - 1 > position(query));
    }

    void row_keys(uint64_t *out, long query, long count) const {
        for (long r = 0; r < count; r++)
            out[r] = mixed(call.seed + 0x9E3779B97F4A7C15ull *
                                           (uint64_t)((batch * call.heads + head) * call.query_length + query + r + 1));
    }
};

// Short sequences are packed faster than memory delivers them, a row of each head at a time: while a head is computed,
// its tiles ask for the rows of the next.
struct Ahead {
    const Tensor *tensors[4];
    long lengths[4];
    long count, batch, head, tensor, row, per_tile, lines;

    Ahead(const Item &item, const Call &call, const Tensor &fourth, long tiles)
        : tensors{&call.query, &call.key, &call.value, &fourth},
          lengths{call.query_length, call.key_length, call.key_length, call.query_length}, count(4), batch(item.batch),
          head(item.head + 1), tensor(0), row(0) {
        if (head == call.heads) {
            head = 0;
            batch++;
        }
        lines = (call.head_dim + 15) / 16;
        const long rows = 2 * (call.query_length + call.key_length);
        // What would not stay in the second-level cache until it is used is not asked for.
        if (batch == call.batch || call.parts > 1 || rows * lines > 4096) count = 0;
        per_tile = tiles > 0 ? (rows + tiles - 1) / tiles : 0;
    }

    void step() {
        for (long n = 0; n < per_tile && tensor < count; n++) {
            const float *at = tensors[tensor]->at(batch, head) + row * tensors[tensor]->row;
            for (long line = 0; line < lines; line++) __builtin_prefetch(at + 16 * line, 0, 2);
            if (++row == lengths[tensor]) {
                row = 0;
                tensor++;
            }
        }
    }
};

// The backward holds whole rows of weights, which should stay in the second-level cache.
static long block_rows(const Call &call, bool backward) {
    const long rows = call.head_dim <= 32 || (backward && call.key_length > 1024) ? 4 * R : 8 * R;
    const long all = (call.query_length + R - 1) / R * R;
    return all < rows ? all : rows;
}

static long block_panels(const Call &call) { return (call.head_dim <= 32 ? 256 : 128) / PANEL; }

// Sums of visible values over the panels before each edge between panels, and over those from it on.
struct FarValues {
    long padded, panels;
    bool causal;
    float *before, *from_on;
    int64_t *counts;

    FarValues(const Item &item, const float *from, long stride, Scratch &scratch)
        : padded(item.padded), panels(item.panels), causal(item.call.causal) {
        if (!item.has_far) return;
        const long features = item.call.head_dim;
        before = scratch.take<float>((panels + 1) * padded);
        from_on = scratch.take<float>((panels + 1) * padded);
        counts = scratch.take<int64_t>(panels + 1);
        double *total = scratch.take<double>(padded);
        for (long direction = 0; direction < 2; direction++) {
            memset(total, 0, sizeof(double) * padded);
            int64_t count = 0;
            for (long n = 0; n <= panels; n++) {
                const long edge = direction ? panels - n : n;
                float *out = (direction ? from_on : before) + edge * padded;
                for (long d = 0; d < padded; d++) out[d] = (float)total[d];
                if (!direction) counts[edge] = count;
                if (n == panels) break;
                const long panel = direction ? edge - 1 : edge;
                for (long j = panel * PANEL; j < (panel + 1) * PANEL; j++) {
                    if (!item.visible[j]) continue;
                    count++;
                    for (long d = 0; d < features; d++) total[d] += from[j * stride + d];
                }
            }
        }
    }

    // Of the panels outside of [first, last).
    int64_t count(long first, long last) const { return counts[first] + (causal ? 0 : counts[panels] - counts[last]); }

    void add(float *out, float weight, long first, long last) const {
        for (long d = 0; d < padded; d++) out[d] += weight * before[first * padded + d];
        if (causal) return;
        for (long d = 0; d < padded; d++) out[d] += weight * from_on[last * padded + d];
    }

    double product(const float *gradient, long first, long last) const {
        double total = 0;
        for (long d = 0; d < padded; d++)
            total += (double)gradient[d] * (before[first * padded + d] + (causal ? 0 : from_on[last * padded + d]));
        return total;
    }
};

static void forward_item(const Call &call, long number, Scratch &scratch) {
    const Item item(call, number, scratch);
    const long features = call.head_dim, padded = item.padded, rows = block_rows(call, false), most = block_panels(call);
    const float *keys_from = call.key.at(item.batch, item.head), *values_from = call.value.at(item.batch, item.head);
    float *key_panels = scratch.take<float>(item.panels * PANEL * features);
    float *values = scratch.take<float>(item.panels * PANEL * padded);
    float *queries = scratch.take<float>(rows * padded);
    float *outputs = scratch.take<float>(rows * padded);
    float *weights = scratch.take<float>(rows * most * PANEL);
    float *sums = scratch.take<float>(rows * W);
    float *peaks = scratch.take<float>(rows);
    uint64_t *row_keys = scratch.take<uint64_t>(rows);

    pack_panels(key_panels, keys_from, call.key.row, item.keys, features);
    Vec longest_parts = {};
    for (long p = 0; p < item.panels; p++) {
        Vec squares[2] = {};
        for (long d = 0; d < features; d++)
            for (long c = 0; c < 2; c++) {
                const Vec entry = load(key_panels + (p * features + d) * PANEL + c * W);
                squares[c] += entry * entry;
            }
        for (long c = 0; c < 2; c++)
            longest_parts = at_least(longest_parts, keep(squares[c], load_ints(item.visible + p * PANEL + c * W)));
    }
    const float longest = largest(longest_parts);
    for (long j = 0; j < item.keys; j++) pack_row(values + j * padded, values_from + j * call.value.row, features, padded, 1);
    memset(values + item.keys * padded, 0, sizeof(float) * (item.panels * PANEL - item.keys) * padded);

    const FarValues far(item, values_from, call.value.row, scratch);
    Ahead ahead(item, call, call.output, (item.last_query - item.first_query + R - 1) / R * item.panels);
    const float steepest = sqrtf(longest) * call.scale * call.largest[item.head];
    for (long query = item.first_query; query < item.last_query; query += rows) {
        const long count = item.last_query - query < rows ? item.last_query - query : rows;
        const long groups = (count + R - 1) / R;
        bool bounded = true;
        for (long r = 0; r < groups * R; r++) {
            peaks[r] = 0;
            if (r >= count) {
                memset(queries + r * padded, 0, sizeof(float) * padded);
                continue;
            }
            const float squares =
                pack_row(queries + r * padded, call.query.at(item.batch, item.head) + (query + r) * call.query.row,
                         features, padded, 1);
            const float bound = sqrtf(squares) * steepest;
            // No score exceeds its bound (Cauchy and Schwarz) and none is negative. While that leaves no weight
            // beyond e^±60, the bound does as the softmax's shift, and no pass over the keys is spent on the peak.
            if (!(bound <= 120)) bounded = false;
            else if (bound > 60) peaks[r] = (bound - 60) * 1.44269504f;
        }
        long first, last;
        item.window(query, query + count, first, last);
        if (!bounded) {
            memset(sums, 0, sizeof(float) * groups * R * W);
            for (long panel = first; panel < last; panel++)
                for (long g = 0; g < groups; g++)
                    peak_tile(queries + g * R * padded, padded, key_panels + panel * PANEL * features, features,
                              item.tile(query + g * R, panel, nullptr, nullptr, nullptr), sums + g * R * W);
            for (long r = 0; r < count; r++) peaks[r] = largest(load(sums + r * W));
        }
        if (call.threshold) item.row_keys(row_keys, query, groups * R);

        memset(sums, 0, sizeof(float) * groups * R * W);
        memset(outputs, 0, sizeof(float) * groups * R * padded);
        for (long from = first; from < last; from += most) {
            const long to = from + most < last ? from + most : last, pitch = (to - from) * PANEL;
            for (long panel = from; panel < to; panel++)
                for (long g = 0; g < groups; g++) {
                    const Tile tile = item.tile(query + g * R, panel, peaks + g * R, nullptr, row_keys + g * R);
                    const bool mask = item.masked(query + g * R, panel);
                    ahead.step();
                    const auto run = call.threshold ? (mask ? forward_tile<true, true> : forward_tile<false, true>)
                                                    : (mask ? forward_tile<true, false> : forward_tile<false, false>);
                    run(queries + g * R * padded, padded, key_panels + panel * PANEL * features, features, tile,
                        weights + g * R * pitch + (panel - from) * PANEL, pitch, sums + g * R * W);
                }
            add_product<false>(outputs, weights, pitch, values + from * PANEL * padded, groups * R, padded, pitch);
        }

        float *out = call.output.at(item.batch, item.head) + query * call.output.row;
        float *statistics = call.statistics + (item.batch * call.heads + item.head) * 2 * call.query_length + query;
        for (long r = 0; r < count; r++) {
            float total = sum(load(sums + r * W));
            if (item.has_far) {
                const float weight = exp2f(-peaks[r]);
                far.add(outputs + r * padded, weight, first, last);
                total += weight * (float)far.count(first, last);
            }
            const float inverse = total == 0 ? 0 : 1 / total;
            statistics[r] = peaks[r];
            statistics[call.query_length + r] = inverse;
            unpack_row(out + r * call.output.row, outputs + r * padded, features, inverse * call.kept_scale);
        }
    }
}

static void backward_item(const Call &call, long number, Scratch &scratch) {
    const Item item(call, number, scratch);
    const long features = call.head_dim, padded = item.padded, rows = block_rows(call, true);
    const float *keys_from = call.key.at(item.batch, item.head), *values_from = call.value.at(item.batch, item.head);
    const long packed = item.panels * PANEL;
    float *key_panels = scratch.take<float>(packed * features);
    float *value_panels = scratch.take<float>(packed * features);
    float *keys = scratch.take<float>(packed * padded);
    float *key_slopes = scratch.take<float>(packed * padded);
    float *value_slopes = scratch.take<float>(packed * padded);
    float *queries = scratch.take<float>(rows * padded);
    float *gradients = scratch.take<float>(rows * padded);
    float *query_slopes = scratch.take<float>(rows * padded);
    float *scores = scratch.take<float>(rows * packed);
    float *weights = scratch.take<float>(rows * packed);
    float *directs = scratch.take<float>(rows * packed);
    float *totals = scratch.take<float>(rows * W);
    float *peaks = scratch.take<float>(rows);
    float *origins = scratch.take<float>(rows);
    uint64_t *row_keys = scratch.take<uint64_t>(rows);
    const FarValues far(item, values_from, call.value.row, scratch);
    float *far_before = nullptr, *far_from_on = nullptr; // what the panels before an edge, and from it on, receive
    if (item.has_far) {
        far_before = scratch.take<float>((item.panels + 1) * padded);
        far_from_on = scratch.take<float>((item.panels + 1) * padded);
        memset(far_before, 0, sizeof(float) * (item.panels + 1) * padded);
        memset(far_from_on, 0, sizeof(float) * (item.panels + 1) * padded);
    }

    pack_panels(key_panels, keys_from, call.key.row, item.keys, features);
    pack_panels(value_panels, values_from, call.value.row, item.keys, features);
    for (long j = 0; j < item.keys; j++) pack_row(keys + j * padded, keys_from + j * call.key.row, features, padded, 1);
    memset(keys + item.keys * padded, 0, sizeof(float) * (packed - item.keys) * padded);
    memset(key_slopes, 0, sizeof(float) * packed * padded);
    memset(value_slopes, 0, sizeof(float) * packed * padded);

    Ahead ahead(item, call, call.gradient, (item.last_query - item.first_query + R - 1) / R * item.panels);
    double weight_total = 0, shift_total = 0;
    const long pair = item.batch * call.heads + item.head;
    for (long query = item.first_query; query < item.last_query; query += rows) {
        const long count = item.last_query - query < rows ? item.last_query - query : rows;
        const long groups = (count + R - 1) / R;
        const float *statistics = call.statistics + pair * 2 * call.query_length + query;
        for (long r = 0; r < groups * R; r++) {
            peaks[r] = origins[r] = 0;
            if (r >= count) {
                memset(queries + r * padded, 0, sizeof(float) * padded);
                memset(gradients + r * padded, 0, sizeof(float) * padded);
                continue;
            }
            peaks[r] = statistics[r];
            const float inverse = statistics[call.query_length + r];
            const float *from = call.gradient.at(item.batch, item.head) + (query + r) * call.gradient.row;
            const float *output = call.output.at(item.batch, item.head) + (query + r) * call.output.row;
            pack_row(queries + r * padded, call.query.at(item.batch, item.head) + (query + r) * call.query.row, features,
                     padded, 1);
            pack_row(gradients + r * padded, from, features, padded, inverse * call.kept_scale);
            Vec products = {};
            long d = 0;
            for (; d + W <= features; d += W) products += load(from + d) * load(output + d);
            float product = sum(products);
            for (; d < features; d++) product += from[d] * output[d];
            origins[r] = product * inverse;
        }
        if (call.threshold) item.row_keys(row_keys, query, groups * R);

        long first, last;
        item.window(query, query + count, first, last);
        const long pitch = (last - first) * PANEL;
        memset(totals, 0, sizeof(float) * groups * R * W);
        for (long panel = first; panel < last; panel++)
            for (long g = 0; g < groups; g++) {
                const Tile tile = item.tile(query + g * R, panel, peaks + g * R, origins + g * R, row_keys + g * R);
                const bool mask = item.masked(query + g * R, panel);
                const auto run = call.threshold ? (mask ? backward_tile<true, true> : backward_tile<false, true>)
                                                : (mask ? backward_tile<true, false> : backward_tile<false, false>);
                const long at = g * R * pitch + (panel - first) * PANEL;
                ahead.step();
                run(queries + g * R * padded, gradients + g * R * padded, padded, key_panels + panel * PANEL * features,
                    value_panels + panel * PANEL * features, features, tile, scores + at, weights + at, directs + at,
                    pitch, totals + g * R * W);
            }
        Vec weight_sum = {}, shift_sum = {};
        for (long r = 0; r < groups * R; r++) {
            const float inverse = r < count ? statistics[call.query_length + r] : 0;
            float mean = inverse * sum(load(totals + r * W));
            if (item.has_far && r < count)
                mean += (float)(inverse * exp2(-(double)peaks[r]) *
                                (far.product(gradients + r * padded, first, last) -
                                 (double)origins[r] * far.count(first, last)));
            const long offset = first * PANEL - item.position(query + r);
            float *row_scores = scores + r * pitch, *row_weights = weights + r * pitch, *row_directs = directs + r * pitch;
            if (call.threshold)
                backward_row<true>(row_scores, row_weights, row_directs, pitch, mean, item.log_coefficient + offset,
                                   item.by_weight + offset, item.by_shift + offset, weight_sum, shift_sum);
            else
                backward_row<false>(row_scores, row_weights, row_directs, pitch, mean, item.log_coefficient + offset,
                                    item.by_weight + offset, item.by_shift + offset, weight_sum, shift_sum);
            if (pitch >= 512 || r + 1 == groups * R) {
                weight_total += wide_sum(weight_sum);
                shift_total += wide_sum(shift_sum);
                weight_sum = shift_sum = Vec{};
            }
        }
        const long at = first * PANEL * padded;
        memset(query_slopes, 0, sizeof(float) * groups * R * padded);
        add_product<false>(query_slopes, directs, pitch, keys + at, groups * R, padded, pitch);
        add_product<true>(value_slopes + at, weights, pitch, gradients, pitch, padded, groups * R);
        add_product<true>(key_slopes + at, directs, pitch, queries, pitch, padded, groups * R);
        if (item.has_far)
            for (long r = 0; r < count; r++) {
                const float weight = exp2f(-peaks[r]);
                for (long d = 0; d < padded; d++) {
                    const float share = weight * gradients[r * padded + d];
                    far_before[first * padded + d] += share;
                    if (!call.causal) far_from_on[last * padded + d] += share;
                }
            }
        float *out = call.query_gradient.at(item.batch, item.head) + query * call.query_gradient.row;
        for (long r = 0; r < count; r++)
            unpack_row(out + r * call.query_gradient.row, query_slopes + r * padded, features, LN2);
    }

    if (item.has_far) {
        double *total = scratch.take<double>(padded);
        for (long direction = 0; direction < 2; direction++) {
            memset(total, 0, sizeof(double) * padded);
            for (long n = 0; n < item.panels; n++) {
                // Panels lie before the edges that follow them: from the last panel down; and the other way round.
                const long panel = direction ? n : item.panels - 1 - n, edge = direction ? panel : panel + 1;
                const float *given = (direction ? far_from_on : far_before) + edge * padded;
                for (long d = 0; d < padded; d++) total[d] += given[d];
                for (long j = panel * PANEL; j < (panel + 1) * PANEL; j++)
                    if (item.visible[j])
                        for (long d = 0; d < padded; d++) value_slopes[j * padded + d] += (float)total[d];
            }
        }
    }
    for (long j = 0; j < call.key_length; j++) {
        float *key_out = call.key_gradient.at(item.batch, item.head);
        float *value_out = call.value_gradient.at(item.batch, item.head);
        key_out += j * call.key_gradient.row;
        value_out += j * call.value_gradient.row;
        if (call.parts > 1) { // added up afterwards, in order
            key_out = call.shares_of_keys + (number * call.key_length + j) * features;
            value_out = call.shares_of_values + (number * call.key_length + j) * features;
        }
        if (j >= item.keys) {
            memset(key_out, 0, sizeof(float) * features);
            memset(value_out, 0, sizeof(float) * features);
            continue;
        }
        unpack_row(key_out, key_slopes + j * padded, features, LN2);
        unpack_row(value_out, value_slopes + j * padded, features, 1);
    }
    call.shares_of_numbers[2 * number] = weight_total;
    call.shares_of_numbers[2 * number + 1] = shift_total;
}

// out = in · factor where dropout keeps it, 0 elsewhere; one row of a tensor cut into rows of DROPOUT_ROW.
static void drop_row(float *out, const float *in, long count, uint64_t row_key, uint32_t threshold, float factor) {
    for (long k = 0; k < count; k += PANEL) {
        Ints kept[2];
        draw(kept, {threshold, k}, row_key);
        alignas(64) float piece[PANEL];
        const bool whole = k + PANEL <= count;
        if (!whole) memcpy(piece, in + k, sizeof(float) * (count - k));
        const float *from = whole ? in + k : piece;
        float *to = whole ? out + k : piece;
        for (long c = 0; c < 2; c++) store(to + c * W, keep(load(from + c * W) * splat(factor), kept[c]));
        if (!whole) memcpy(out + k, piece, sizeof(float) * (count - k));
    }
}

#undef INLINE

} // namespace ISA
