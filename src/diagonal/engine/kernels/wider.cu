// One product of a step with more tokens than wide.cu takes, with what stands after it:
//
//     out = f(x W^T + bias) [+ out]
//
// As wide.cu, but rows of W are the rows of the tensor cores' product and tokens its columns, of which there may be any
// multiple of 8: nothing is computed for tokens that are not there, which would take power. Rows come in blocks of 64, the
// last of which need not be full: what counts is that all programs read about the same share of W.
//
// Set when it is compiled: TOKENS, a multiple of 8 * SPLIT, at most 128; ROWS of W that a program has, a multiple of 8, or of 16 with
// silu; GROUPS of four warps that multiply, BLOCKS of 64 rows for each; SPLIT, 1 or 2 programs that share rows, each in one half
// of the depth; SPAN, the depth of a block in units of 64 columns; W_STAGES and X_STAGES, blocks under way; BIAS; ADD; ACT (0:
// none, 1: silu of the first half of the rows times the second, 2: gelu, its tanh form); and for the instruction WIDTH "TOKENS"
// and the names of its TOKENS / 2 sums: SUM_NAMES "%0, %1, ...", SUM_SUMS "+f"(s[0]), ..., and SUM_0, SUM_1, SUM_2 of what
// follows.

#include "hopper.cuh"
#include "numbers.cuh"

constexpr int DEEP = 64, SIDE = 64, MULTIPLYING = GROUPS * 128, THREADS = MULTIPLYING + 64;
constexpr int LINE = DEEP * 2, W_UNIT = ROWS * LINE, X_UNIT = TOKENS * LINE;  // bytes of 64 columns
constexpr int W_BYTES = SPAN * W_UNIT, X_BYTES = SPAN * X_UNIT, HELD = TOKENS / 2;
constexpr int OWN = HELD / SPLIT, MADE = TOKENS / SPLIT;  // sums of a thread for each block, and tokens, that it finishes
constexpr int MAIL = SPLIT == 2 ? MULTIPLYING * BLOCKS * OWN * 4 : 0;
constexpr int FINISHED = ACT == 1 ? 1 : BLOCKS, OUTPUTS = ACT == 1 ? ROWS / 2 : ROWS;  // blocks of a group, outputs of a token
static_assert(TOKENS % (8 * SPLIT) == 0 && OUTPUTS % 8 == 0 && OUTPUTS <= GROUPS * FINISHED * SIDE, "");
static_assert(ACT != 1 || (SPLIT == 1 && BLOCKS == 2), "");
static_assert(X_STAGES * X_BYTES >= (SIDE - 8) * LINE, "");  // what a block that is not full reads behind the last weights

__device__ __forceinline__ void multiply(float (&s)[HELD], u64 a, u64 b, int on) {  // s = a b^T [+ s]
  MULTIPLY(s, a, b, on, WIDTH, SUM_NAMES, SUM_SUMS, SUM_0, SUM_1, SUM_2);
}

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 1)
product(const __grid_constant__ Map w, const __grid_constant__ Map x, const bf16_t* __restrict__ bias, bf16_t* out,
        int tokens, int rows, int blocks) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned ws = address(memory), xs = ws + W_STAGES * W_BYTES, mail = xs + X_STAGES * X_BYTES;
  const unsigned mailed = mail + MAIL, w_full = mailed + 8, w_empty = w_full + 8 * W_STAGES;
  const unsigned x_full = w_empty + 8 * W_STAGES, x_empty = x_full + 8 * X_STAGES;
  const int part = blockIdx.x % SPLIT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = ACT == 1 ? rows / 2 : rows, first = blockIdx.x / SPLIT * OUTPUTS, begin = part * blocks * SPAN;
  call_next();
  if (threadIdx.x == 0) {
    for (int s = 0; s < W_STAGES; s++) init(w_full + 8 * s, 1), init(w_empty + 8 * s, MULTIPLYING / 32);
    for (int s = 0; s < X_STAGES; s++) init(x_full + 8 * s, 1), init(x_empty + 8 * s, MULTIPLYING / 32);
    init(mailed, 1);
    barriers_made();
    if (SPLIT == 2) expect(mailed, MAIL);
  }
  if (SPLIT == 2)
    meet_cluster();
  else
    __syncthreads();

  if (warp == MULTIPLYING / 32) {
    if (lane == 0)
#pragma unroll 1
      for (int n = 0; n < blocks; n++) {
        const int s = n % W_STAGES;
        if (n >= W_STAGES) await(w_empty + 8 * s, n / W_STAGES - 1 & 1);
        expect(w_full + 8 * s, W_BYTES);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
          const unsigned to = ws + s * W_BYTES + i * W_UNIT;
          const int column = (begin + n * SPAN + i) * DEEP;
          fetch(to, &w, column, first, w_full + 8 * s, ONCE);
          if (ACT == 1) fetch(to + OUTPUTS * LINE, &w, column, first + width, w_full + 8 * s, ONCE);
        }
      }
    return;
  }
  if (warp == MULTIPLYING / 32 + 1) {
    if (lane == 0) {
      ready(&x);
      await_kernel_before();
#pragma unroll 1
      for (int n = 0; n < blocks; n++) {
        const int s = n % X_STAGES;
        if (n >= X_STAGES) await(x_empty + 8 * s, n / X_STAGES - 1 & 1);
        expect(x_full + 8 * s, X_BYTES);
#pragma unroll
        for (int i = 0; i < SPAN; i++)
          fetch(xs + s * X_BYTES + i * X_UNIT, &x, (begin + n * SPAN + i) * DEEP, 0, x_full + 8 * s, AGAIN);
      }
    }
    return;
  }

  await_kernel_before();
  // A thread's sums are of two rows, eight apart, and of two tokens side by side; turned, of a token and two rows.
  const int group = warp / 4, own_row = group * FINISHED * SIDE + warp % 4 * 16;  // of the program's
  const int own_token = part * MADE + lane / 4, rows_left = min(OUTPUTS, width - first);
  auto at = [&](int b, int half, int j) {
    return out + (size_t)(own_token + 8 * j) * width + first + own_row + b * SIDE + half * 8 + lane % 4 * 2;
  };
  auto there = [&](int b, int half, int j) {
    return own_token + 8 * j < tokens && own_row + b * SIDE + half * 8 + lane % 4 * 2 < rows_left;
  };
  pair_t before[FINISHED][2][ADD ? MADE / 8 : 1];
  if (ADD)
#pragma unroll
    for (int b = 0; b < FINISHED; b++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < MADE / 8; j++) before[b][half][j] = there(b, half, j) ? *(const pair_t*)at(b, half, j) : 0;

  float sum[BLOCKS][HELD];
#pragma unroll 1
  for (int n = 0; n < blocks; n++) {
    const int s = n % W_STAGES, t = n % X_STAGES;
    await(w_full + 8 * s, n / W_STAGES & 1);
    await(x_full + 8 * t, n / X_STAGES & 1);
    before_products();
#pragma unroll
    for (int i = 0; i < SPAN; i++)
#pragma unroll
      for (int k = 0; k < DEEP / 16; k++)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
          const int row = ACT == 1 ? b * OUTPUTS + group * SIDE : (group * BLOCKS + b) * SIDE;  // gates, and ups
          multiply(sum[b], place(ws + s * W_BYTES + i * W_UNIT + row * LINE) + 2 * k,
                   place(xs + t * X_BYTES + i * X_UNIT) + 2 * k, n > 0 || i > 0 || k > 0);
        }
    asked_products();
    await_products<1>();  // the block before is done
    if (n > 0 && lane == 0) arrive(w_empty + 8 * ((n - 1) % W_STAGES)), arrive(x_empty + 8 * ((n - 1) % X_STAGES));
  }
  await_products<0>();
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) settled(sum[b]);

  if (SPLIT == 2) {
    const unsigned to = at_other(mail + threadIdx.x * 16, 1 - part), barrier = at_other(mailed, 1 - part);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        const float* one = &sum[b][i];
        const float* other = &sum[b][(OWN + i) % HELD];
        send(to + (b * OWN + i) / 4 * MULTIPLYING * 16, part ? one[0] : other[0], part ? one[1] : other[1],
             part ? one[2] : other[2], part ? one[3] : other[3], barrier);
      }
    await(mailed, 0);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        const float4 v =
            *(const float4*)(memory + (mail - ws) + threadIdx.x * 16 + (b * OWN + i) / 4 * MULTIPLYING * 16);
        const float got[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
          sum[b][i + e] = (part ? sum[b][(OWN + i + e) % HELD] : sum[b][i + e]) + got[e];
      }
  }

#pragma unroll
  for (int b = 0; b < FINISHED; b++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first + own_row + b * SIDE + half * 8 + lane / 4;
      float add = 0.f, add_up = 0.f;
      if (BIAS && row < width) add = low(bias[row]), add_up = ACT == 1 ? low(bias[row + width]) : 0.f;
#pragma unroll
      for (int j = 0; j < MADE / 8; j++) {
        const pair_t old = ADD ? turned(before[b][half][j]) : 0;
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          v[e] = sum[b][j * 4 + half * 2 + e] + add;
          if (ACT == 1) v[e] = silu_times(v[e], sum[BLOCKS - 1][j * 4 + half * 2 + e] + add_up);
          if (ACT == 2) v[e] = gelu(v[e]);
          if (ADD) v[e] += e ? high(old) : low(old);
        }
        const pair_t made = turned(pack(v[0], v[1]));
        if (there(b, half, j)) *(pair_t*)at(b, half, j) = made;
      }
    }
}
