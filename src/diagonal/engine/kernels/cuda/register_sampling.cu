// The token of one row of logits in bfloat16, by the rule of engine.sampler.sample: temperature, top-p, valid ids.
//
// The threads of a thread block hold the whole row in registers, so memory is read once. What remains is arithmetic on every id:
//   1. the greatest logit
//   2. top-p: the sum of all weights 2^(x * scale + offset), which is at most about 1, and the mean and deviation of their
//      exponents; where a normal distribution would cross top-p is the first guess of where they do
//   3. top-p: a look at a window of logits about the guess: the weight of all above it, and how many ids have which logit.
//      bfloat16 has few numbers, so that equal logits can be counted, in whole numbers whose order of addition is all the
//      same, and a window's crossing is exact after one look. If the window missed, the next one lies beside it.
//   4. of what is left, the id with the greatest weight / E, where E is an exponential number of its own (noise.cuh)
// Weights are computed anew each time, since there are not registers enough to keep them, but in 3 and 4 only where one of a
// warp's 64 ids has any business there: with a small nucleus nearly nowhere.
//
// A warp holds 32 * IDS neighbours, a lane every 32nd piece of 8 of them, which is 16 bytes: so loads are whole lines. A row
// that begins between two such pieces is read from the piece's beginning on, and its end likewise: at most 14 bytes before
// and after, of the same 16 as an id of its own, so that there is memory. Whatever is there is no valid id.
//
// Set when it is compiled: THREADS, a multiple of 32; IDS, a multiple of 8; BINS, of a window, a multiple of 4; TOP_P; and
// KEEP, whether the key at which the sum crosses top-p is kept. Keys are whole numbers in the order of the logits.

#include "bf16.cuh"
#include "noise.cuh"

constexpr int WARPS = THREADS / 32, PIECES = IDS / 8, PAIRS = IDS / 2;
constexpr int NO_KEY = -0x7f80, INFINITE = 0x7f80, NONE = 0x7fffffff;  // of -inf, of inf, and above all
constexpr unsigned ALL = 0xffffffffu;
constexpr pair_t NO_PAIR = 0xff80ff80u;  // -inf twice
constexpr float NOTHING = -200.f;        // an exponent whose weight is 0
// E lies between 2^-33 and 16.7: an id whose weight is less than 2 to this of the greatest cannot be drawn.
constexpr float NEVER = -38.f;
static_assert(WARPS <= 32 && IDS % 8 == 0 && BINS % 4 == 0, "");

// What is no number is never the greatest (`greater`), and as it is above nothing either (`any_above`), it has no weight.
__device__ __forceinline__ void make_all_opaque(pair_t (&ids)[PAIRS]) {
#pragma unroll
  for (int i = 0; i < PAIRS; i++) make_opaque(ids[i]);
}

// In 32 bits all along: of halves the compiler would make registers of their own.
__device__ __forceinline__ int key_of(float x) {  // cut off towards zero
  const int size = (int)(__float_as_uint(x) & 0x7fffffffu) >> 16;
  return x < 0.f ? -size : size;
}
__device__ __forceinline__ unsigned bits_of(int key) { return key < 0 ? 0x8000u - key : key; }
__device__ __forceinline__ float number(int key) { return __uint_as_float(bits_of(key) << 16); }

__device__ __forceinline__ int warp_max(int v) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) v = max(v, __shfl_xor_sync(ALL, v, other));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) v += __shfl_xor_sync(ALL, v, other);
  return v;
}
__device__ __forceinline__ float warp_running(float v, int lane) {  // of this lane and those before it
#pragma unroll
  for (int other = 1; other < 32; other *= 2) {
    const float more = __shfl_up_sync(ALL, v, other);
    if (lane >= other) v += more;
  }
  return v;
}
// Sums over all threads, the same for each. Two calls with the same `shared` need a wait between them.
template <int COUNT>
__device__ __forceinline__ void sum_all(float (&v)[COUNT], float (*shared)[WARPS]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    v[i] = warp_sum(v[i]);
    if (lane == 0) shared[i][threadIdx.x / 32] = v[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) v[i] = warp_sum(lane < WARPS ? shared[i][lane] : 0.f);
}

// Shared memory of a thread block; each phase has its own, so that few threads need wait for others.
struct Shared {
  alignas(16) int bins[BINS];  // ids of each key of the window, from the greatest on
  float sums[3][WARPS], above[1][WARPS], inside[WARPS];
  int tops[WARPS], crossings[WARPS], scores[WARPS], places[WARPS];
  NoiseKey key;
};

struct Row {
  pair_t ids[PAIRS];
  int top;               // the greatest key
  float scale, offset;   // of exponents
  __device__ __forceinline__ float exponent(float x) const { return fmaf(x, scale, offset); }
  __device__ __forceinline__ float weight(float x) const { return exp2_approx(exponent(x)); }
  __device__ __forceinline__ int key_at(float exponent) const { return key_of(__fdividef(exponent - offset, scale)); }
};

// The number of deviations below which this part of a normal distribution lies: Tukey's approximation.
__device__ __forceinline__ float quantile(float part) {
  return (exp2_approx(0.135f * __log2f(part)) - exp2_approx(0.135f * __log2f(1.f - part))) * 5.06f;
}

// The window's first bin at which the running weight exceeds the limit, NONE if there is none. A thread has neighbours.
__device__ __forceinline__ int crossing_bin(const Row& row, float above, float limit, int upper, int size, Shared& shared) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, each = (size + THREADS - 1) / THREADS;
  const int begin = thread * each, end = min(begin + each, size);
  float own = 0.f;
  for (int bin = begin; bin < end; bin++) own += shared.bins[bin] * row.weight(number(upper - bin));
  const float running = warp_running(own, lane);
  if (lane == 31) shared.inside[warp] = running;
  __syncthreads();
  const float after = above + warp_sum(lane < warp ? shared.inside[lane] : 0.f) + running;
  int found = NONE;
  if (own > 0.f && after > limit) {
    float now = after - own;
    for (int bin = begin; bin < end && now <= limit; bin++) {  // where rounding leaves it below, the last one
      const float more = shared.bins[bin] * row.weight(number(upper - bin));
      now += more;
      if (more > 0.f) found = bin;
    }
    if (found == NONE) found = begin;  // rounding has put its beginning above
  }
  found = -warp_max(-found);
  if (lane == 0) shared.crossings[warp] = found;
  __syncthreads();
  return -warp_max(-(lane < WARPS ? shared.crossings[lane] : NONE));
}

// The key whose weight, added to that of all greater ones, first exceeds top-p of the whole.
__device__ __forceinline__ int crossing_key(Row& row, float top_p, float normal, int ids, Shared& shared) {
  // What weighs nothing is made as great as it may be, so that exponents are numbers; one key less than it is cut off to.
  int left = max(row.key_at(NOTHING) - 1, NO_KEY + 1), right = row.top;
  const pair_t least = bits_of(left) * 0x10001u;
  float sums[3] = {0.f, 0.f, 0.f};  // of weights, and of exponents and their squares times weights
  make_all_opaque(row.ids);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    row.ids[i] = max_pair(row.ids[i], least);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float e = row.exponent(half ? high(row.ids[i]) : low(row.ids[i])), w = exp2_approx(e);
      sums[0] += w, sums[1] += w * e, sums[2] += w * e * e;
    }
  }
  sum_all(sums, shared.sums);
  const float mass = sums[0], mean = __fdividef(sums[1], mass);
  const float variance = fmaxf(__fdividef(sums[2], mass) - mean * mean, 1e-30f);
  const float deviation = variance * rsqrtf(variance), guess = mean - deviation * normal, limit = top_p * mass;
  // So far to either side; where ids weigh much there are few, and a wide window costs little.
  float reach = deviation * fminf(fmaxf(__fdividef(0.15f * ids * exp2_approx(guess), mass), 0.15f), 0.5f);

  // Above `left` lies more than the limit, above `right` no more.
  for (int look = 0;; look++) {
    int lower = left, upper = right;
    if (look < 3) {
      lower = min(max(row.key_at(guess - reach) - 1, left), right - 1);
      upper = max(min(row.key_at(guess + reach) + 1, right), lower + 1);
      reach *= 4.f;
    }
    // Of both signs or of too many keys, as numbers lie close about zero: the end that is farther away from it.
    const bool downwards = -lower > upper;
    if (lower < -1 && upper >= 0) (downwards ? upper : lower) = -1;
    if (upper - lower > BINS) (downwards ? upper : lower) = downwards ? lower + BINS : upper - BINS;
    const pair_t bound = bits_of(lower) * 0x10001u;
    const float lowest = number(lower), highest = number(upper);
    const int sign = upper < 0 ? 1 : -1;  // of one sign, bits are as good as keys; bits of -0 are made those of 0
    int* const zero = shared.bins - sign * (int)bits_of(upper);
    float above[1] = {0.f};
    make_all_opaque(row.ids);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
      if (any_greater(row.ids[i], bound)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float x = half ? high(row.ids[i]) : low(row.ids[i]);
          above[0] += x > highest ? row.weight(x) : 0.f;
          if (x > lowest && x <= highest) atomicAdd(zero + sign * (int)(__float_as_uint(x + 0.f) >> 16), 1);
        }
      }
    sum_all(above, shared.above);
    if (above[0] > limit) {
      left = upper;
      if (left == right) return right;  // rounding says this now, and said else before
    } else {
      const int bin = crossing_bin(row, above[0], limit, upper, upper - lower, shared);
      if (bin != NONE) return upper - bin;
      right = lower;
      if (left == right) return left + 1;
    }
    for (int bin = threadIdx.x; bin < upper - lower; bin += THREADS) shared.bins[bin] = 0;
    __syncthreads();
  }
}

// The id above the floor with the greatest weight / E, as a place among those held, `early` of which are before the row;
// of equals the first.
__device__ __forceinline__ int winner(Row& row, int floor, int early, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const pair_t bound = bits_of(floor) * 0x10001u;
  const float lowest = number(floor);
  const NoiseKey key = shared.key;
  int most = 0, place = NONE;  // a score is above 0, so that its bits are in its order
  make_all_opaque(row.ids);
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int first = ((warp * PIECES + p) * 32 + lane) * 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (any_greater(row.ids[4 * p + i], bound)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float x = half ? high(row.ids[4 * p + i]) : low(row.ids[4 * p + i]);
          const int now = first + 2 * i + half;
          if (x > lowest) {
            const int score = __float_as_uint(__fdividef(row.weight(x), exponential(noise_hash(key, now - early))));
            if (score > most) most = score, place = now;
          }
        }
      }
  }
  const int greatest = warp_max(most);
  place = -warp_max(most == greatest ? -place : -NONE);
  if (lane == 0) shared.scores[warp] = greatest, shared.places[warp] = place;
  __syncthreads();
  most = lane < WARPS ? shared.scores[lane] : 0;
  return -warp_max(most == warp_max(most) && lane < WARPS ? -shared.places[lane] : -NONE);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
sample(const bf16_t* logits, const long long* slots, const long long* positions, const long long* seeds,
       const long long* lows, const long long* highs, const long long* rows, long long* tokens, int inputs, int ids, int stride,
       int slot_stride, int position_stride, int token_stride, float scale, float top_p) {
  __shared__ Shared shared;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (TOP_P)
    for (int four = thread; four < BINS / 4; four += THREADS) ((uint4*)shared.bins)[four] = uint4{0, 0, 0, 0};
  const float normal = TOP_P ? quantile(top_p) : 0.f;
  wait_for_previous_kernel();
  const int batch = blockIdx.x / inputs, input = blockIdx.x % inputs;
  const long long slot = slots[(size_t)batch * slot_stride + input];

  // All ids, so that none need wait for which are valid.
  const bf16_t* at = logits + (size_t)blockIdx.x * stride;
  const int early = (size_t)at / 2 % 8, first = (warp * PIECES * 32 + lane) * 8;  // places among those held
  Row row;
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    uint4 four = {NO_PAIR, NO_PAIR, NO_PAIR, NO_PAIR};
    if (first + p * 256 < early + ids) four = *(const uint4*)(at - early + first + p * 256);
    row.ids[4 * p] = four.x, row.ids[4 * p + 1] = four.y, row.ids[4 * p + 2] = four.z, row.ids[4 * p + 3] = four.w;
  }
  const int begin = early + max((int)lows[slot], 0), end = early + min((int)highs[slot], ids);
  long long* const token = tokens + (rows ? rows[batch] : batch) * token_stride + slot;
  if (thread == 0) shared.key = noise_key(seeds[batch], positions[(size_t)batch * position_stride + input]);
  pair_t most = NO_PAIR;
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int now = first + p * 256;
    if (now < begin || now + 8 > end) {
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (now + i < begin || now + i >= end) {
          pair_t& pair = row.ids[4 * p + i / 2];
          pair = i % 2 ? pair & 0xffffu | NO_PAIR & 0xffff0000u : pair & 0xffff0000u | NO_PAIR & 0xffffu;
        }
    }
#pragma unroll
    for (int i = 4 * p; i < 4 * p + 4; i++) most = max_pair(most, row.ids[i]);
  }
  const int top = warp_max(max(key_of(low(most)), key_of(high(most))));
  if (lane == 0) shared.tops[warp] = top;
  __syncthreads();
  row.top = warp_max(lane < WARPS ? shared.tops[lane] : NO_KEY);
  if (row.top == NO_KEY || row.top == INFINITE) {
    if (thread == 0) *token = -1;
    return;
  }
  // Numbers of bfloat16 differ by 2^-8 of themselves: where the greatest exponent is above 2^15, all others weigh nothing.
  // So it need not be above 2^16, and the rounding of one product is too little to matter; it is the same for all ids.
  row.scale = fminf(fminf(scale, 1e37f), __fdividef(1.f, fabsf(number(row.top)) * 0x1p-16f));
  row.offset = -number(row.top) * row.scale;
  int floor = max(row.key_at(NEVER) - 1, NO_KEY);  // what is drawn from is above it; one key less than it is cut off to
  if (TOP_P) {
    const int crossing = crossing_key(row, top_p, normal, ids, shared);
    floor = max(floor, KEEP || crossing == row.top ? crossing - 1 : crossing);  // the greatest are in any case
  }
  const int found = winner(row, floor, early, shared);
  if (thread == 0) *token = found - early;
}
