// The token of one row of logits in bfloat16, by the rule of engine.sampler.sample: temperature, top-p, valid ids.
//
// A program's threads hold the whole row, IDS neighbours each: their keys, which are whole numbers in the order of the
// logits, and their weights exp((x - greatest) / temperature). So looking at all of them takes as long as one sum over all
// threads, and the key that top-p ends at is found by quartering: three sums at a time, eight times at most.
//
// Set when it is compiled: THREADS, a multiple of 32; IDS; TOP_P; and KEEP, whether the key at which the sum
// crosses top-p is kept.

#include "numbers.cuh"

constexpr int WARPS = THREADS / 32, SIZE = THREADS * IDS, NO_KEY = -0x7f80;  // that of -inf
constexpr unsigned ALL = 0xffffffffu;

struct alignas(16) Three {
  float a, b, c;
};

// The sum over all threads, the same for each; `turn` counts the calls, of which two in a row need not wait for each other.
__device__ __forceinline__ Three sum_all(Three v, int turn, Three (*shared)[WARPS]) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    v.a += __shfl_xor_sync(ALL, v.a, other);
    v.b += __shfl_xor_sync(ALL, v.b, other);
    v.c += __shfl_xor_sync(ALL, v.c, other);
  }
  if (threadIdx.x % 32 == 0) shared[turn % 2][threadIdx.x / 32] = v;
  __syncthreads();
  Three all = {0.f, 0.f, 0.f};
#pragma unroll 4
  for (int warp = 0; warp < WARPS; warp++) {
    const Three one = shared[turn % 2][warp];
    all.a += one.a, all.b += one.b, all.c += one.c;
  }
  return all;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
draw(const bf16_t* logits, const long long* lows, const long long* highs, const float* uniforms, const long long* positions,
     long long* drawn, int inputs, int ids, int stride, int uniform_stride, int drawn_stride, float scale, float top_p) {
  __shared__ __align__(16) bf16_t line[SIZE];
  __shared__ Three sums[2][WARPS];
  __shared__ float before_warp[WARPS];
  __shared__ int greatest, first, last;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int batch = blockIdx.x / inputs;
  const long long place = positions ? positions[blockIdx.x % inputs] : blockIdx.x % inputs;
  const int low_id = (int)lows[place], high_id = (int)highs[place];
  const bf16_t* row = logits + (size_t)blockIdx.x * stride;
  if (thread == 0) greatest = NO_KEY, first = SIZE, last = -1;
  for (int id = thread; id < SIZE; id += THREADS)
    line[id] = id >= low_id && id < high_id && id < ids ? row[id] : (bf16_t)0xff80;
  __syncthreads();

  int key[IDS], most = NO_KEY;
#pragma unroll
  for (int i = 0; i < IDS; i++) {
    const int bits = line[thread * IDS + i], size = bits & 0x7fff;
    key[i] = size > 0x7f80 ? NO_KEY : bits & 0x8000 ? -size : size;  // what is no number has no weight
    most = max(most, key[i]);
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) most = max(most, __shfl_xor_sync(ALL, most, other));
  if (lane == 0) atomicMax(&greatest, most);
  __syncthreads();
  const int top = greatest;
  const float origin = __uint_as_float((top < 0 ? 0x8000u - top : top) << 16);

  float weight[IDS], own = 0.f;
#pragma unroll
  for (int i = 0; i < IDS; i++) {
    const float x = __uint_as_float((key[i] < 0 ? 0x8000u - key[i] : key[i]) << 16);
    weight[i] = key[i] == NO_KEY ? 0.f : exp2f((x - origin) * scale);
    own += weight[i];
  }
  int turn = 0, floor = NO_KEY;  // what is drawn from is above it
  float mass = sum_all({own, 0.f, 0.f}, turn++, sums).a;
  if (TOP_P) {
    // Above `left` lies more than the limit, above `right` no more.
    const float limit = top_p * mass;
    int left = NO_KEY, right = top;
    float heavy = mass, light = 0.f;
    while (right - left > 1) {
      const int wide = right - left, at[3] = {left + wide / 4, left + wide / 2, left + wide - wide / 4};
      Three above = {0.f, 0.f, 0.f};
#pragma unroll
      for (int i = 0; i < IDS; i++) {
        above.a += key[i] > at[0] ? weight[i] : 0.f;
        above.b += key[i] > at[1] ? weight[i] : 0.f;
        above.c += key[i] > at[2] ? weight[i] : 0.f;
      }
      above = sum_all(above, turn++, sums);
      const float found[3] = {above.a, above.b, above.c};
#pragma unroll
      for (int q = 0; q < 3; q++) {
        if (at[q] > left && found[q] > limit) left = at[q], heavy = found[q];
        if (at[q] < right && found[q] <= limit) right = at[q], light = found[q];
      }
    }
    const bool kept = KEEP || right == top;  // the greatest are in any case
    floor = kept ? right - 1 : right;
    mass = kept ? heavy : light;
  }

  // The first id at which the running weight exceeds the target.
  const float target = uniforms[(size_t)batch * uniform_stride + place] * mass;
  own = 0.f;
#pragma unroll
  for (int i = 0; i < IDS; i++) own += key[i] > floor ? weight[i] : 0.f;
  float running = own;
#pragma unroll
  for (int other = 1; other < 32; other *= 2) {
    const float more = __shfl_up_sync(ALL, running, other);
    if (lane >= other) running += more;
  }
  if (lane == 31) before_warp[warp] = running;
  __syncthreads();
  float before = running - own;
  for (int other = 0; other < warp; other++) before += before_warp[other];
  if (own > 0.f) {
    int found = -1, any = -1;
#pragma unroll
    for (int i = 0; i < IDS; i++)
      if (key[i] > floor && weight[i] > 0.f) {
        before += weight[i], any = thread * IDS + i;
        if (found < 0 && before > target) found = any;
      }
    if (found >= 0) atomicMin(&first, found);
    atomicMax(&last, any);  // where rounding leaves all that runs below the target
  }
  __syncthreads();
  if (thread == 0) drawn[(size_t)batch * drawn_stride + place] = first < SIZE ? first : last;
}
