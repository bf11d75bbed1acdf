// One product of a step with few tokens, with what stands before and after it:
//
//     out = f(norm(x) W^T + bias) [+ out]
//
// Such a product only reads weights, and is over before the memory runs at full speed. So everything that is not reading
// has to be short, or to happen while weights are under way:
//   - A program has tiles of 8 * TILES rows of W in their whole depth K, which its warps share. A warp's piece of W and of x
//     are fragments of the tensor cores (m16n8k16), read straight from memory into registers: the order of columns within a
//     product is free, so a lane takes eight neighbours at a time.
//   - Weights of the first tile are asked for before the kernel waits for the one before it (programmatic dependent
//     launch), those of the next tile as soon as those of this one are multiplied.
//   - Every program computes the norm for itself, and nothing waits for it: tokens are multiplied with the gain alone, and
//     sums with what their token's numbers come to. For a layer norm the gain and the shift are two more rows beside tokens:
//     norm(x) W^T = scale (x gain W^T - mean gain W^T) + shift W^T.
//
// Set when it is compiled: K, which is 32 * WARPS * DEPTH; WARPS; TILES; HALVES, of 8 tokens each; NORM (0, 1: RMS, 2: layer)
// with GAIN, for which there are registers before tokens come (SOON), or later, and SHIFT; BIAS; ADD; and ACT:
//   0  none
//   1  silu of the first half of the rows times the second
//   2  gelu, its tanh form
//   3  none, but the rows are heads of queries, keys and values, HEAD wide: queries and keys are turned by their position
//      (ROPE), keys and values go to their slots of the cache; attention that comes next is called early (CALL)

#include "numbers.cuh"

constexpr int THREADS = 32 * WARPS, SPAN = K / WARPS, DEPTH = SPAN / 32, TOKENS = 8 * HALVES;
constexpr bool PAIRED = ACT == 1 || ACT == 3;  // an output is made of two rows: one of a tile's first half, one of the other
constexpr int WIDE = 8 * TILES, PAIR = WIDE / 2, COLUMNS = ACT == 1 ? PAIR : WIDE, LINE = WIDE + 4;
constexpr int OUTPUTS = TOKENS * COLUMNS, A_HEAD = ACT == 3 ? HEAD / WIDE : 1;  // tiles of it
constexpr int FREE = HALVES == 1 ? TOKENS : TOKENS - 2;  // the row of a layer norm's gain, after which comes that of its shift
constexpr int HELD = NORM == 2 ? 2 : HALVES, LINES = NORM == 2 && HALVES == 1 ? TOKENS + 2 : TOKENS;
constexpr bool ROLLING = DEPTH <= 4;  // weights are asked for one by one: takes registers
constexpr int SHARES = THREADS >= 2 * OUTPUTS ? 2 : 1;  // threads that add up one output
static_assert(DEPTH * 32 * WARPS == K && WARPS % SHARES == 0 && OUTPUTS <= THREADS, "");
static_assert(ACT != 3 || (A_HEAD * WIDE == HEAD && !ADD), "");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
product(const bf16_t* x, const bf16_t* __restrict__ w, const bf16_t* __restrict__ gain, const bf16_t* __restrict__ shift,
        const bf16_t* __restrict__ bias, bf16_t* out, int tokens, int rows, int tiles, float eps, const float* cosines,
        const float* sines, const long long* slots, bf16_t* keys, bf16_t* values, int inputs, int length, int heads,
        int kv_heads) {
  extern __shared__ float parts[];  // [2][WARPS][LINES][LINE]
  // The next kernel may begin as soon as it finds room. Not so attention, which comes after heads, if it has many small
  // programs: they would crowd on the processors that are free first.
  if (ACT != 3 || CALL) call_next();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = warp * SPAN + lane % 4 * 8;

  uint4 weight[TILES][DEPTH];
  auto ask = [&](int tile, int n, int i) {
    int row = tile * COLUMNS + n * 8 + lane / 4;
    if (PAIRED) {
      const int own = n * 8 + lane / 4, first = ACT == 1 ? tile * PAIR : tile / A_HEAD * HEAD + tile % A_HEAD * PAIR;
      row = first + (own < PAIR ? own : own - PAIR + (ACT == 1 ? rows / 2 : HEAD / 2));
    }
    weight[n][i] = read_once(w + (size_t)min(row, rows - 1) * K + column + 32 * i);
  };
  auto ask_all = [&](int tile) {
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
#pragma unroll
      for (int n = 0; n < TILES; n++) ask(tile, n, i);
  };
  ask_all(blockIdx.x);
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
  await_kernel_before();

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
      if (h == 0 || extra < 0) held[i][h] = read_written(from[h] + 32 * i);
#pragma unroll
  for (int i = 0; i < DEPTH; i++)
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        pair_t& v = ((pair_t*)&held[i][h])[e];
        forget(v);  // or the compiler would keep what it unpacked, in twice the registers
        squares[h] += low(v) * low(v) + high(v) * high(v);
        if (NORM == 2) means[h] += low(v) + high(v);
        const pair_t by = !GAIN ? 0 : SOON ? ((const pair_t*)&gains[i])[e] : *(const pair_t*)(gain + column + 32 * i + 2 * e);
        if (GAIN && (h == 0 || extra < 0)) v = times(v, by);
      }
#endif

  const int output = threadIdx.x / SHARES, share = threadIdx.x % SHARES, token = output / COLUMNS;
  const int own = output % COLUMNS, first = PAIRED ? own % PAIR : own;
  const int width = ACT == 1 ? rows / 2 : rows;
  int buffer = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
    const int to = tile * COLUMNS + own;
    const bool mine = output < OUTPUTS && token < tokens && to < width && share == 0;
    bf16_t* at = out + (size_t)token * width + to;
    float add = 0.f, add_up = 0.f;
    if (BIAS && ACT != 3 && mine) add = low(bias[to]), add_up = ACT == 1 ? low(bias[to + width]) : 0.f;
    if (ADD && mine) add += low(*at);
#if ACT == 3
    const int head = tile / A_HEAD, part = head < heads ? 0 : head < heads + kv_heads ? 1 : 2;  // q, k or v
    const int place = tile % A_HEAD * PAIR + first + (own < PAIR ? 0 : HEAD / 2), input = token % inputs;
    float cosine = 1.f, sine = 0.f;
    if (ROPE && mine && part < 2) cosine = cosines[input * HEAD + place], sine = sines[input * HEAD + place];
    if (BIAS && mine) {
      const bf16_t* pair = bias + head * HEAD + tile % A_HEAD * PAIR + first;
      add = low(pair[0]), add_up = low(pair[HEAD / 2]);
    }
    if (mine && part == 0) at = out + ((size_t)(token / inputs * heads + head) * inputs + input) * HEAD + place;
    if (mine && part > 0) {
      const size_t line = (size_t)(token / inputs * kv_heads + head - heads - (part - 1) * kv_heads) * length;
      at = (part == 1 ? keys : values) + (line + slots[input]) * HEAD + place;
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
      for (int h = 0; h < HALVES; h++) read[h] = read_written(from[h] + 32 * i);
#endif
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const uint4 a = read[0], b = read[1], c = weight[n][i];
        mma(sum[n], a.x, b.x, a.y, b.y, c.x, c.y);
        mma(sum[n], a.z, b.z, a.w, b.w, c.z, c.w);
        if (ROLLING && more) ask(tile + gridDim.x, n, i);  // memory is never idle
      }
    }
    if (!ROLLING && more) ask_all(tile + gridDim.x);

    float(*sums_of)[LINES][LINE] = (float(*)[LINES][LINE])(parts + buffer * WARPS * LINES * LINE);
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
    auto add_warps = [&](int row, float& total, float& up) {
#pragma unroll
      for (int k = 0; k < WARPS / SHARES; k++) {
        const float* from_warp = sums_of[share * (WARPS / SHARES) + k][row] + first;
        total += from_warp[0];
        if (PAIRED) up += from_warp[PAIR];
      }
      if (SHARES == 2) {
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        if (PAIRED) up += __shfl_xor_sync(0xffffffffu, up, 1);
      }
    };
    float total = 0.f, up = 0.f;
    add_warps(token, total, up);
#if NORM
    total *= scale, up *= scale;
#endif
#if NORM == 2
    float gained = 0.f, gained_up = 0.f, shifted = 0.f, shifted_up = 0.f;
    add_warps(FREE, gained, gained_up);
    if (SHIFT) add_warps(FREE + 1, shifted, shifted_up);
    total += shifted - scale * mean * gained, up += shifted_up - scale * mean * gained_up;
#endif
#if ACT == 1
    total = silu_times(total + add, up + add_up);
#elif ACT == 2
    total = gelu(total + add);
#elif ACT == 3
    total = rounded(total + add), up = rounded(up + add_up);
    total = own < PAIR ? total * cosine - up * sine : up * cosine + total * sine;
#else
    total += add;
#endif
    if (mine) *at = (bf16_t)pack(total, 0.f);
  }
}
