// One product of a step with many tokens, with what stands after it:
//
//     out = f(x W^T + bias) [+ out]
//
// It still only reads weights, but the tokens are too many to be held by every program. So they are read along with the
// weights, block by block, and a program has many rows of W, so that it reads more of them than of tokens. Where that
// would leave programs without rows, two of them (a cluster) have the same rows, each in one half of their depth.
//   - One warp asks for blocks of W, as many as shared memory holds ahead, and never waits for the kernel before
//     (programmatic dependent launch). Another asks for blocks of x, as soon as they are there.
//   - Four warps multiply (wgmma): tokens are the rows of the tensor cores' product, rows of W its columns.
//   - At the end two programs that share rows send each other the sums of one half of them.
//
// Set when it is compiled: TOKENS, a multiple of 8, at most 64; ROWS of W that a program has, a multiple of 16, at most 256;
// SPLIT, 1 or 2 programs that share them; SPAN, the depth of a block in units of 64 columns; W_STAGES and X_STAGES, blocks
// under way; BIAS; ADD; ACT (0: none, 1: silu of the first half of the rows times the second, 2: gelu, its tanh form); and
// for the instruction WIDTH "ROWS" and the names of its ROWS / 2 sums: SUM_NAMES "%0, %1, ...", SUM_SUMS "+f"(s[0]), ..., and
// SUM_0, SUM_1, SUM_2 of what follows.

#include "hopper.cuh"
#include "numbers.cuh"

constexpr int DEEP = 64, MULTIPLYING = 128, THREADS = MULTIPLYING + 64;
constexpr int W_UNIT = ROWS * DEEP * 2, X_UNIT = TOKENS * DEEP * 2;  // bytes of 64 columns
constexpr int W_BYTES = SPAN * W_UNIT, X_BYTES = SPAN * X_UNIT, HELD = ROWS / 2;
constexpr int MADE = ACT == 1 ? ROWS / 2 : ROWS / SPLIT;  // outputs of a token that a program finishes
constexpr int OWN = HELD / SPLIT, MAIL = SPLIT == 2 ? MULTIPLYING * OWN * 4 : 0;  // sums of a thread; bytes of all
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && MADE % 8 == 0 && (ACT != 1 || SPLIT == 1) && W_STAGES * W_BYTES >= 8192, "");

__device__ __forceinline__ void multiply(float (&s)[HELD], u64 a, u64 b, int on) {  // s = a b^T [+ s]
  MULTIPLY(s, a, b, on, WIDTH, SUM_NAMES, SUM_SUMS, SUM_0, SUM_1, SUM_2);
}

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(THREADS, 1)
product(const __grid_constant__ Map w, const __grid_constant__ Map x, const bf16_t* __restrict__ bias, bf16_t* out,
        int tokens, int rows, int blocks) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned xs = address(memory), ws = xs + X_STAGES * X_BYTES, mail = ws + W_STAGES * W_BYTES;
  const unsigned mailed = mail + MAIL, w_full = mailed + 8, w_empty = w_full + 8 * W_STAGES;
  const unsigned x_full = w_empty + 8 * W_STAGES, x_empty = x_full + 8 * X_STAGES;
  const int part = blockIdx.x % SPLIT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = ACT == 1 ? rows / 2 : rows, first = blockIdx.x / SPLIT * MADE * SPLIT, begin = part * blocks * SPAN;
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
          if (ACT == 1) fetch(to + W_UNIT / 2, &w, column, first + width, w_full + 8 * s, ONCE);
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
  const int token = warp * 16 + lane / 4;
  const int column = first + part * MADE + lane % 4 * 2;
  pair_t before[2][ADD ? MADE / 8 : 1];
  if (ADD)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < MADE / 8; j++)
        if (token + 8 * half < tokens && column + 8 * j < width)
          before[half][j] = *(const pair_t*)(out + (size_t)(token + 8 * half) * width + column + 8 * j);

  float sum[HELD];
#pragma unroll 1
  for (int n = 0; n < blocks; n++) {
    const int s = n % W_STAGES, t = n % X_STAGES;
    await(w_full + 8 * s, n / W_STAGES & 1);
    await(x_full + 8 * t, n / X_STAGES & 1);
    before_products();
    // Beyond the last token lie other numbers: they make sums that nobody looks at.
    const u64 a = place(xs + t * X_BYTES), b = place(ws + s * W_BYTES);
#pragma unroll
    for (int i = 0; i < SPAN; i++)
#pragma unroll
      for (int k = 0; k < DEEP / 16; k++)
        multiply(sum, a + (i * X_UNIT >> 4) + 2 * k, b + (i * W_UNIT >> 4) + 2 * k, n > 0 || i > 0 || k > 0);
    asked_products();
    await_products<1>();  // the block before is done
    if (n > 0 && lane == 0) arrive(w_empty + 8 * ((n - 1) % W_STAGES)), arrive(x_empty + 8 * ((n - 1) % X_STAGES));
  }
  await_products<0>();
  settled(sum);

  if (SPLIT == 2) {
    const unsigned to = at_other(mail + threadIdx.x * 16, 1 - part), barrier = at_other(mailed, 1 - part);
#pragma unroll
    for (int i = 0; i < OWN; i += 4) {
      const float* one = &sum[i];
      const float* other = &sum[OWN + i];
      send(to + i / 4 * MULTIPLYING * 16, part ? one[0] : other[0], part ? one[1] : other[1], part ? one[2] : other[2],
           part ? one[3] : other[3], barrier);
    }
    await(mailed, 0);
#pragma unroll
    for (int i = 0; i < OWN; i += 4) {
      const float4 v = *(const float4*)(memory + (mail - xs) + threadIdx.x * 16 + i / 4 * MULTIPLYING * 16);
      const float got[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; e++) sum[i + e] = (part ? sum[OWN + i + e] : sum[i + e]) + got[e];
    }
  }

#pragma unroll
  for (int j = 0; j < MADE / 8; j++) {
    const int at = column + 8 * j;
    pair_t add = 0, add_up = 0;
    if (BIAS && at < width) {
      add = *(const pair_t*)(bias + at);
      if (ACT == 1) add_up = *(const pair_t*)(bias + at + width);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float v[2] = {sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]};
      if (BIAS) v[0] += low(add), v[1] += high(add);
      if (ACT == 1) {
        const float* up = &sum[(j * 4 + half * 2 + HELD / 2) % HELD];
        v[0] = silu_times(v[0], up[0] + (BIAS ? low(add_up) : 0.f));
        v[1] = silu_times(v[1], up[1] + (BIAS ? high(add_up) : 0.f));
      }
      if (ACT == 2) v[0] = gelu(v[0]), v[1] = gelu(v[1]);
      if (ADD) v[0] += low(before[half][j]), v[1] += high(before[half][j]);
      if (token + 8 * half < tokens && at < width)
        *(pair_t*)(out + (size_t)(token + 8 * half) * width + at) = pack(v[0], v[1]);
    }
  }
}
