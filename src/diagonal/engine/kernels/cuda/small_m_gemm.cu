// A small-M GEMM of a decode step, with what stands before and after it:
//
//     out = f(norm(x) W^T + bias) [+ out]
//
// Such a GEMM only reads weights, and is over before the memory runs at full speed. So everything that is not reading has to be
// short, or to happen while weights are in flight:
//   - A thread block has tiles of 8 * TILES rows of W in their whole depth K, which its warps share. A warp's part of W and of x
//     are mma fragments (m16n8k16), loaded straight from memory into registers: the order of columns within a dot product is
//     free, so a lane takes eight neighbours at a time.
//   - Weights of the first tile are loaded before the kernel waits for the one before it (programmatic dependent launch), those
//     of the next tile as soon as those of this one are multiplied.
//   - Every thread block computes the norm for itself, and nothing waits for it: tokens are multiplied with the gain alone, and
//     the sums with the scale of their token. For a layer norm the gain and the shift are two more rows beside tokens:
//     norm(x) W^T = scale (x gain W^T - mean gain W^T) + shift W^T.
//
// Set when it is compiled: K, which is 32 * WARPS * DEPTH; WARPS; TILES; HALVES, of 8 tokens each; NORM (0, 1: RMS, 2: layer)
// with GAIN, for which there are registers before tokens come (SOON), or later, and SHIFT; BIAS; ADD; and ACT:
//   0  none
//   1  silu of the first half of the rows times the second
//   2  gelu, its tanh form
//   3  none, but the rows are heads of queries, keys and values, HEAD wide: queries and keys are rotated (ROPE), keys and values
//      go to their slots of the cache, in the row of their sample (cache_rows, or one after the other); `rope_sample` and
//      `slots_sample` lie between the numbers of one sample and those of the next, 0 where all share them; attention that comes next may be launched early (LAUNCH_NEXT)

#include "bf16.cuh"

constexpr int THREADS = 32 * WARPS, SPAN = K / WARPS, DEPTH = SPAN / 32, TOKENS = 8 * HALVES;
constexpr bool PAIRED = ACT == 1 || ACT == 3;  // an output needs two rows: one of a tile's first half, one of the other
constexpr int TILE_ROWS = 8 * TILES, PAIR = TILE_ROWS / 2, COLUMNS = ACT == 1 ? PAIR : TILE_ROWS, LINE = TILE_ROWS + 4;
constexpr int OUTPUTS = TOKENS * COLUMNS, A_HEAD = ACT == 3 ? HEAD / TILE_ROWS : 1;  // tiles of it
constexpr int FREE = HALVES == 1 ? TOKENS : TOKENS - 2;  // the row of a layer norm's gain, after which comes that of its shift
constexpr int HELD = NORM == 2 ? 2 : HALVES, LINES = NORM == 2 && HALVES == 1 ? TOKENS + 2 : TOKENS;
constexpr bool ROLLING = DEPTH <= 4;  // weights are loaded one by one: takes registers
constexpr int THREADS_EACH = THREADS >= 2 * OUTPUTS ? 2 : 1;  // threads that reduce one output
static_assert(DEPTH * 32 * WARPS == K && WARPS % THREADS_EACH == 0 && OUTPUTS <= THREADS, "");
static_assert(ACT != 3 || (A_HEAD * TILE_ROWS == HEAD && !ADD), "");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const bf16_t* x, const bf16_t* __restrict__ w, const bf16_t* __restrict__ gain, const bf16_t* __restrict__ shift,
        const bf16_t* __restrict__ bias, bf16_t* out, int tokens, int rows, int tiles, float eps, const float* cosines,
        const float* sines, const long long* slots, const long long* cache_rows, bf16_t* keys, bf16_t* values, int inputs,
        int length, int heads, int kv_heads, int rope_sample, int slots_sample) {
  extern __shared__ float partials[];  // [2][WARPS][LINES][LINE]
  // The next kernel may begin as soon as it finds room. Not so attention, which comes after heads, if it has many small
  // thread blocks: they would crowd on the multiprocessors that are free first.
  if (ACT != 3 || LAUNCH_NEXT) launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = warp * SPAN + lane % 4 * 8;

  uint4 weight[TILES][DEPTH];
  auto load_weights = [&](int tile, int n, int i) {
    int row = tile * COLUMNS + n * 8 + lane / 4;
    if (PAIRED) {
      const int own = n * 8 + lane / 4, first = ACT == 1 ? tile * PAIR : tile / A_HEAD * HEAD + tile % A_HEAD * PAIR;
      row = first + (own < PAIR ? own : own - PAIR + (ACT == 1 ? rows / 2 : HEAD / 2));
    }
    weight[n][i] = load_once(w + (size_t)min(row, rows - 1) * K + column + 32 * i);
  };
  auto load_tile = [&](int tile) {
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
#pragma unroll
      for (int n = 0; n < TILES; n++) load_weights(tile, n, i);
  };
  load_tile(blockIdx.x);
#if NORM
  const int extra = NORM == 2 ? 8 + lane / 4 - FREE : -1;  // 0: the row of the gain, 1: of the shift
  uint4 gains[DEPTH], held[DEPTH][HELD] = {};
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    const int at = column + 32 * i;
    if (GAIN && SOON) gains[i] = *(const uint4*)(gain + at);
    if (extra == 0) held[i][HELD - 1] = GAIN ? *(const uint4*)(gain + at) : make_uint4(ONES, ONES, ONES, ONES);
    if (SHIFT && extra == 1) held[i][HELD - 1] = *(const uint4*)(shift + at);
  }
#endif
  wait_for_previous_kernel();

  const bf16_t* from[HALVES];  // tokens beyond the last are read as the last, and nobody looks at their outputs
#pragma unroll
  for (int h = 0; h < HALVES; h++) from[h] = x + (size_t)min(h * 8 + lane / 4, tokens - 1) * K + column;

#if NORM
  __shared__ float squares_of[WARPS][TOKENS], means_of[NORM == 2 ? WARPS : 1][TOKENS];
  float squares[HALVES] = {}, means[HALVES] = {}, scale = 0.f, mean = 0.f;
#pragma unroll
  for (int i = 0; i < DEPTH; i++)
#pragma unroll
    for (int h = 0; h < HALVES; h++)
      if (h == 0 || extra < 0) held[i][h] = load_written(from[h] + 32 * i);
#pragma unroll
  for (int i = 0; i < DEPTH; i++)
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        pair_t& v = ((pair_t*)&held[i][h])[e];
        make_opaque(v);  // or the compiler would keep what it unpacked, in twice the registers
        squares[h] += low(v) * low(v) + high(v) * high(v);
        if (NORM == 2) means[h] += low(v) + high(v);
        const pair_t by = !GAIN ? 0 : SOON ? ((const pair_t*)&gains[i])[e] : *(const pair_t*)(gain + column + 32 * i + 2 * e);
        if (GAIN && (h == 0 || extra < 0)) v = mul_pair(v, by);
      }
#endif

  const int output = threadIdx.x / THREADS_EACH, lane_part = threadIdx.x % THREADS_EACH, token = output / COLUMNS;
  const int own = output % COLUMNS, first = PAIRED ? own % PAIR : own;
  const int width = ACT == 1 ? rows / 2 : rows;
  int buffer = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
    const int to = tile * COLUMNS + own;
    const bool stores = output < OUTPUTS && token < tokens && to < width && lane_part == 0;
    bf16_t* at = out + (size_t)token * width + to;
    float add = 0.f, add_up = 0.f;
    if (BIAS && ACT != 3 && stores) add = low(bias[to]), add_up = ACT == 1 ? low(bias[to + width]) : 0.f;
    if (ADD && stores) add += low(*at);
#if ACT == 3
    const int head = tile / A_HEAD, which = head < heads ? 0 : head < heads + kv_heads ? 1 : 2;  // q, k or v
    const int place = tile % A_HEAD * PAIR + first + (own < PAIR ? 0 : HEAD / 2), input = token % inputs;
    float cosine = 1.f, sine = 0.f;
    const int sample = token / inputs, angle = sample * rope_sample + input * HEAD + place;
    if (ROPE && stores && which < 2) cosine = cosines[angle], sine = sines[angle];
    if (BIAS && stores) {
      const bf16_t* pair = bias + head * HEAD + tile % A_HEAD * PAIR + first;
      add = low(pair[0]), add_up = low(pair[HEAD / 2]);
    }
    if (stores && which == 0) at = out + ((size_t)(sample * heads + head) * inputs + input) * HEAD + place;
    if (stores && which > 0) {
      const size_t cache_row = cache_rows ? cache_rows[sample] : sample;
      const size_t line = (cache_row * kv_heads + head - heads - (which - 1) * kv_heads) * length;
      at = (which == 1 ? keys : values) + (line + slots[sample * slots_sample + input]) * HEAD + place;
    }
#endif

    float sum[TILES][4] = {};
    const bool more = tile + gridDim.x < tiles;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
      uint4 read[2] = {};
#pragma unroll
#if NORM
      for (int h = 0; h < HELD; h++) read[h] = held[i][h];
#else
      for (int h = 0; h < HALVES; h++) read[h] = load_written(from[h] + 32 * i);
#endif
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const uint4 a = read[0], b = read[1], c = weight[n][i];
        mma(sum[n], a.x, b.x, a.y, b.y, c.x, c.y);
        mma(sum[n], a.z, b.z, a.w, b.w, c.z, c.w);
        if (ROLLING && more) load_weights(tile + gridDim.x, n, i);  // memory is never idle
      }
    }
    if (!ROLLING && more) load_tile(tile + gridDim.x);

    float(*sums_of)[LINES][LINE] = (float(*)[LINES][LINE])(partials + buffer * WARPS * LINES * LINE);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int h = 0; h < HELD; h++)
        if (h * 8 + lane / 4 < LINES)
          *(float2*)&sums_of[warp][h * 8 + lane / 4][n * 8 + lane % 4 * 2] = make_float2(sum[n][h * 2], sum[n][h * 2 + 1]);
#if NORM
    auto of_lanes = [&](float& sum, float* shared) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0) *shared = sum;
    };
    if (tile == blockIdx.x)
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        of_lanes(squares[h], &squares_of[warp][h * 8 + lane / 4]);
        if (NORM == 2) of_lanes(means[h], &means_of[warp][h * 8 + lane / 4]);
      }
#endif
    __syncthreads();  // once a tile: the next one has the other buffer
    if (output >= OUTPUTS) continue;
#if NORM
    if (tile == blockIdx.x) {
#pragma unroll
      for (int k = 0; k < WARPS; k++) scale += squares_of[k][token], mean += NORM == 2 ? means_of[k][token] : 0.f;
      mean /= K;
      scale = rsqrtf((NORM == 1 ? scale / K : fmaxf(scale / K - mean * mean, 0.f)) + eps);
    }
#endif
    auto reduce_warps = [&](int row, float& total, float& up) {
#pragma unroll
      for (int k = 0; k < WARPS / THREADS_EACH; k++) {
        const float* from_warp = sums_of[lane_part * (WARPS / THREADS_EACH) + k][row] + first;
        total += from_warp[0];
        if (PAIRED) up += from_warp[PAIR];
      }
      if (THREADS_EACH == 2) {
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        if (PAIRED) up += __shfl_xor_sync(0xffffffffu, up, 1);
      }
    };
    float total = 0.f, up = 0.f;
    reduce_warps(token, total, up);
#if NORM
    total *= scale, up *= scale;
#endif
#if NORM == 2
    float gained = 0.f, gained_up = 0.f, shifted = 0.f, shifted_up = 0.f;
    reduce_warps(FREE, gained, gained_up);
    if (SHIFT) reduce_warps(FREE + 1, shifted, shifted_up);
    total += shifted - scale * mean * gained, up += shifted_up - scale * mean * gained_up;
#endif
#if ACT == 1
    total = silu_times(total + add, up + add_up);
#elif ACT == 2
    total = gelu(total + add);
#elif ACT == 3
    total = round_bf16(total + add), up = round_bf16(up + add_up);
    total = own < PAIR ? total * cosine - up * sine : up * cosine + total * sine;
#else
    total += add;
#endif
    if (stores) *at = (bf16_t)pack_bf16(total, 0.f);
  }
}
