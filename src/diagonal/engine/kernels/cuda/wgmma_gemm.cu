// A GEMM of a decode step on Hopper's tensor cores, with its epilogue:
//
//     out = f(x W^T + bias) [+ out]
//
// Such a GEMM is bound by the bandwidth that reads W, but has too many tokens for every thread block to hold them all. So
// tokens are read along with the weights, tile by tile, and a thread block has many rows of W, so that it reads more of them
// than of tokens. Where that would leave thread blocks without rows, two of them (a cluster) have the same rows, each in one
// half of the depth (split-K).
//   - One producer warp loads tiles of W by TMA, as many as shared memory holds ahead, and never waits for the kernel before
//     (programmatic dependent launch). Another loads tiles of x, as soon as that kernel has ended.
//   - Warpgroups of consumers multiply (wgmma).
//   - With split-K the two thread blocks exchange partial sums through distributed shared memory, one half each.
//
// The orientation, WEIGHTS_M, says which operand has the M rows of wgmma and which its N columns:
//   0  64 rows for tokens, of which there may be fewer, and all ROWS of W as columns: one warpgroup.
//   1  rows of W in tiles of 64, the last of which need not be full, and TOKENS as columns, any multiple of 8: nothing is
//      computed for tokens that are not there, which would cost power. What counts is that all thread blocks read about the
//      same part of W.
//
// Set when it is compiled: WEIGHTS_M; TOKENS, a multiple of 8 (WEIGHTS_M: of 8 * SPLIT_K), at most 64 (128); ROWS of W of a
// thread block, a multiple of 16 (of 8, or of 16 with silu), at most 256; GROUPS, warpgroups of consumers; M_TILES, tiles of 64
// rows of each; SPLIT_K, 1 or 2 thread blocks for the same rows; SPAN, the depth of a tile in units of 64 columns; W_STAGES and
// X_STAGES, tiles in flight; BIAS; ADD; ACT (0: none, 1: silu of the first half of the rows times the second, 2: gelu, its tanh
// form); and for the instruction WIDTH "N" and the names of its N / 2 accumulators: SUM_NAMES "%0, %1, ...", SUM_SUMS
// "+f"(s[0]), ..., and SUM_0, SUM_1, SUM_2 of the operands after them.

#include "hopper.cuh"
#include "bf16.cuh"

constexpr int DEEP = 64, SIDE = 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 64;
constexpr int LINE = DEEP * 2, W_UNIT = ROWS * LINE, X_UNIT = TOKENS * LINE;  // bytes of 64 columns
constexpr int W_BYTES = SPAN * W_UNIT, X_BYTES = SPAN * X_UNIT;
constexpr int HELD = (WEIGHTS_M ? TOKENS : ROWS) / 2, OWN = HELD / SPLIT_K;  // accumulators of a thread for an M tile; finished here
constexpr int EXCHANGED = SPLIT_K == 2 ? CONSUMERS * M_TILES * OWN * 4 : 0;  // bytes of partial sums from the peer
constexpr int OUTPUTS = ACT == 1 ? ROWS / 2 : ROWS;  // of a token, by all thread blocks with the same rows
// What a thread block finishes: M tiles of a warpgroup, and N columns.
constexpr int FINISHED = ACT == 1 ? 1 : M_TILES, MADE = WEIGHTS_M ? TOKENS / SPLIT_K : OUTPUTS / SPLIT_K;
static_assert(MADE % 8 == 0 && (ACT != 1 || SPLIT_K == 1), "");
// What wgmma reads behind the last of fewer than 64 rows is the operand that follows in shared memory.
static_assert(WEIGHTS_M ? X_STAGES * X_BYTES >= (SIDE - 8) * LINE : TOKENS % 8 == 0 && TOKENS <= SIDE, "");
static_assert(WEIGHTS_M ? OUTPUTS % 8 == 0 && OUTPUTS <= GROUPS * FINISHED * SIDE : W_STAGES * W_BYTES >= SIDE * LINE, "");
static_assert(WEIGHTS_M ? ACT != 1 || M_TILES == 2 : GROUPS == 1 && M_TILES == 1, "");

typedef float Sums[M_TILES][HELD];
typedef pair_t Residual[FINISHED][2][ADD ? MADE / 8 : 1];

__device__ __forceinline__ void multiply(float (&s)[HELD], u64 a, u64 b, int on) {  // s = a b^T [+ s]
  WGMMA_SS(s, a, b, on, WIDTH, SUM_NAMES, SUM_SUMS, SUM_0, SUM_1, SUM_2);
}

template <bool WEIGHTS_ARE_M>
struct Epilogue;

// Tokens are M rows: a thread's accumulators are of two tokens, eight apart, and of two outputs side by side.
template <>
struct Epilogue<false> {
  bf16_t* out;
  int tokens, width, token, column;
  __device__ __forceinline__ Epilogue(bf16_t* out, int tokens, int width, int first, int rank)
      : out(out), tokens(tokens), width(width), token(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        column(first + rank * MADE + threadIdx.x % 4 * 2) {}
  __device__ __forceinline__ bf16_t* at(int half, int j) const {
    return out + (size_t)(token + 8 * half) * width + column + 8 * j;
  }
  __device__ __forceinline__ void load(Residual& before) const {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < MADE / 8; j++)
        if (token + 8 * half < tokens && column + 8 * j < width) before[0][half][j] = *(const pair_t*)at(half, j);
  }
  __device__ __forceinline__ void store(const Sums& sum, const Residual& before, const bf16_t* __restrict__ bias) const {
#pragma unroll
    for (int j = 0; j < MADE / 8; j++) {
      const int own = column + 8 * j;
      pair_t add = 0, add_up = 0;
      if (BIAS && own < width) {
        add = *(const pair_t*)(bias + own);
        if (ACT == 1) add_up = *(const pair_t*)(bias + own + width);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float v[2] = {sum[0][j * 4 + half * 2], sum[0][j * 4 + half * 2 + 1]};
        if (BIAS) v[0] += low(add), v[1] += high(add);
        if (ACT == 1) {
          const float* up = &sum[0][(j * 4 + half * 2 + HELD / 2) % HELD];
          v[0] = silu_times(v[0], up[0] + (BIAS ? low(add_up) : 0.f));
          v[1] = silu_times(v[1], up[1] + (BIAS ? high(add_up) : 0.f));
        }
        if (ACT == 2) v[0] = gelu(v[0]), v[1] = gelu(v[1]);
        if (ADD) v[0] += low(before[0][half][j]), v[1] += high(before[0][half][j]);
        if (token + 8 * half < tokens && own < width) *(pair_t*)at(half, j) = pack_bf16(v[0], v[1]);
      }
    }
  }
};

// Rows of W are M rows: a thread's accumulators are of two outputs, eight apart, and of two tokens side by side; transposed, of a
// token and two outputs.
template <>
struct Epilogue<true> {
  bf16_t* out;
  int tokens, width, first, own_row, own_token, rows_left;
  __device__ __forceinline__ Epilogue(bf16_t* out, int tokens, int width, int first, int rank)
      : out(out), tokens(tokens), width(width), first(first),
        own_row(threadIdx.x / 128 * FINISHED * SIDE + threadIdx.x / 32 % 4 * 16),
        own_token(rank * MADE + threadIdx.x % 32 / 4), rows_left(min(OUTPUTS, width - first)) {}
  __device__ __forceinline__ bf16_t* at(int b, int half, int j) const {
    return out + (size_t)(own_token + 8 * j) * width + first + own_row + b * SIDE + half * 8 + threadIdx.x % 4 * 2;
  }
  __device__ __forceinline__ bool exists(int b, int half, int j) const {
    return own_token + 8 * j < tokens && own_row + b * SIDE + half * 8 + (int)threadIdx.x % 4 * 2 < rows_left;
  }
  __device__ __forceinline__ void load(Residual& before) const {
#pragma unroll
    for (int b = 0; b < FINISHED; b++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < MADE / 8; j++) before[b][half][j] = exists(b, half, j) ? *(const pair_t*)at(b, half, j) : 0;
  }
  __device__ __forceinline__ void store(const Sums& sum, const Residual& before, const bf16_t* __restrict__ bias) const {
#pragma unroll
    for (int b = 0; b < FINISHED; b++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = first + own_row + b * SIDE + half * 8 + threadIdx.x % 32 / 4;
        float add = 0.f, add_up = 0.f;
        if (BIAS && row < width) add = low(bias[row]), add_up = ACT == 1 ? low(bias[row + width]) : 0.f;
#pragma unroll
        for (int j = 0; j < MADE / 8; j++) {
          const pair_t old = ADD ? transpose_8x8(before[b][half][j]) : 0;
          float v[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            v[e] = sum[b][j * 4 + half * 2 + e] + add;
            if (ACT == 1) v[e] = silu_times(v[e], sum[M_TILES - 1][j * 4 + half * 2 + e] + add_up);
            if (ACT == 2) v[e] = gelu(v[e]);
            if (ADD) v[e] += e ? high(old) : low(old);
          }
          const pair_t made = transpose_8x8(pack_bf16(v[0], v[1]));
          if (exists(b, half, j)) *(pair_t*)at(b, half, j) = made;
        }
      }
  }
};

extern "C" __global__ void __cluster_dims__(SPLIT_K, 1, 1) __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap x, const bf16_t* __restrict__ bias, bf16_t* out,
     int tokens, int rows, int k_tiles) {
  extern __shared__ __align__(1024) char memory[];
  // The operand with M rows comes first: wgmma always reads 64 of them.
  const unsigned base = shared_address(memory);
  const unsigned ws = WEIGHTS_M ? base : base + X_STAGES * X_BYTES, xs = WEIGHTS_M ? base + W_STAGES * W_BYTES : base;
  const unsigned partial = base + W_STAGES * W_BYTES + X_STAGES * X_BYTES;  // sums that the peer sends
  const unsigned received = partial + EXCHANGED, w_full = received + 8, w_empty = w_full + 8 * W_STAGES;
  const unsigned x_full = w_empty + 8 * W_STAGES, x_empty = x_full + 8 * X_STAGES;
  const int rank = blockIdx.x % SPLIT_K, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = ACT == 1 ? rows / 2 : rows, first = blockIdx.x / SPLIT_K * OUTPUTS, begin = rank * k_tiles * SPAN;
  launch_dependents();
  if (threadIdx.x == 0) {
    for (int s = 0; s < W_STAGES; s++) mbarrier_init(w_full + 8 * s, 1), mbarrier_init(w_empty + 8 * s, CONSUMERS / 32);
    for (int s = 0; s < X_STAGES; s++) mbarrier_init(x_full + 8 * s, 1), mbarrier_init(x_empty + 8 * s, CONSUMERS / 32);
    mbarrier_init(received, 1);
    fence_mbarrier_init();
    if (SPLIT_K == 2) mbarrier_expect_tx(received, EXCHANGED);
  }
  if (SPLIT_K == 2)
    cluster_sync();
  else
    __syncthreads();

  if (warp == CONSUMERS / 32) {  // the producer of W
    if (lane == 0)
#pragma unroll 1
      for (int n = 0; n < k_tiles; n++) {
        const int s = n % W_STAGES;
        if (n >= W_STAGES) mbarrier_wait(w_empty + 8 * s, n / W_STAGES - 1 & 1);
        mbarrier_expect_tx(w_full + 8 * s, W_BYTES);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
          const unsigned to = ws + s * W_BYTES + i * W_UNIT;
          const int column = (begin + n * SPAN + i) * DEEP;
          tma_load(to, &w, column, first, w_full + 8 * s, ONCE);
          if (ACT == 1) tma_load(to + OUTPUTS * LINE, &w, column, first + width, w_full + 8 * s, ONCE);
        }
      }
    return;
  }
  if (warp == CONSUMERS / 32 + 1) {  // the producer of x
    if (lane == 0) {
      prefetch_tensor_map(&x);
      wait_for_previous_kernel();
#pragma unroll 1
      for (int n = 0; n < k_tiles; n++) {
        const int s = n % X_STAGES;
        if (n >= X_STAGES) mbarrier_wait(x_empty + 8 * s, n / X_STAGES - 1 & 1);
        mbarrier_expect_tx(x_full + 8 * s, X_BYTES);
#pragma unroll
        for (int i = 0; i < SPAN; i++)
          tma_load(xs + s * X_BYTES + i * X_UNIT, &x, (begin + n * SPAN + i) * DEEP, 0, x_full + 8 * s, AGAIN);
      }
    }
    return;
  }

  wait_for_previous_kernel();
  const Epilogue<(WEIGHTS_M != 0)> epilogue(out, tokens, width, first, rank);
  Residual before;
  if (ADD) epilogue.load(before);

  Sums sum;
#pragma unroll 1
  for (int n = 0; n < k_tiles; n++) {
    const int s = n % W_STAGES, t = n % X_STAGES;
    mbarrier_wait(w_full + 8 * s, n / W_STAGES & 1);
    mbarrier_wait(x_full + 8 * t, n / X_STAGES & 1);
    wgmma_fence();
#if WEIGHTS_M
    const int group = warp / 4;
#pragma unroll
    for (int i = 0; i < SPAN; i++)
#pragma unroll
      for (int k = 0; k < DEEP / 16; k++)
#pragma unroll
        for (int b = 0; b < M_TILES; b++) {
          const int row = ACT == 1 ? b * OUTPUTS + group * SIDE : (group * M_TILES + b) * SIDE;  // of gates, and of ups
          multiply(sum[b], matrix_descriptor(ws + s * W_BYTES + i * W_UNIT + row * LINE) + 2 * k,
                   matrix_descriptor(xs + t * X_BYTES + i * X_UNIT) + 2 * k, n > 0 || i > 0 || k > 0);
        }
#else
    // Rows behind the last token are of whatever lies there: they make sums that nobody stores.
    const u64 a = matrix_descriptor(xs + t * X_BYTES), b = matrix_descriptor(ws + s * W_BYTES);
#pragma unroll
    for (int i = 0; i < SPAN; i++)
#pragma unroll
      for (int k = 0; k < DEEP / 16; k++)
        multiply(sum[0], a + (i * X_UNIT >> 4) + 2 * k, b + (i * W_UNIT >> 4) + 2 * k, n > 0 || i > 0 || k > 0);
#endif
    wgmma_commit();
    wgmma_wait<1>();  // the tile before is done
    if (n > 0 && lane == 0)
      mbarrier_arrive(w_empty + 8 * ((n - 1) % W_STAGES)), mbarrier_arrive(x_empty + 8 * ((n - 1) % X_STAGES));
  }
  wgmma_wait<0>();
#pragma unroll
  for (int b = 0; b < M_TILES; b++) fence_accumulators(sum[b]);

  if (SPLIT_K == 2) {
    const unsigned to = map_to_peer(partial + threadIdx.x * 16, 1 - rank), barrier = map_to_peer(received, 1 - rank);
#pragma unroll
    for (int b = 0; b < M_TILES; b++)
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        const float* one = &sum[b][i];
        const float* other = &sum[b][(OWN + i) % HELD];
        st_async(to + (b * OWN + i) / 4 * CONSUMERS * 16, rank ? one[0] : other[0], rank ? one[1] : other[1],
                 rank ? one[2] : other[2], rank ? one[3] : other[3], barrier);
      }
    mbarrier_wait(received, 0);
#pragma unroll
    for (int b = 0; b < M_TILES; b++)
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        const float4 v =
            *(const float4*)(memory + (partial - base) + threadIdx.x * 16 + (b * OWN + i) / 4 * CONSUMERS * 16);
        const float got[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
          sum[b][i + e] = (rank ? sum[b][(OWN + i + e) % HELD] : sum[b][i + e]) + got[e];
      }
  }
  epilogue.store(sum, before, bias);
}
