// Attention of a decode step: what each query sees of the cache, by visibility.py's rule.
//
// The queries of all heads that share a key head lie side by side in the lanes of a vector, so a key is read once for
// all of them, its numbers one by one, and maxima and sums over keys need no exchange between lanes. The slots of the
// cache are split (split-KV); results of the splits are put together at the end.

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "vectors.h"

namespace {

// Arguments come from Python as 64-bit numbers, in this order. Strides are in elements; rows of D lie together.
struct Attention {
    int64_t batch, heads, kv_heads, inputs, width, threads;
    int64_t q, half, q_batch, q_head, q_input;
    int64_t k, v, cache_half, cache_batch, cache_head;
    int64_t rows;  // of the cache, of each sample: int64, or 0 for b
    int64_t slots, slots_wide, slots_batch;
    int64_t needed, needed_wide, needed_batch, length;  // length: slots that `needed` tells of
    int64_t whole, whole_wide, whole_batch;
    int64_t extent, extent_wide, extent_batch;
    int64_t out;  // (B, S, H, D)
};

constexpr int VECTORS = 3;                  // of queries in a tile, at most
constexpr int TILE = VECTORS * LANES;
constexpr int SPLIT = 8;                    // blocks of the cache in a split
constexpr int32_t EVERYBODY = -(1 << 29);  // as in visibility.py: queries before it are padding
constexpr int WIDEST = 256;                 // numbers of a head
constexpr int ROWS = REGISTERS == 32 ? 12 : 5;  // queries whose sums of two vectors of values fit the registers

// Keys whose scores fit the registers; a block is a whole number of them.
constexpr int keys_at_once(int vectors) { return (REGISTERS == 32 ? 16 : 8) / (vectors == 1 ? 1 : 2); }


struct Tile {
    int64_t b, kv, first, count;  // queries first, first + 1, ... of the G * S that share a key head
    int vectors;

    int lanes() const { return vectors * LANES; }
};

struct Work {
    const Attention& asked;
    int64_t group, tiles, splits;
    const float* queries;  // (tile, D, TILE), scaled
    const int32_t* slots;  // (tile, TILE); before EVERYBODY: no query, or one that sees nothing
    float* partials;

    int64_t partial_size() const { return 2 * TILE + TILE * asked.width; }
    float* partial(int64_t tile, int64_t split) const { return partials + (tile * splits + split) * partial_size(); }

    Tile tile(int64_t number) const {
        const int64_t rows = group * asked.inputs, each = (rows + TILE - 1) / TILE;
        const int64_t first = number % each * TILE, count = std::min<int64_t>(TILE, rows - first);
        return {number / each / asked.kv_heads, number / each % asked.kv_heads, first, count,
                int((count + LANES - 1) / LANES)};
    }
    int64_t head(const Tile& tile, int64_t row) const { return tile.kv * group + (tile.first + row) / asked.inputs; }
    int64_t input(const Tile& tile, int64_t row) const { return (tile.first + row) % asked.inputs; }
};

Whole whole_numbers(int64_t start, int64_t wide) { return {reinterpret_cast<const void*>(start), bool(wide)}; }

// Queries of a tile with depth first, and their slots.
void gather(const Work& work, int64_t number, float* queries, int32_t* slots) {
    const Attention& asked = work.asked;
    const Tile tile = work.tile(number);
    const Whole given = whole_numbers(asked.slots, asked.slots_wide);
    const float scale = 1.0f / std::sqrt(float(asked.width));
    for (int64_t row = 0; row < TILE; row++) {
        const bool there = row < tile.count;
        slots[row] = there ? int32_t(given.at(tile.b * asked.slots_batch + work.input(tile, row))) : INT32_MIN;
        if (!there) {
            for (int64_t d = 0; d < asked.width; d++) queries[d * TILE + row] = 0;
            continue;
        }
        const int64_t place = tile.b * asked.q_batch + work.head(tile, row) * asked.q_head +
                              work.input(tile, row) * asked.q_input;
        const Numbers q{reinterpret_cast<const void*>(asked.q), bool(asked.half)};
        for (int64_t d = 0; d < asked.width; d++) queries[d * TILE + row] = q.at(place + d) * scale;
    }
}

// Scores (key, row) of M keys. The next keys and the values of these are asked for on the way: keys are read in an order
// that no processor foresees, several at once.
template <int V, int M>
INLINE void score_keys(const float* queries, const float* keys, const float* values, int64_t width, float* scores) {
    Vec sums[M][V];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[m][v] = Vec{};
    for (int64_t d = 0; d < width; d++) {
        __builtin_prefetch(keys + M * width + d * M);
        __builtin_prefetch(values + d * M);
        Vec q[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) q[v] = load(queries + d * TILE + v * LANES);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const Vec key = all(keys[m * width + d]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[m][v] += q[v] * key;
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) store(scores + m * TILE + v * LANES, sums[m][v]);
}

// Mixed values of M queries, `N` vectors wide: mixed = mixed * factor + weights (key, row) * values (key, d).
template <int M, int N>
INLINE void mix_rows(const float* weights, const float* values, int64_t width, int keys, const float* factor,
                     float* mixed) {
    Vec sums[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sums[m][n] = load(mixed + m * width + n * LANES) * factor[m];
    for (int key = 0; key < keys; key++) {
        Vec value[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) value[n] = load(values + key * width + n * LANES);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const Vec weight = all(weights[key * TILE + m]);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sums[m][n] += value[n] * weight;
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(mixed + m * width + n * LANES, sums[m][n]);
}

template <int M = ROWS>
void mix(int64_t rows, const float* weights, const float* values, int64_t width, int keys, const float* factor,
         float* mixed) {
    if constexpr (M > 1) {
        if (rows < M) return mix<M - 1>(rows, weights, values, width, keys, factor, mixed);
    }
    int64_t d = 0;
    for (; d + 2 * LANES <= width; d += 2 * LANES)
        mix_rows<M, 2>(weights, values + d, width, keys, factor, mixed + d);
    for (; d < width; d += LANES) mix_rows<M, 1>(weights, values + d, width, keys, factor, mixed + d);
}


// Scores of a block, whose values are asked for meanwhile.
template <int V>
void score_block(const float* queries, const float* keys, const float* values, int64_t width, int count, float* scores) {
    constexpr int M = keys_at_once(V);
    int key = 0;
    for (; key + M <= count; key += M)
        score_keys<V, M>(queries, keys + key * width, values + key * width, width, scores + key * TILE);
    for (; key < count; key++)
        score_keys<V, 1>(queries, keys + key * width, values + key * width, width, scores + key * TILE);
}

// Hides scores of keys that a query does not see; the greatest of the others, and what was known before.
template <int V>
void softmax_block(const int32_t* slots, const int32_t* needed, int count, float* scores, float* most, float* sum,
                   float* factor) {
    for (int v = 0; v < V; v++) {
        Ints slot;
        memcpy(&slot, slots + v * LANES, sizeof slot);
        Vec top = load(most + v * LANES);
        const Vec before = top;
        for (int key = 0; key < count; key++) {
            float* at = scores + key * TILE + v * LANES;
            Vec score = load(at);
            if (needed) {
                score = (needed[key] - Ints{}) <= slot ? score : all(UNSEEN);
                store(at, score);
            }
            top = greater(top, score);
        }
        const Vec change = exponential(before - top);
        Vec total = load(sum + v * LANES) * change;
        for (int key = 0; key < count; key++) {
            float* at = scores + key * TILE + v * LANES;
            const Vec score = load(at);
            Vec weight = exponential(score - top);
            weight = score > all(0.5f * UNSEEN) ? weight : Vec{};
            total += weight;
            store(at, weight);
        }
        store(most + v * LANES, top);
        store(sum + v * LANES, total);
        store(factor + v * LANES, change);
    }
}

struct Block {
    const float *keys, *values;
    const int32_t* needed;  // null: all queries see all of its slots
    int count;
};

template <int V>
void run_block(const Tile& tile, const Block& block, const float* queries, const int32_t* slots, int64_t width,
               float* found) {
    alignas(64) float scores[BLOCK * TILE];
    alignas(64) float factor[TILE];
    float *most = found, *sum = found + TILE, *mixed = found + 2 * TILE;
    score_block<V>(queries, block.keys, block.values, width, block.count, scores);
    softmax_block<V>(slots, block.needed, block.count, scores, most, sum, factor);
    for (int64_t row = 0; row < tile.count; row += ROWS)
        mix(std::min<int64_t>(ROWS, tile.count - row), scores + row, block.values, width, block.count, factor + row,
            mixed + row * width);
}

const float* widened(int64_t start, bool half, int64_t place, int64_t numbers, float* room) {
    if (!half) return reinterpret_cast<const float*>(start) + place;
    const BFloat16* from = reinterpret_cast<const BFloat16*>(start) + place;
    for (int64_t i = 0; i < numbers; i += LANES) store(room + i, load_wide(from + i));
    return room;
}

void run_split(const Work& work, int64_t number, int64_t split) {
    const Attention& asked = work.asked;
    const Tile tile = work.tile(number);
    const int64_t width = asked.width;
    const float* queries = work.queries + number * width * TILE;
    const int32_t* slots = work.slots + number * TILE;
    float* found = work.partial(number, split);
    std::fill(found, found + TILE, UNSEEN);
    std::fill(found + TILE, found + work.partial_size(), 0.0f);
    const int64_t cache_row = asked.rows ? reinterpret_cast<const int64_t*>(asked.rows)[tile.b] : tile.b;
    const Whole needs = whole_numbers(asked.needed, asked.needed_wide);
    const int64_t whole = whole_numbers(asked.whole, asked.whole_wide).at(tile.b * asked.whole_batch);
    const int64_t extent = whole_numbers(asked.extent, asked.extent_wide).at(tile.b * asked.extent_batch);
    const int32_t last = *std::max_element(slots, slots + TILE);
    alignas(64) float keys[BLOCK * WIDEST], values[BLOCK * WIDEST];
    for (int64_t block = split * SPLIT; block < std::min((split + 1) * SPLIT, extent); block++) {
        const int64_t first = block * BLOCK;
        const int count = int(std::min<int64_t>(BLOCK, asked.length - first));
        if (count <= 0) break;
        int32_t needed[BLOCK];
        int seen = count;  // slots up to the last that some query sees
        if (block >= whole) {
            for (int key = 0; key < count; key++)
                needed[key] = int32_t(needs.at(tile.b * asked.needed_batch + first + key));
            while (seen > 0 && needed[seen - 1] > last) seen--;
        }
        if (seen == 0 || last < EVERYBODY) continue;
        const int64_t place = cache_row * asked.cache_batch + tile.kv * asked.cache_head + first * width;
        const Block found_block{
            widened(asked.k, asked.cache_half, place, seen * width, keys),
            widened(asked.v, asked.cache_half, place, seen * width, values),
            block < whole ? nullptr : needed,
            seen,
        };
        if (tile.vectors == 1) run_block<1>(tile, found_block, queries, slots, width, found);
        else if (tile.vectors == 2) run_block<2>(tile, found_block, queries, slots, width, found);
        else run_block<3>(tile, found_block, queries, slots, width, found);
    }
}

// Puts the splits of one query together.
void join(const Work& work, int64_t number, int64_t row) {
    const Attention& asked = work.asked;
    const Tile tile = work.tile(number);
    const int64_t width = asked.width;
    float most = UNSEEN, sum = 0;
    for (int64_t split = 0; split < work.splits; split++) most = std::max(most, work.partial(number, split)[row]);
    alignas(64) float mixed[WIDEST];
    std::fill(mixed, mixed + width, 0.0f);
    const bool seeing = work.slots[number * TILE + row] >= EVERYBODY;
    for (int64_t split = 0; split < work.splits && seeing; split++) {
        const float* found = work.partial(number, split);
        const float factor = std::exp(found[row] - most), *part = found + 2 * TILE + row * width;
        if (found[TILE + row] == 0) continue;
        sum += factor * found[TILE + row];
        for (int64_t d = 0; d < width; d++) mixed[d] += factor * part[d];
    }
    const int64_t input = tile.b * asked.inputs + work.input(tile, row);
    const Results out{reinterpret_cast<void*>(asked.out), bool(asked.half)};
    const float factor = sum > 0 ? 1.0f / sum : 0.0f;
    for (int64_t d = 0; d < width; d++)
        out.put((input * asked.heads + work.head(tile, row)) * width + d, mixed[d] * factor);
}

}  // namespace

extern "C" void diagonal_attention(const void* given) {
    const Attention& asked = *static_cast<const Attention*>(given);
    const int64_t group = asked.heads / asked.kv_heads, each = (group * asked.inputs + TILE - 1) / TILE;
    const int64_t tiles = asked.batch * asked.kv_heads * each;
    const Whole extents = whole_numbers(asked.extent, asked.extent_wide);
    int64_t blocks = 0;
    for (int64_t b = 0; b < asked.batch; b++) blocks = std::max(blocks, extents.at(b * asked.extent_batch));
    const int64_t splits = std::max<int64_t>(1, (blocks + SPLIT - 1) / SPLIT);
    Work work{asked, group, tiles, splits, nullptr, nullptr, nullptr};
    const int64_t queries_size = tiles * asked.width * TILE, slots_size = tiles * TILE;
    float* room = scratch(0, queries_size + slots_size + tiles * splits * work.partial_size());
    int32_t* slots = reinterpret_cast<int32_t*>(room + queries_size);
    work.queries = room, work.slots = slots, work.partials = room + queries_size + slots_size;
    for (int64_t tile = 0; tile < tiles; tile++)
        gather(work, tile, room + tile * asked.width * TILE, slots + tile * TILE);
    parallel(int(asked.threads), int(tiles * splits), [&](int chunk) { run_split(work, chunk / splits, chunk % splits); });
    for (int64_t tile = 0; tile < tiles; tile++)
        for (int64_t row = 0; row < work.tile(tile).count; row++) join(work, tile, row);
}
