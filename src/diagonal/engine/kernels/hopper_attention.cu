// Attention of a decoding step, or of a prompt: what attention.py's kernel does, for Hopper's tensor cores.
//
// A program has a tile of up to GROUPS blocks of 64 rows, one key head and one part of its keys. The rows of a block are
// neighbouring queries of all heads that share the key head: those of the first head, then those of the second. A warp fetches
// keys and values, KEYS of them in a round (TMA), and four warps for each block multiply (wgmma) and run the online softmax,
// each group at its own pace. A group asks for the mixture of a round and for the scores of the next one, whose exponentials
// it takes while the mixture is made.
//
// Queries come in the order of their slots, so those of a block see about the same: rounds of which they see nothing, behind
// them or not written yet, are passed over. What is left to do differs from block to block and from round to round. So all tiles
// have blocks from near and far, and parts take turns with rounds.
//
// Set when it is compiled: D, the width of heads, 64 or 128; SHARED, query heads that share a key head, at most 8; GROUPS, 1 to
// 3; KEYS, a multiple of 64; STAGES, rounds under way; SPLIT, whether the keys are in parts; CAUSAL, whether the queries are a
// prompt that fills the first slots: then nobody says who sees whom, tiles have neighbouring blocks, and those with many keys
// come first; PAIRED, whether two programs run on a multiprocessor: one block alone waits for each of its rounds, so that another
// has time; MORE and LESS, registers of threads that multiply, and of others, or 0 for as many as there are; for the
// instructions the names of their sums, SCORE_NAMES "%0, %1, ..." with SCORE_SUMS "+f"(s[0]), ... and SCORE_0, ... of what
// follows, and MIX_ the same.
//
// When it is launched: `tiles` of a problem; of these the first, which have one block more if not all have the same number, have
// `more` parts, the others `fewer`.

#include "hopper.cuh"
#include "numbers.cuh"

constexpr int HALF = 64, HALVES = D / HALF, ROWS = GROUPS * 64, MULTIPLYING = GROUPS * 128;
constexpr int THREADS = MULTIPLYING + (PAIRED ? 32 : 128);  // registers are given away by whole groups
constexpr int QUERIES = 64 / SHARED / 8 * 8;  // of a block
constexpr int BLOCK = 64, ROUND = KEYS / BLOCK;  // slots that `whole` and `extent` count; of these in a round
constexpr int Q_BYTES = ROWS * D * 2, KV_BYTES = KEYS * D * 2;
constexpr int NOWHERE = 0x7fffffff;
constexpr float FAR = 8.f;  // weights are below 2^8
constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ void score(float (&s)[KEYS / 2], u64 q, u64 k, int on) {  // s = q k^T [+ s]
  MULTIPLY(s, q, k, on, SCORE_WIDTH, SCORE_NAMES, SCORE_SUMS, SCORE_0, SCORE_1, SCORE_2);
}
__device__ __forceinline__ void mix(float (&s)[D / 2], const pair_t* p, u64 v) {  // s += p v
  MIX(s, p, v, MIX_WIDTH, MIX_NAMES, MIX_SUMS, MIX_0, MIX_1, MIX_2, MIX_3, MIX_4);
}

extern "C" __global__ void __launch_bounds__(THREADS, PAIRED ? 2 : 1)
attend(const __grid_constant__ Map q, const __grid_constant__ Map k, const __grid_constant__ Map v,
       const long long* slots, const int* needed, const long long* whole, const long long* extent, bf16_t* out, float* lse,
       float* sizes, int queries, int length, int kv_heads, int tiles, int more, int fewer, float scale) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned qs = address(memory), ks = qs + Q_BYTES, vs = ks + STAGES * KV_BYTES, ns = vs + STAGES * KV_BYTES;
  const unsigned q_full = ns + STAGES * KEYS * 4, k_full = q_full + 8, k_empty = k_full + 8 * STAGES;
  const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const int problem = blockIdx.y, blocks = (queries + QUERIES - 1) / QUERIES, level = (blocks - 1) / tiles;
  const int longer = blocks - level * tiles, behind = (int)blockIdx.x - longer * more;  // tiles with a block on the last level
  const int tile = CAUSAL ? gridDim.x - 1 - blockIdx.x : behind < 0 ? blockIdx.x / more : longer + behind / fewer;
  const int parts = CAUSAL || behind >= 0 ? fewer : more, part = CAUSAL ? 0 : (behind < 0 ? (int)blockIdx.x : behind) % parts;
  // Level by level tiles take blocks, forwards and backwards in turn, on the last level forwards.
  auto block_of = [&](int g) {
    return CAUSAL ? tile * GROUPS + g : g * tiles + ((level - g) % 2 ? tiles - 1 - tile : tile);
  };
  if (threadIdx.x == 0) {
    init(q_full, 1);
    for (int s = 0; s < STAGES; s++) {
      init(k_full + 8 * s, 1), init(k_empty + 8 * s, MULTIPLYING / 32);
      init(v_full + 8 * s, 1), init(v_empty + 8 * s, MULTIPLYING / 32);
    }
    barriers_made();
  }
  __syncthreads();

  // Rounds that all queries see wholly, then others. How many, and the keys and values of whole rounds, were written before
  // this step's first layer: they are read while the kernel before still runs. Of a prompt, whose queries see themselves and
  // those before them, each program has numbers of its own, and must wait.
  const int first = tile * GROUPS * QUERIES;  // query of a prompt's tile
  const int written = CAUSAL ? (min(first + GROUPS * QUERIES, queries) - 1) / BLOCK + 1 : (int)*extent;
  const int rounds = (written + ROUND - 1) / ROUND, plain = CAUSAL ? (first + 1) / KEYS : (int)*whole / ROUND;
  auto of_part = [&](int all) { return all > part ? (all - part + parts - 1) / parts : 0; };
  const int count = of_part(rounds), plain_count = of_part(plain);
  auto round_of = [&](int n) { return part + n * parts; };

  if (group == GROUPS) {
#if MORE
    fewer_registers<LESS>();
#endif
    if (threadIdx.x == MULTIPLYING) {
      auto fetch_round = [&](unsigned to, const Map* map, int round, unsigned barrier) {
        for (int b = 0; b < ROUND; b++) {
          // Behind the last block that is written lies anything: nobody sees it, but it might not be finite.
          const int block = min(round * ROUND + b, written - 1);
          for (int c = 0; c < HALVES; c++)
            fetch(to + c * KEYS * 128 + b * BLOCK * 128, map, c * HALF, problem * length + block * BLOCK, barrier,
                  USUAL);
        }
      };
      auto ask = [&](int n) {
        const int s = n % STAGES, parity = n / STAGES - 1 & 1;
        const int round = round_of(n), own = round * KEYS;
        if (n >= STAGES) await(k_empty + 8 * s, parity);
        const int bytes = CAUSAL || n < plain_count ? 0 : min(KEYS, length - own) * 4;  // of what says who sees the keys
        expect(k_full + 8 * s, KV_BYTES + bytes);
        if (bytes > 0) copy(ns + s * KEYS * 4, needed + own, bytes, k_full + 8 * s);
        fetch_round(ks + s * KV_BYTES, &k, round, k_full + 8 * s);
        if (n >= STAGES) await(v_empty + 8 * s, parity);
        expect(v_full + 8 * s, KV_BYTES);
        fetch_round(vs + s * KV_BYTES, &v, round, v_full + 8 * s);
      };
      const int ahead = CAUSAL ? 0 : min(STAGES, plain_count);
      ready(&q);
#pragma unroll 1
      for (int n = 0; n < ahead; n++) ask(n);
      await_kernel_before();
      expect(q_full, GROUPS * SHARED * QUERIES * D * 2);
      for (int c = 0; c < HALVES; c++)
        for (int g = 0; g < GROUPS; g++)
          fetch(qs + (g * HALVES + c) * 64 * 128, &q, c * HALF, block_of(g) * QUERIES, problem * SHARED, q_full, USUAL);
#pragma unroll 1
      for (int n = ahead; n < count; n++) ask(n);
    }
    return;
  }
  // The last slot that a row of the group has, -1 if it has none.
  int latest = -1;
  const int own_block = block_of(group);
  for (int i = lane; i < QUERIES; i += 32) {
    const int query = own_block * QUERIES + i;
    if (query < queries) latest = max(latest, CAUSAL ? query : (int)slots[query]);
  }
  latest = __reduce_max_sync(ALL, latest);
  await_kernel_before();

#if MORE
  more_registers<MORE>();
#endif
  // A thread has two rows, eight apart.
  int query[2], head[2], slot[2];
  bool there[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp * 16 + lane / 4 + 8 * h;
    query[h] = own_block * QUERIES + row % QUERIES, head[h] = row / QUERIES;
    there[h] = head[h] < SHARED && query[h] < queries;
    slot[h] = !there[h] ? -1 : CAUSAL ? query[h] : (int)slots[query[h]];
  }
  const float unseen = __int_as_float(0xff800000);  // -inf
  float top[2] = {-1e30f, -1e30f}, total[2] = {};  // finite: with nothing seen so far, weights are 0 and not NaN
  float mixed[D / 2] = {}, s[KEYS / 2];
  pair_t weights[KEYS / 4];

  auto ask_scores = [&](int n) {
    const int stage = n % STAGES;
    await(k_full + 8 * stage, n / STAGES & 1);
    before_products();
#pragma unroll
    for (int c = 0; c < HALVES; c++)
#pragma unroll
      for (int i = 0; i < HALF / 16; i++)
        score(s, place(qs + (group * HALVES + c) * 64 * 128) + 2 * i, place(ks + stage * KV_BYTES + c * KEYS * 128) + 2 * i,
              c > 0 || i > 0);
    asked_products();
  };
  auto ask_mixture = [&](int n) {
    const int stage = n % STAGES;
    await(v_full + 8 * stage, n / STAGES & 1);
    before_products();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
      mix(mixed, weights + i * 4, place(vs + stage * KV_BYTES + i * 16 * 128, KEYS * 128));
    asked_products();
  };
  float decay[2];
  auto soften = [&](int n) {  // scores become weights
    settled(s);
    if (n >= plain_count) {
      const int key = round_of(n) * KEYS, left = length - key;
      const int* least_of = (const int*)(memory + (ns - qs)) + n % STAGES * KEYS;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        const int own = 8 * j + lane % 4 * 2;
        const int2 least = CAUSAL      ? make_int2(key + own, key + own + 1)
                           : 8 * j < left ? *(const int2*)(least_of + own)
                                          : make_int2(NOWHERE, NOWHERE);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if (least.x > slot[h]) s[j * 4 + h * 2] = unseen;
          if (least.y > slot[h]) s[j * 4 + h * 2 + 1] = unseen;
        }
      }
    }
    if (lane == 0) arrive(k_empty + 8 * (n % STAGES));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float most = s[h * 2];
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) most = fmaxf(most, fmaxf(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
      // Weights are powers of two of what is above `top`, which need not be the greatest score: only where that is far above is
      // it taken, and what was mixed so far multiplied with a power of two. After the first round that is rare.
      const float peak = most * scale, new_top = peak > top[h] + FAR ? peak : top[h];
      decay[h] = power(top[h] - new_top);
      top[h] = new_top;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& one = s[j * 4 + h * 2 + e];
          one = power(fmaf(one, scale, -new_top));
          sum += one;
        }
      total[h] = total[h] * decay[h] + sum;
    }
  };
  auto hand_over = [&]() {  // weights to the tensor cores, who mix with what is rescaled
    if (__ballot_sync(ALL, decay[0] != 1.f || decay[1] != 1.f))
#pragma unroll
      for (int i = 0; i < D / 2; i++) mixed[i] *= decay[i % 4 / 2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) weights[j * 2 + h] = pack(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]);
  };

  auto sees = [&](int n) {  // any key of a round; with small heads a look takes longer than it saves
    if (latest < 0 || n < plain_count || (D == HALF && !CAUSAL)) return latest >= 0;
    const int key = round_of(n) * KEYS;
    if (CAUSAL) return key <= latest;
    await(k_full + 8 * (n % STAGES), n / STAGES & 1);
    int least = NOWHERE;
#pragma unroll
    for (int i = 0; i < KEYS; i += 32)
      if (i < length - key) least = min(least, ((const int*)(memory + (ns - qs)))[n % STAGES * KEYS + i + lane]);
    return __reduce_min_sync(ALL, least) <= latest;
  };
  auto pass = [&](int n) {
    const int stage = n % STAGES, parity = n / STAGES & 1;
    await(k_full + 8 * stage, parity);
    await(v_full + 8 * stage, parity);
    if (lane == 0) arrive(k_empty + 8 * stage), arrive(v_empty + 8 * stage);
  };
  auto finish = [&](int n) {  // the mixture of a round
    ask_mixture(n);
    await_products<0>();
    settled(mixed);
    if (lane == 0) arrive(v_empty + 8 * (n % STAGES));
  };

  await(q_full, 0);
  int open = -1;  // a round whose weights wait for their values
  bool now = count > 0 && sees(0), next = false;
#pragma unroll 1
  for (int n = 0; n < count; n++, now = next) {
    auto look_ahead = [&]() { next = n + 1 < count && sees(n + 1); };  // while the tensor cores are busy
    if (!now) {
      if (open >= 0) finish(open);
      open = -1;
      pass(n);
      look_ahead();
    } else if (open < 0) {
      ask_scores(n);
      look_ahead();
      await_products<0>();
      soften(n);
      hand_over();
      open = n;
    } else {
      ask_scores(n);
      ask_mixture(open);
      look_ahead();
      await_products<1>();  // the scores are there
      soften(n);
      settled(s);  // not later
      await_products<0>();
      settled(mixed);
      if (lane == 0) arrive(v_empty + 8 * (open % STAGES));
      hand_over();
      open = n;
    }
  }
  if (open >= 0) finish(open);

  if (D == HALF) call_next();  // merging is a third of the time where heads are small; with wider ones this was slower
  // Of eight columns each of four lanes has two; then it has eight of its own, so that it writes 16 bytes.
  auto turn = [&](pair_t& one, pair_t& other, int distance) {
    const pair_t got = __shfl_xor_sync(ALL, lane & distance ? one : other, distance);
    (lane & distance ? one : other) = got;
  };
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = total[h], size = 0.f;
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    const bool seen = sum > 0.f && slot[h] >= 0;  // a row of padding sees nothing
    float by = seen ? 1.f / sum : 0.f;
    if (SPLIT) {  // parts are of float16, over the greatest of their row: half the bytes, and more digits than the result has
#pragma unroll
      for (int j = 0; j < D / 8; j++) size = fmaxf(size, fmaxf(fabsf(mixed[j * 4 + h * 2]), fabsf(mixed[j * 4 + h * 2 + 1])));
      size = fmaxf(size, __shfl_xor_sync(ALL, size, 1));
      size = fmaxf(size, __shfl_xor_sync(ALL, size, 2)) * by;
      by = size > 0.f ? by / size : 0.f;
    }
    const int batches = gridDim.y / kv_heads, heads = kv_heads * SHARED;
    const size_t entry = ((size_t)(part * batches + problem / kv_heads) * queries + query[h]) * heads +
                         problem % kv_heads * SHARED + head[h];
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      pair_t v[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float lo = mixed[(j + e) * 4 + h * 2] * by, hi = mixed[(j + e) * 4 + h * 2 + 1] * by;
        v[e] = SPLIT ? pack_halves(lo, hi) : pack(lo, hi);
      }
      turn(v[0], v[1], 1), turn(v[2], v[3], 1);
      turn(v[0], v[2], 2), turn(v[1], v[3], 2);
      if (there[h]) *(uint4*)(out + entry * D + (j + lane % 4) * 8) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    if (SPLIT && there[h] && lane % 4 == 0) {
      lse[entry] = seen ? top[h] + __log2f(sum) : unseen;
      sizes[entry] = size;
      if (part == 0)  // parts that other tiles have
        for (int p = parts; p < more; p++) lse[entry + (size_t)p * batches * queries * heads] = unseen;
    }
  }
}
