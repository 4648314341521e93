// The loops of `optimizer.py` over rows of word vectors, in one pass over memory. The formulas are explained there.

#include <cmath>
#include <cstdint>
#include <vector>

extern "C" {

// A table [rows, dim] with its moments, and the step that each row has last taken part in.
struct Table {
    int64_t rows, dim;
    float *weight, *average, *square;
    int64_t *last;
};

// The steps since all rows were last up to date: `columns` is what History.waiting gives, [8, steps + 1]; the others
// are by step, `shares`, `roots` and `decay`, or by age, `momentum` and `growth`.
struct History {
    int64_t begin, steps, reach;
    double epsilon;
    const double *columns, *shares, *roots, *decay, *momentum, *growth;
};

// One step of AdamW.
struct Step {
    int64_t number;
    double rate, first_beta, second_beta, epsilon, weight_decay;
};

}  // extern "C"

// Σ wⱼ / (√v + eⱼ), term by term.
static double add_up(const History &history, int64_t place, double root) {
    double total = 0;
    for (int64_t age = 1; age <= history.reach && place + age <= history.steps; ++age) {
        const int64_t step = place + age;
        const double offset = history.epsilon * history.roots[step] * history.growth[age];
        total += history.shares[step] * history.momentum[age] / (root + offset);
    }
    return total * history.decay[place];
}

static void bring_row(const Table &table, const History &history, int64_t row, float *__restrict move) {
    const int64_t place = table.last[row] - history.begin;
    const auto column = [&](int64_t number) {
        return static_cast<float>(history.columns[number * (history.steps + 1) + place]);
    };
    const float decay = column(0), weight = column(1), offset = column(2), second = column(3), third = column(4);
    const float largest = column(5), first_moment = column(6), second_moment = column(7);
    float *__restrict vector = table.weight + row * table.dim;
    float *__restrict average = table.average + row * table.dim;
    float *__restrict square = table.square + row * table.dim;
    int32_t coarse = 0;  // elements for which the expansion does not do
    for (int64_t d = 0; d < table.dim; ++d) {
        const float inverse = 1.0f / (std::sqrt(square[d]) + offset), ratio = inverse * offset;
        move[d] = ((second - ratio * third) * ratio * ratio + weight) * inverse;
        coarse += ratio > largest;
    }
    for (int64_t d = 0; coarse && d < table.dim; ++d)
        if (offset / (std::sqrt(square[d]) + offset) >= largest && average[d] != 0)
            move[d] = static_cast<float>(add_up(history, place, std::sqrt(static_cast<double>(square[d]))));
    for (int64_t d = 0; d < table.dim; ++d) {
        vector[d] = (vector[d] - move[d] * average[d]) * decay;
        average[d] *= first_moment;
        square[d] *= second_moment;
    }
}

extern "C" {

// Bring rows up to date, those that are not; they may repeat. One that is not in the table is left to the lookup that
// follows, which says so.
__attribute__((visibility("default"))) void bring_rows(
    const Table *table, const History *history, const int64_t *rows, int64_t count) {
    const int64_t end = history->begin + history->steps;
    std::vector<float> move(table->dim);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = rows[i];
        if (row < 0 || row >= table->rows || table->last[row] >= end) continue;
        bring_row(*table, *history, row, move.data());
        table->last[row] = end;
    }
}

// A step of AdamW of rows that are up to date, none of them twice, with their gradients [count, dim].
__attribute__((visibility("default"))) void step_rows(
    const Table *table, const Step *step, const int64_t *rows, const float *gradients, int64_t count) {
    const double first_part = 1 - std::pow(step->first_beta, static_cast<double>(step->number));
    const double second_part = 1 - std::pow(step->second_beta, static_cast<double>(step->number));
    const float rate = static_cast<float>(step->rate / first_part), root = static_cast<float>(std::sqrt(second_part));
    const float decay = static_cast<float>(1 - step->rate * step->weight_decay);
    const float epsilon = static_cast<float>(step->epsilon);
    const float first = static_cast<float>(step->first_beta), first_rest = static_cast<float>(1 - step->first_beta);
    const float second = static_cast<float>(step->second_beta), second_rest = static_cast<float>(1 - step->second_beta);
    for (int64_t i = 0; i < count; ++i) {
        float *__restrict vector = table->weight + rows[i] * table->dim;
        float *__restrict average = table->average + rows[i] * table->dim;
        float *__restrict square = table->square + rows[i] * table->dim;
        const float *__restrict gradient = gradients + i * table->dim;
        for (int64_t d = 0; d < table->dim; ++d) {
            average[d] = first * average[d] + first_rest * gradient[d];
            square[d] = second * square[d] + second_rest * gradient[d] * gradient[d];
            vector[d] = vector[d] * decay - rate * average[d] / (std::sqrt(square[d]) / root + epsilon);
        }
        table->last[rows[i]] = step->number;
    }
}

}  // extern "C"
