// Attention of a decode step (split-KV) or of a prefill, on Hopper's tensor cores: FlashAttention's online softmax with the
// visibility rule of a plan.
//
// A thread block has a tile of up to GROUPS row tiles of 64, one key head and one split of its keys. The rows of a row tile are
// neighbouring queries of all heads that share the key head: those of the first head, then those of the second. A producer warp
// loads KV tiles of KEYS keys and values (TMA). For each row tile a warpgroup multiplies (wgmma) and runs the online softmax, at
// its own pace: it issues P V of a KV tile and Q K^T of the next one, whose exponentials it takes while P V runs.
//
// Queries come in the order of their slots, so those of a row tile see about the same: KV tiles of which they see nothing, later
// ones or those not written yet, are skipped. The work that is left differs from row tile to row tile and from KV tile to KV
// tile. So all tiles have row tiles from near and far, and splits take KV tiles in turn.
//
// Set when it is compiled: D, the head dimension, 64 or 128; GROUP, query heads that share a key head, at most 8; GROUPS,
// warpgroups of consumers, 1 to 3; KEYS, a multiple of 64; STAGES, KV tiles in flight; SPLIT_KV, whether the keys are split;
// CAUSAL, for a prefill, whose queries fill the first slots: there is no visibility to read, tiles have neighbouring row tiles,
// and those with many keys come first; PAIRED, whether two thread blocks run on a multiprocessor: a single row tile waits for
// each of its KV tiles, so that another block has time; MORE_REGISTERS and FEWER_REGISTERS of consumers and producers, or 0 to
// leave them alone; for the instructions the names of their accumulators, QK_NAMES "%0, %1, ..." with QK_SUMS "+f"(s[0]), ... and
// QK_0, ... of the operands after them, and PV_ the same.
//
// When it is launched: `tiles` of a key head of a sample; of these the first, which have one row tile more if not all have the
// same number, have `more` splits, the others `fewer`. Samples share slots, needed ones, `whole` and `extent`, or each has its own:
// `..._sample` lies between those of one and of the next, 0 where they share them. The keys of a sample are in row cache_rows[sample]
// of the cache, or in row `sample` where there are none.

#include "hopper.cuh"
#include "bf16.cuh"

constexpr int HALF = 64, HALVES = D / HALF, ROWS = GROUPS * 64, CONSUMERS = GROUPS * 128;
constexpr int THREADS = CONSUMERS + (PAIRED ? 32 : 128);  // registers are reallocated by whole warpgroups
constexpr int QUERIES = 64 / GROUP / 8 * 8;  // of a row tile
constexpr int BLOCK = 64, TILE_BLOCKS = KEYS / BLOCK;  // slots that `whole` and `extent` count; of these in a KV tile
constexpr int Q_BYTES = ROWS * D * 2, KV_BYTES = KEYS * D * 2;
constexpr int NEVER = 0x7fffffff, EVERYBODY = -(1 << 29);  // slots count from anywhere between them
constexpr int PADDING = -NEVER - 1;  // the slot of a row that sees nothing, as all before EVERYBODY
constexpr float RESCALE_ABOVE = 8.f;  // weights are below 2^8
constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ void qk(float (&s)[KEYS / 2], u64 q, u64 k, int on) {  // s = q k^T [+ s]
  WGMMA_SS(s, q, k, on, QK_WIDTH, QK_NAMES, QK_SUMS, QK_0, QK_1, QK_2);
}
__device__ __forceinline__ void pv(float (&s)[D / 2], const pair_t* p, u64 v) {  // s += p v
  WGMMA_RS(s, p, v, PV_WIDTH, PV_NAMES, PV_SUMS, PV_0, PV_1, PV_2, PV_3, PV_4);
}

extern "C" __global__ void __launch_bounds__(THREADS, PAIRED ? 2 : 1)
attend(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
       const long long* slots, const int* needed, const long long* whole, const long long* extent,
       const long long* cache_rows, bf16_t* out, float* lse, float* scales, int queries, int length, int kv_heads, int tiles,
       int more, int fewer, int slots_sample, int needed_sample, int whole_sample, int extent_sample, float scale) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned qs = shared_address(memory), ks = qs + Q_BYTES, vs = ks + STAGES * KV_BYTES, ns = vs + STAGES * KV_BYTES;
  const unsigned q_full = ns + STAGES * KEYS * 4, k_full = q_full + 8, k_empty = k_full + 8 * STAGES;
  const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const int batch_head = blockIdx.y, sample = batch_head / kv_heads, blocks = (queries + QUERIES - 1) / QUERIES, level = (blocks - 1) / tiles;
  const int longer = blocks - level * tiles, behind = (int)blockIdx.x - longer * more;  // tiles with a row tile on the last level
  const int tile = CAUSAL ? gridDim.x - 1 - blockIdx.x : behind < 0 ? blockIdx.x / more : longer + behind / fewer;
  const int splits = CAUSAL || behind >= 0 ? fewer : more, split = CAUSAL ? 0 : (behind < 0 ? (int)blockIdx.x : behind) % splits;
  // Level by level tiles take row tiles, forwards and backwards alternately, on the last level forwards.
  auto row_tile_of = [&](int g) {
    return CAUSAL ? tile * GROUPS + g : g * tiles + ((level - g) % 2 ? tiles - 1 - tile : tile);
  };
  if (threadIdx.x == 0) {
    mbarrier_init(q_full, 1);
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(k_full + 8 * s, 1), mbarrier_init(k_empty + 8 * s, CONSUMERS / 32);
      mbarrier_init(v_full + 8 * s, 1), mbarrier_init(v_empty + 8 * s, CONSUMERS / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  // KV tiles that all queries see wholly, then others. How many, in which row, and the keys and values of the former, were written
  // before this step's first layer: they are loaded while the kernel before still runs. In a prefill, whose queries see themselves and those
  // before them, every tile has counts of its own, and must wait.
  const int first = tile * GROUPS * QUERIES;  // query of a prefill's tile
  const int written = CAUSAL ? (min(first + GROUPS * QUERIES, queries) - 1) / BLOCK + 1 : (int)extent[sample * extent_sample];
  const int kv_tiles = (written + TILE_BLOCKS - 1) / TILE_BLOCKS, unmasked = CAUSAL ? (first + 1) / KEYS : (int)whole[sample * whole_sample] / TILE_BLOCKS;
  auto of_split = [&](int all) { return all > split ? (all - split + splits - 1) / splits : 0; };
  const int count = of_split(kv_tiles), unmasked_count = of_split(unmasked);
  auto kv_tile_of = [&](int n) { return split + n * splits; };

  if (group == GROUPS) {
#if MORE_REGISTERS
    setmaxnreg_dec<FEWER_REGISTERS>();
#endif
    if (threadIdx.x == CONSUMERS) {
      const int cache_head = CAUSAL || !cache_rows ? batch_head : (int)cache_rows[sample] * kv_heads + batch_head % kv_heads;
      if (!CAUSAL) needed += (size_t)sample * needed_sample;
      auto load_kv_tile = [&](unsigned to, const TensorMap* map, int kv_tile, unsigned barrier) {
        for (int b = 0; b < TILE_BLOCKS; b++) {
          // Slots behind the last written block may hold anything: masked, but perhaps not finite.
          const int block = min(kv_tile * TILE_BLOCKS + b, written - 1);
          for (int c = 0; c < HALVES; c++)
            tma_load(to + c * KEYS * 128 + b * BLOCK * 128, map, c * HALF, cache_head * length + block * BLOCK, barrier,
                  USUAL);
        }
      };
      auto issue = [&](int n) {
        const int s = n % STAGES, parity = n / STAGES - 1 & 1;
        const int kv_tile = kv_tile_of(n), own = kv_tile * KEYS;
        if (n >= STAGES) mbarrier_wait(k_empty + 8 * s, parity);
        const int bytes = CAUSAL || n < unmasked_count ? 0 : min(KEYS, length - own) * 4;  // of the visibility of the keys
        mbarrier_expect_tx(k_full + 8 * s, KV_BYTES + bytes);
        if (bytes > 0) bulk_copy(ns + s * KEYS * 4, needed + own, bytes, k_full + 8 * s);
        load_kv_tile(ks + s * KV_BYTES, &k, kv_tile, k_full + 8 * s);
        if (n >= STAGES) mbarrier_wait(v_empty + 8 * s, parity);
        mbarrier_expect_tx(v_full + 8 * s, KV_BYTES);
        load_kv_tile(vs + s * KV_BYTES, &v, kv_tile, v_full + 8 * s);
      };
      const int ahead = CAUSAL ? 0 : min(STAGES, unmasked_count);
      prefetch_tensor_map(&q);
#pragma unroll 1
      for (int n = 0; n < ahead; n++) issue(n);
      wait_for_previous_kernel();
      mbarrier_expect_tx(q_full, GROUPS * GROUP * QUERIES * D * 2);
      for (int c = 0; c < HALVES; c++)
        for (int g = 0; g < GROUPS; g++)
          tma_load(qs + (g * HALVES + c) * 64 * 128, &q, c * HALF, row_tile_of(g) * QUERIES, batch_head * GROUP, q_full, USUAL);
#pragma unroll 1
      for (int n = ahead; n < count; n++) issue(n);
    }
    return;
  }
  // The last slot that a row of the group has, PADDING if it has none.
  int latest = PADDING;
  if (!CAUSAL) slots += sample * slots_sample;
  const int own_tile = row_tile_of(group);
  for (int i = lane; i < QUERIES; i += 32) {
    const int query = own_tile * QUERIES + i;
    if (query < queries) latest = max(latest, CAUSAL ? query : (int)slots[query]);
  }
  latest = __reduce_max_sync(ALL, latest);
  wait_for_previous_kernel();

#if MORE_REGISTERS
  setmaxnreg_inc<MORE_REGISTERS>();
#endif
  // A thread has two rows, eight apart.
  int query[2], head[2], slot[2];
  bool there[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp * 16 + lane / 4 + 8 * h;
    query[h] = own_tile * QUERIES + row % QUERIES, head[h] = row / QUERIES;
    there[h] = head[h] < GROUP && query[h] < queries;
    slot[h] = !there[h] ? PADDING : CAUSAL ? query[h] : (int)slots[query[h]];
  }
  const float masked = __int_as_float(0xff800000);  // -inf
  float row_max[2] = {-1e30f, -1e30f}, row_sum[2] = {};  // finite: with nothing seen so far, weights are 0 and not NaN
  float acc[D / 2] = {}, s[KEYS / 2];
  pair_t weights[KEYS / 4];

  auto issue_qk = [&](int n) {
    const int stage = n % STAGES;
    mbarrier_wait(k_full + 8 * stage, n / STAGES & 1);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < HALVES; c++)
#pragma unroll
      for (int i = 0; i < HALF / 16; i++)
        qk(s, matrix_descriptor(qs + (group * HALVES + c) * 64 * 128) + 2 * i, matrix_descriptor(ks + stage * KV_BYTES + c * KEYS * 128) + 2 * i,
              c > 0 || i > 0);
    wgmma_commit();
  };
  auto issue_pv = [&](int n) {
    const int stage = n % STAGES;
    mbarrier_wait(v_full + 8 * stage, n / STAGES & 1);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
      pv(acc, weights + i * 4, matrix_descriptor(vs + stage * KV_BYTES + i * 16 * 128, KEYS * 128));
    wgmma_commit();
  };
  float decay[2];
  auto softmax = [&](int n) {  // of scores, in place
    fence_accumulators(s);
    if (n >= unmasked_count) {
      const int key = kv_tile_of(n) * KEYS, left = length - key;
      const int* least_of = (const int*)(memory + (ns - qs)) + n % STAGES * KEYS;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        const int own = 8 * j + lane % 4 * 2;
        const int2 least = CAUSAL      ? make_int2(key + own, key + own + 1)
                           : 8 * j < left ? *(const int2*)(least_of + own)
                                          : make_int2(NEVER, NEVER);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if (least.x > slot[h]) s[j * 4 + h * 2] = masked;
          if (least.y > slot[h]) s[j * 4 + h * 2 + 1] = masked;
        }
      }
    }
    if (lane == 0) mbarrier_arrive(k_empty + 8 * (n % STAGES));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float most = s[h * 2];
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) most = fmaxf(most, fmaxf(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
      // Weights are 2^(score - row_max), where row_max need not be the greatest score: only a score far above replaces it, and
      // rescales the accumulators. After the first KV tile that is rare.
      const float peak = most * scale, new_max = peak > row_max[h] + RESCALE_ABOVE ? peak : row_max[h];
      decay[h] = exp2_approx(row_max[h] - new_max);
      row_max[h] = new_max;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& one = s[j * 4 + h * 2 + e];
          one = exp2_approx(fmaf(one, scale, -new_max));
          sum += one;
        }
      row_sum[h] = row_sum[h] * decay[h] + sum;
    }
  };
  auto rescale = [&]() {  // the accumulators, and pack the weights for P V
    if (__ballot_sync(ALL, decay[0] != 1.f || decay[1] != 1.f))
#pragma unroll
      for (int i = 0; i < D / 2; i++) acc[i] *= decay[i % 4 / 2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) weights[j * 2 + h] = pack_bf16(s[j * 4 + h * 2], s[j * 4 + h * 2 + 1]);
  };

  auto sees = [&](int n) {  // any key of a KV tile; with small heads looking takes longer than it saves
    if (latest < EVERYBODY || n < unmasked_count || (D == HALF && !CAUSAL)) return latest >= EVERYBODY;
    const int key = kv_tile_of(n) * KEYS;
    if (CAUSAL) return key <= latest;
    mbarrier_wait(k_full + 8 * (n % STAGES), n / STAGES & 1);
    int least = NEVER;
#pragma unroll
    for (int i = 0; i < KEYS; i += 32)
      if (i < length - key) least = min(least, ((const int*)(memory + (ns - qs)))[n % STAGES * KEYS + i + lane]);
    return __reduce_min_sync(ALL, least) <= latest;
  };
  auto skip = [&](int n) {
    const int stage = n % STAGES, parity = n / STAGES & 1;
    mbarrier_wait(k_full + 8 * stage, parity);
    mbarrier_wait(v_full + 8 * stage, parity);
    if (lane == 0) mbarrier_arrive(k_empty + 8 * stage), mbarrier_arrive(v_empty + 8 * stage);
  };
  auto finish = [&](int n) {  // P V of a KV tile
    issue_pv(n);
    wgmma_wait<0>();
    fence_accumulators(acc);
    if (lane == 0) mbarrier_arrive(v_empty + 8 * (n % STAGES));
  };

  mbarrier_wait(q_full, 0);
  int pending = -1;  // a KV tile whose weights wait for their values
  bool now = count > 0 && sees(0), next = false;
#pragma unroll 1
  for (int n = 0; n < count; n++, now = next) {
    auto peek = [&]() { next = n + 1 < count && sees(n + 1); };  // while the tensor cores are busy
    if (!now) {
      if (pending >= 0) finish(pending);
      pending = -1;
      skip(n);
      peek();
    } else if (pending < 0) {
      issue_qk(n);
      peek();
      wgmma_wait<0>();
      softmax(n);
      rescale();
      pending = n;
    } else {
      issue_qk(n);
      issue_pv(pending);
      peek();
      wgmma_wait<1>();  // the scores are there
      softmax(n);
      fence_accumulators(s);  // not later
      wgmma_wait<0>();
      fence_accumulators(acc);
      if (lane == 0) mbarrier_arrive(v_empty + 8 * (pending % STAGES));
      rescale();
      pending = n;
    }
  }
  if (pending >= 0) finish(pending);

  if (D == HALF) launch_dependents();  // the reduction is a third of the time where heads are small; with wider ones this was slower
  // Of eight columns each of four lanes has two; then it has eight of its own, so that it writes 16 bytes.
  auto exchange = [&](pair_t& one, pair_t& other, int distance) {
    const pair_t got = __shfl_xor_sync(ALL, lane & distance ? one : other, distance);
    (lane & distance ? one : other) = got;
  };
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = row_sum[h], size = 0.f;
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    const bool seen = sum > 0.f && slot[h] >= EVERYBODY;  // a row of padding sees nothing
    float by = seen ? 1.f / sum : 0.f;
    if (SPLIT_KV) {  // splits are float16 over the greatest of their row: half the bytes, and more digits than the result has
#pragma unroll
      for (int j = 0; j < D / 8; j++) size = fmaxf(size, fmaxf(fabsf(acc[j * 4 + h * 2]), fabsf(acc[j * 4 + h * 2 + 1])));
      size = fmaxf(size, __shfl_xor_sync(ALL, size, 1));
      size = fmaxf(size, __shfl_xor_sync(ALL, size, 2)) * by;
      by = size > 0.f ? by / size : 0.f;
    }
    const int batches = gridDim.y / kv_heads, heads = kv_heads * GROUP;
    const size_t entry = ((size_t)(split * batches + sample) * queries + query[h]) * heads +
                         batch_head % kv_heads * GROUP + head[h];
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      pair_t v[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float lo = acc[(j + e) * 4 + h * 2] * by, hi = acc[(j + e) * 4 + h * 2 + 1] * by;
        v[e] = SPLIT_KV ? pack_fp16(lo, hi) : pack_bf16(lo, hi);
      }
      exchange(v[0], v[1], 1), exchange(v[2], v[3], 1);
      exchange(v[0], v[2], 2), exchange(v[1], v[3], 2);
      if (there[h]) *(uint4*)(out + entry * D + (j + lane % 4) * 8) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    if (SPLIT_KV && there[h] && lane % 4 == 0) {
      lse[entry] = seen ? row_max[h] + __log2f(sum) : masked;
      scales[entry] = size;
      if (split == 0)  // splits that only other tiles have
        for (int p = splits; p < more; p++) lse[entry + (size_t)p * batches * queries * heads] = masked;
    }
  }
}
