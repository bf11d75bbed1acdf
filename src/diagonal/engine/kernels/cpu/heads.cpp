// Heads of queries, keys and values: norm, rotation (RoPE) and cache write, with the linear layer before them or after it.

#include <cmath>

#include "linear.h"
#include "pool.h"
#include "vectors.h"

namespace {

// Arguments come from Python as 64-bit numbers, in this order. Strides are in elements.
struct Heads {
    const Linear* layer;  // before them, or null
    int64_t batch, inputs, heads, kv_heads, width;
    int64_t qkv, half;  // what the linear layer gave, (B, S, C); q, qkv and the weights are bfloat16, else float32
    int64_t q_norm, k_norm, eps_bits;
    int64_t cos, sin, rope_batch;  // float32, a row for each input, of a batch or of all
    int64_t slots, wide, slots_batch;
    int64_t rows;  // of the cache, of each sample: int64, or 0 for b
    int64_t k_cache, v_cache, cache_half, cache_batch, cache_head;
    int64_t q;  // (B, S, H, D)
};

struct Row {
    float* x;
    int64_t width;

    // x / rms(x) * weight, rounded where reference.write_heads rounds.
    void norm(const Numbers& weight, double eps) const {
        float sum = 0;
        for (int64_t d = 0; d < width; d++) sum += x[d] * x[d];
        const float factor = 1.0f / std::sqrt(sum / float(width) + float(eps));
        for (int64_t d = 0; d < width; d++) {
            const float value = x[d] * factor;
            x[d] = weight.half ? rounded(rounded(value) * weight.at(d)) : value * weight.at(d);
        }
    }

    void rotate(const float* cos, const float* sin) const {
        const int64_t half = width / 2;
        for (int64_t d = 0; d < half; d++) {
            const float low = x[d], high = x[half + d];
            x[d] = low * cos[d] - high * sin[d];
            x[half + d] = high * cos[half + d] + low * sin[half + d];
        }
    }

    void put(void* start, bool half, int64_t place) const {
        const Results to{start, half};
        for (int64_t d = 0; d < width; d++) to.put(place + d, x[d]);
    }
};

void finish_input(const Heads& asked, int64_t b, int64_t s, float* channels) {
    const int64_t row = asked.rows ? reinterpret_cast<const int64_t*>(asked.rows)[b] : b;
    const Whole slots{reinterpret_cast<const void*>(asked.slots), bool(asked.wide)};
    const int64_t slot = slots.at(b * asked.slots_batch + s), turned = asked.heads + asked.kv_heads;
    const float* cos = reinterpret_cast<const float*>(asked.cos) + b * asked.rope_batch + s * asked.width;
    const float* sin = reinterpret_cast<const float*>(asked.sin) + b * asked.rope_batch + s * asked.width;
    double eps;
    memcpy(&eps, &asked.eps_bits, sizeof eps);
    for (int64_t h = 0; h < turned + asked.kv_heads; h++) {
        const Row head{channels + h * asked.width, asked.width};
        const int64_t norm = h < asked.heads ? asked.q_norm : asked.k_norm;
        if (asked.half)
            for (int64_t d = 0; d < asked.width; d++) head.x[d] = rounded(head.x[d]);
        if (h < turned && norm) head.norm({reinterpret_cast<const void*>(norm), bool(asked.half)}, eps);
        if (h < turned && asked.cos) head.rotate(cos, sin);
        if (h < asked.heads) {
            const int64_t input = b * asked.inputs + s;
            head.put(reinterpret_cast<void*>(asked.q), asked.half, (input * asked.heads + h) * asked.width);
            continue;
        }
        const int64_t kv = h < turned ? h - asked.heads : h - turned;
        const int64_t cache = h < turned ? asked.k_cache : asked.v_cache;
        const int64_t place = row * asked.cache_batch + kv * asked.cache_head + slot * asked.width;
        if (asked.half && !asked.cache_half)  // as the reference: rounded to the model's numbers, then widened
            for (int64_t d = 0; d < asked.width; d++) head.x[d] = rounded(head.x[d]);
        head.put(reinterpret_cast<void*>(cache), asked.cache_half, place);
    }
}

}  // namespace

extern "C" void diagonal_heads(const void* asked) {
    const Heads* heads = static_cast<const Heads*>(asked);
    const int64_t inputs = heads->batch * heads->inputs;
    const int64_t channels = (heads->heads + 2 * heads->kv_heads) * heads->width;
    float* wide = scratch(1, inputs * channels);
    if (heads->layer) {
        run_linear(*heads->layer, wide);
    } else {
        const Numbers given{reinterpret_cast<const void*>(heads->qkv), bool(heads->half)};
        for (int64_t i = 0; i < inputs * channels; i++) wide[i] = given.at(i);
    }
    for (int64_t b = 0; b < heads->batch; b++)
        for (int64_t s = 0; s < heads->inputs; s++)
            finish_input(*heads, b, s, wide + (b * heads->inputs + s) * channels);
}
