// Draws a token from each row of logits: twin of engine/sampler.py's `sample`, which says by which rule.
//
// Nothing is sorted for top-p: the winner of the race among all ids is drawn first. If the ids above it weigh too much,
// it is out, and so is every id that is less likely; the race goes on among those above it.

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "vectors.h"

namespace {

// Arguments come from Python as 64-bit numbers, in this order. Strides are in elements.
struct Sampling {
    int64_t logits, half, row;  // (R, V), float32 or bfloat16
    int64_t inputs, batch, threads;
    int64_t slots, slots_batch, positions, positions_batch;
    int64_t start;  // a number that is added to all positions, or 0
    int64_t seeds, low, high;  // all of them int64
    int64_t rows;  // of tokens, of each sample: int64, or 0 for b
    int64_t tokens, tokens_row;
    int64_t temperature_bits, top_k, top_p_bits, keep_crossing;  // top_k: 0 for none
};

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

struct Key {
    uint32_t low, high;

    Key(int64_t seed, int64_t position) {
        uint64_t z = uint64_t(seed) * 0x9E3779B97F4A7C15u + uint64_t(position) * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        low = uint32_t(z), high = uint32_t(z >> 32);
    }
};

INLINE Words mixed(Words h) {
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

// E of so many ids from `id` on: exponential numbers (engine/noise.py).
INLINE Vec noise(const Key& key, int64_t id) {
    Words ids;
    for (int lane = 0; lane < LANES; lane++) ids[lane] = uint32_t(id + lane);
    const Words hash = mixed(mixed(ids * 0x9E3779B1u ^ key.low) ^ key.high);
    Vec v = (__builtin_convertvector(hash, Vec) + 0.5f) * 0x1p-32f;
    v = v < all(0x1.fffffep-1f) ? v : all(0x1.fffffep-1f);
    const Vec series = v * (1.0f + v * (0.5f + v * (1.0f / 3.0f)));
    return v < all(0x1p-8f) ? series : -logarithm(1.0f - v);
}

double real(int64_t bits) {
    double made;
    memcpy(&made, &bits, sizeof made);
    return made;
}

// The valid ids of a row, filled up to whole vectors with ids that weigh nothing.
struct Row {
    int64_t count;                // of valid ids
    float *logits, *weights, *race;
    float top = -INFINITY;

    int64_t padded() const { return (count + LANES - 1) / LANES * LANES; }

    // Whether there is an id to draw: no logit is NaN, and one is a number.
    bool read(const Numbers& given, int64_t start) {
        bool whole = true;
        for (int64_t i = 0; i < count; i++) {
            logits[i] = given.at(start + i);
            whole &= logits[i] == logits[i];
        }
        for (int64_t i = count; i < padded(); i++) logits[i] = -INFINITY;
        for (int64_t i = 0; i < count; i++) top = std::max(top, logits[i]);
        return whole && top > -INFINITY;
    }

    void weigh(float temperature) {
        for (int64_t i = 0; i < padded(); i += LANES) {
            const Vec x = load(logits + i), weight = exponential((x - top) / temperature);
            store(weights + i, x > all(-INFINITY) ? weight : Vec{});
        }
    }

    // Leave the logits that fewer than k others exceed.
    void keep_greatest(int64_t k) {
        if (k >= count) return;
        std::copy(logits, logits + count, race);
        std::nth_element(race, race + k - 1, race + count, [](float a, float b) { return a > b; });
        const float least = race[k - 1];
        for (int64_t i = 0; i < count; i++) weights[i] = logits[i] < least ? 0 : weights[i];
    }

    void run(const Key& key, int64_t first) {
        for (int64_t i = 0; i < padded(); i += LANES) store(race + i, load(weights + i) / noise(key, first + i));
    }

    // The fastest of the ids with greater logits than `bound`, the first of equals; -1 for none.
    int64_t winner(float bound) const {
        Vec best = {};
        for (int64_t i = 0; i < padded(); i += LANES)
            best = greater(best, load(logits + i) > all(bound) ? load(race + i) : Vec{});
        float most = 0;
        for (int lane = 0; lane < LANES; lane++) most = std::max(most, best[lane]);
        for (int64_t i = 0; most > 0 && i < count; i++)
            if (race[i] == most && logits[i] > bound) return i;
        return -1;
    }

    // The weight of the ids with greater logits, or with `same` of those that are as great too.
    double mass(float logit, bool same) const {
        double sum = 0;
        for (int64_t first = 0; first < padded(); first += 16 * LANES) {
            Vec some = {};
            for (int64_t i = first; i < std::min(first + 16 * LANES, padded()); i += LANES) {
                const Vec x = load(logits + i);
                some += (same ? x >= all(logit) : x > all(logit)) ? load(weights + i) : Vec{};
            }
            for (int lane = 0; lane < LANES; lane++) sum += some[lane];
        }
        return sum;
    }
};

int64_t draw(const Sampling& asked, int64_t b, int64_t s) {
    const auto numbers = [](int64_t address) { return reinterpret_cast<const int64_t*>(address); };
    const int64_t slot = numbers(asked.slots)[b * asked.slots_batch + s];
    const int64_t low = numbers(asked.low)[slot], count = numbers(asked.high)[slot] - low;
    if (count <= 0) return -1;
    const int64_t room = (count + LANES - 1) / LANES * LANES;
    float* space = scratch(0, 3 * room);
    Row row{count, space, space + room, space + 2 * room};
    const int64_t start = (b * asked.inputs + s) * asked.row + low;
    if (!row.read({reinterpret_cast<const void*>(asked.logits), bool(asked.half)}, start)) return -1;
    const float temperature = float(real(asked.temperature_bits));
    if (temperature == 0) return low + (std::max_element(row.logits, row.logits + count) - row.logits);
    if (std::isinf(row.top)) return -1;
    row.weigh(temperature);
    if (asked.top_k) row.keep_greatest(asked.top_k);
    const int64_t start_at = asked.start ? *numbers(asked.start) : 0;
    const int64_t position = numbers(asked.positions)[b * asked.positions_batch + s] + start_at;
    row.run(Key(numbers(asked.seeds)[b], position), low);
    const double top_p = real(asked.top_p_bits);
    int64_t found = row.winner(-INFINITY);
    if (top_p < 1) {
        const double limit = top_p * row.mass(-INFINITY, true);
        while (row.logits[found] < row.top && row.mass(row.logits[found], !asked.keep_crossing) > limit)
            found = row.winner(row.logits[found]);
    }
    return low + found;
}

}  // namespace

extern "C" void diagonal_sample(const void* given) {
    const Sampling* asked = static_cast<const Sampling*>(given);
    parallel(int(asked->threads), int(asked->batch * asked->inputs), [&](int number) {
        const int64_t b = number / asked->inputs, s = number % asked->inputs;
        const int64_t row = asked->rows ? reinterpret_cast<const int64_t*>(asked->rows)[b] : b;
        const int64_t slot = reinterpret_cast<const int64_t*>(asked->slots)[b * asked->slots_batch + s];
        reinterpret_cast<int64_t*>(asked->tokens)[row * asked->tokens_row + slot] = draw(*asked, b, s);
    });
}
