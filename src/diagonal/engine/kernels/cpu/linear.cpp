// Packing of weights, and fused linear layers: norm, product, bias, activation and residual in one pass.
//
// Each result is summed in the same order along the depth, whatever the number of tokens: tokens do not notice how many
// others are in their step.

#include "linear.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "pool.h"
#include "vectors.h"

namespace {

constexpr int PANEL = 2 * LANES;
constexpr int MOST = REGISTERS == 32 ? 14 : 6;  // tokens whose sums of one panel fit the registers
constexpr int FEW = REGISTERS == 32 ? 6 : 2;    // tokens whose sums of two panels fit

int64_t panels_of(const Packed& packed) {
    const int64_t wide = packed.gated ? LANES : PANEL, results = packed.gated ? packed.rows / 2 : packed.rows;
    return (results + wide - 1) / wide;
}

// The row of the matrix that is at a place of a panel; -1: padding.
int64_t row_at(const Packed& packed, int64_t panel, int place) {
    if (!packed.gated) {
        const int64_t row = panel * PANEL + place;
        return row < packed.rows ? row : -1;
    }
    const int64_t row = panel * LANES + place % LANES, half = packed.rows / 2;
    return row >= half ? -1 : place < LANES ? row : half + row;
}

template <class Stored, class Read>
void pack_rows(const Packed& packed, int threads, const Read& read) {
    parallel(threads, int(panels_of(packed)), [&](int panel) {
        Stored* to = reinterpret_cast<Stored*>(packed.data) + int64_t(panel) * packed.depth * PANEL;
        for (int place = 0; place < PANEL; place++) {
            const int64_t row = row_at(packed, panel, place);
            for (int64_t k = 0; k < packed.depth; k++)
                to[k * PANEL + place] = row < 0 ? Stored(0) : read(row, k);
        }
    });
}

void pack_scales(const Packed& packed, const float* scale) {
    float* to = reinterpret_cast<float*>(packed.scale);
    for (int64_t panel = 0; panel < panels_of(packed); panel++)
        for (int place = 0; place < PANEL; place++) {
            const int64_t row = row_at(packed, panel, place);
            to[panel * PANEL + place] = row < 0 ? 0.0f : scale[row];
        }
}

constexpr int64_t CHAIN = 256;  // products that are added one after the other: longer chains lose digits
constexpr int64_t AHEAD = 2048;  // bytes of a panel that are asked for before they are read

// sums += the products of depths [0, depth). Token m's number at depth k of a group of M tokens is x[k * M + m].
template <class Stored, int M, int P>
INLINE void multiply_chain(const Stored* panels, int64_t stride, int64_t depth, const float* x, Vec (&total)[P][M][2]) {
    Vec sums[P][M][2];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sums[p][m][0] = sums[p][m][1] = Vec{};
    for (int64_t k = 0; k < depth; k++) {
        Vec w[P][2];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
            const Stored* at = panels + p * stride + k * PANEL;
            __builtin_prefetch(at + AHEAD / sizeof(Stored));
            w[p][0] = load_wide(at), w[p][1] = load_wide(at + LANES);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const Vec xs = all(x[k * M + m]);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) {
                sums[p][m][0] += w[p][0] * xs;
                sums[p][m][1] += w[p][1] * xs;
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; p++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) total[p][m][0] += sums[p][m][0], total[p][m][1] += sums[p][m][1];
}

template <class Stored, int M, int P>
INLINE void multiply(const Stored* panels, int64_t depth, const float* x, Vec (&total)[P][M][2]) {
    for (int p = 0; p < P; p++)
        for (int m = 0; m < M; m++) total[p][m][0] = total[p][m][1] = Vec{};
    for (int64_t k = 0; k < depth; k += CHAIN)
        multiply_chain<Stored, M, P>(
            panels + k * PANEL, depth * PANEL, std::min(CHAIN, depth - k), x + k * M, total);
}

struct Work {
    const Packed& packed;
    const Linear& asked;
    float* wide;
    const float* x;  // the tokens, normed, group by group
    int64_t results;  // of a token
    bool half;        // of the result

    // LANES results of a token, from some place on.
    void finish(int64_t token, int64_t column, Vec value, Vec up) const {
        const Numbers bias{reinterpret_cast<const void*>(asked.bias), bool(asked.half)};
        const Numbers residual{reinterpret_cast<const void*>(asked.residual), bool(asked.half)};
        const int count = int(std::min<int64_t>(LANES, results - column));
        if (count <= 0) return;
        if (asked.bias)
            for (int lane = 0; lane < count; lane++) {
                value[lane] += bias.at(column + lane);
                if (packed.gated) up[lane] += bias.at(results + column + lane);
            }
        if (packed.gated) value = silu(value) * up;
        if (asked.activation == GELU) value = gelu(value);
        const int64_t place = token * results + column;
        float* floats = wide ? wide : static_cast<float*>(reinterpret_cast<void*>(asked.out));
        if (!half && count == LANES) {
            if (residual.start) value += load(static_cast<const float*>(residual.start) + place);
            store(floats + place, value);
            return;
        }
        const Results to{floats, half};
        for (int lane = 0; lane < count; lane++)
            to.put(place + lane, value[lane] + (residual.start ? residual.at(place + lane) : 0.0f));
    }

    template <class Stored, int M, int P>
    void panels(int64_t first, const float* from, int64_t token) const {
        Vec sums[P][M][2];
        multiply<Stored, M, P>(
            reinterpret_cast<const Stored*>(packed.data) + first * packed.depth * PANEL, packed.depth, from, sums);
        const float* scale = reinterpret_cast<const float*>(packed.scale);
        for (int p = 0; p < P; p++)
            for (int m = 0; m < M; m++) {
                Vec low = sums[p][m][0], high = sums[p][m][1];
                if (scale) {
                    low *= load(scale + (first + p) * PANEL);
                    high *= load(scale + (first + p) * PANEL + LANES);
                }
                if (packed.gated) {
                    finish(token + m, (first + p) * LANES, low, high);
                } else {
                    finish(token + m, (first + p) * PANEL, low, low);
                    finish(token + m, (first + p) * PANEL + LANES, high, high);
                }
            }
    }

    // `count` panels from `first` on, of a group of so many tokens.
    template <class Stored, int M = MOST>
    void group(int tokens, int64_t first, int count, const float* from, int64_t token) const {
        if constexpr (M > 1) {
            if (tokens < M) return group<Stored, M - 1>(tokens, first, count, from, token);
        }
        if constexpr (M <= FEW) {
            if (count == 2) return panels<Stored, M, 2>(first, from, token);
        }
        for (int p = 0; p < count; p++) panels<Stored, M, 1>(first + p, from, token);
    }
};

// Tokens are laid out in groups that are as equal as can be, none larger than MOST.
struct Groups {
    int64_t tokens, count;

    explicit Groups(int64_t tokens) : tokens(tokens), count((tokens + MOST - 1) / MOST) {}
    int64_t start(int64_t group) const { return group * tokens / count; }
};

float mean_of(const float* x, int64_t size, bool squares) {
    double sum = 0;
    for (int64_t k = 0; k < size; k += BLOCK) {
        float part = 0;
        for (int64_t i = k; i < std::min(k + BLOCK, size); i++) part += squares ? x[i] * x[i] : x[i];
        sum += part;
    }
    return float(sum / double(size));
}

// One token, normed: the equations of reference.rms_norm and layer_norm, rounded where they round.
void norm_token(const Linear& asked, int64_t depth, int64_t token, float* row) {
    const bool half = asked.half;
    const Numbers x{reinterpret_cast<const void*>(asked.x), half};
    if (half)
        for (int64_t k = 0; k < depth; k++) row[k] = x.at(token * depth + k);
    else
        memcpy(row, static_cast<const float*>(x.start) + token * depth, sizeof(float) * depth);
    if (asked.norm == NO_NORM) return;
    double eps;
    memcpy(&eps, &asked.eps_bits, sizeof eps);
    if (asked.norm == LAYER_NORM) {
        const float mean = mean_of(row, depth, false);
        for (int64_t k = 0; k < depth; k++) row[k] -= mean;
    }
    const float factor = 1.0f / std::sqrt(mean_of(row, depth, true) + float(eps));
    const Numbers weight{reinterpret_cast<const void*>(asked.norm_weight), half};
    const Numbers bias{reinterpret_cast<const void*>(asked.norm_bias), half};
    if (!half && weight.start && !bias.start) {
        const float* gain = static_cast<const float*>(weight.start);
        for (int64_t k = 0; k < depth; k++) row[k] = row[k] * factor * gain[k];
        return;
    }
    for (int64_t k = 0; k < depth; k++) {
        float value = row[k] * factor;
        if (half && asked.norm == RMS_NORM) value = rounded(value);
        if (weight.start) value *= weight.at(k);
        if (bias.start) value += bias.at(k);
        row[k] = half ? rounded(value) : value;
    }
}

constexpr int64_t STRETCH = 8;  // groups of a chunk: many tokens are shared out too

template <class Stored>
void run(const Work& work, const Groups& groups) {
    const int64_t panels = panels_of(work.packed), depth = work.packed.depth;
    const int64_t each = groups.tokens <= FEW ? 2 : 1;  // panels of a chunk
    const int64_t stretches = (groups.count + STRETCH - 1) / STRETCH;
    parallel(int(work.asked.threads), int((panels + each - 1) / each * stretches), [&](int chunk) {
        const int64_t first = chunk / stretches * each, stretch = chunk % stretches;
        const int taken = int(std::min(each, panels - first));
        for (int64_t g = stretch * STRETCH; g < std::min((stretch + 1) * STRETCH, groups.count); g++) {
            const int64_t token = groups.start(g);
            work.group<Stored>(int(groups.start(g + 1) - token), first, taken, work.x + token * depth, token);
        }
    });
}

}  // namespace

void run_linear(const Linear& asked, float* wide) {
    const Packed& packed = *asked.packed;
    const int64_t depth = packed.depth;
    const Groups groups(asked.tokens);
    float* x = scratch(0, (asked.tokens + groups.count) * depth);
    parallel(int(asked.threads), int(groups.count), [&](int g) {
        const int64_t first = groups.start(g), size = groups.start(g + 1) - first;
        float *to = x + first * depth, *row = x + (asked.tokens + g) * depth;
        for (int64_t m = 0; m < size; m++) {
            norm_token(asked, depth, first + m, row);
            for (int64_t k = 0; k < depth; k++) to[k * size + m] = row[k];
        }
    });
    const int64_t results = packed.gated ? packed.rows / 2 : packed.rows;
    const Work work{packed, asked, wide, x, results, wide == nullptr && asked.half};
    if (packed.kind == INT8) run<int8_t>(work, groups);
    else if (packed.kind == BFLOAT16) run<BFloat16>(work, groups);
    else run<float>(work, groups);
}

extern "C" {

// Rows of a panel, and so how much memory weights take: rows are padded to whole panels.
int64_t diagonal_panel() { return PANEL; }

// Whether every row of a float32 matrix is multiples, up to 127, of a scale of its own; the scales are then found.
int64_t diagonal_find_scales(const float* matrix, int64_t rows, int64_t depth, float* scale, int64_t threads) {
    std::atomic<bool> exact{true};
    parallel(int(threads), int((rows + BLOCK - 1) / BLOCK), [&](int chunk) {
        for (int64_t n = int64_t(chunk) * BLOCK; n < std::min((chunk + 1) * int64_t(BLOCK), rows); n++) {
            if (!exact.load(std::memory_order_relaxed)) return;
            const float* row = matrix + n * depth;
            float most = 0;
            for (int64_t k = 0; k < depth; k++) most = std::max(most, std::fabs(row[k]));
            scale[n] = most / 127.0f;
            int wrong = 0;
            for (int64_t k = 0; k < depth; k++) {
                const float steps = most > 0 ? std::nearbyint(row[k] / scale[n]) : 0.0f;
                wrong |= !(steps * scale[n] == row[k]);
            }
            if (wrong) exact.store(false, std::memory_order_relaxed);
        }
    });
    return exact.load();
}

// Lays a matrix out in panels. `matrix` is of the kind that is stored, but for float32 with scales, stored as int8.
void diagonal_pack(const Packed* packed, const void* matrix, const float* scale, int64_t is_float, int64_t threads) {
    const int64_t depth = packed->depth;
    if (scale) pack_scales(*packed, scale);
    if (packed->kind == INT8 && is_float) {
        const float* from = static_cast<const float*>(matrix);
        pack_rows<int8_t>(*packed, int(threads), [&](int64_t row, int64_t k) {
            return scale[row] > 0 ? int8_t(std::nearbyint(from[row * depth + k] / scale[row])) : int8_t(0);
        });
    } else if (packed->kind == INT8) {
        const int8_t* from = static_cast<const int8_t*>(matrix);
        pack_rows<int8_t>(*packed, int(threads), [&](int64_t row, int64_t k) { return from[row * depth + k]; });
    } else if (packed->kind == BFLOAT16) {
        const BFloat16* from = static_cast<const BFloat16*>(matrix);
        pack_rows<BFloat16>(*packed, int(threads), [&](int64_t row, int64_t k) { return from[row * depth + k]; });
    } else {
        const float* from = static_cast<const float*>(matrix);
        pack_rows<float>(*packed, int(threads), [&](int64_t row, int64_t k) { return from[row * depth + k]; });
    }
}

void diagonal_linear(const void* asked) { run_linear(*static_cast<const Linear*>(asked), nullptr); }

}  // extern "C"
