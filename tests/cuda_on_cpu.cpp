// Runs a kernel in CUDA C++ on a CPU, to test what it computes: the threads of a block are fibres that take turns, each as
// far as the next place where threads wait for each other. KERNEL is a file with the kernel; CALL calls it with `given`, the
// addresses of its arguments. `waits` counts how often a block's threads waited for each other.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using std::max;
using std::min;

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes)

static int thread_now;
static struct { struct { operator int() const { return thread_now; } } x; } threadIdx;
static struct { int x; } blockIdx;
struct alignas(16) uint4 { unsigned x, y, z, w; };

static ucontext_t turns;
static std::vector<ucontext_t> fibres;
static std::vector<std::vector<char>> stacks;
static std::vector<char> done;
static uint32_t box[1024];

static void take_turns() { swapcontext(&fibres[thread_now], &turns); }
static int waits;
static void __syncthreads() {
  if (thread_now == 0) waits++;
  take_turns();
}
template <class T>
static T exchanged(T value, int from) {
  memcpy(&box[thread_now], &value, 4);
  take_turns();
  memcpy(&value, &box[from], 4);
  take_turns();
  return value;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int other) { return exchanged(value, thread_now ^ other); }
template <class T>
static T __shfl_up_sync(unsigned, T value, int other) {
  return exchanged(value, thread_now % 32 >= other ? thread_now - other : thread_now);
}
template <class T>
static T __shfl_sync(unsigned, T value, int from) { return exchanged(value, thread_now / 32 * 32 + from); }
static unsigned __ballot_sync(unsigned, bool value) {
  unsigned all = 0, flag = value;
  memcpy(&box[thread_now], &flag, 4);
  take_turns();
  for (int lane = 0; lane < 32; lane++) all |= box[thread_now / 32 * 32 + lane] << lane;
  take_turns();
  return all;
}
static int __ffs(unsigned v) { return __builtin_ffs(v); }
static int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
static float __fdividef(float a, float b) { return a / b; }
#define __log2f log2f  // a name that the C library has already
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static void atomicAdd(int* at, int value) { *at += value; }

// What kernels say in a GPU's assembler.
typedef unsigned short bf16_t;
typedef unsigned pair_t;
static float half(pair_t v, int which) { return __uint_as_float(which ? v & 0xffff0000u : v << 16); }
static float power(float x) { return x < -126 ? 0 : exp2f(x); }
static pair_t greater(pair_t a, pair_t b) {
  pair_t out = 0;
  for (int i = 0; i < 2; i++) out |= __float_as_uint(fmaxf(half(a, i), half(b, i))) >> 16 << 16 * i;
  return out;
}
static bool any_above(pair_t a, pair_t b) { return half(a, 0) > half(b, 0) || half(a, 1) > half(b, 1); }
static void forget(pair_t&) {}
static void await_kernel_before() {}

#include KERNEL

static void** given;
template <class T>
static T argument(int number) { return *(T*)given[number]; }

static void fibre() {
  CALL;
  done[thread_now] = 1;
  take_turns();
}

extern "C" int run(int blocks, int threads, void** arguments) {
  waits = 0;
  given = arguments, fibres.resize(threads), stacks.resize(threads), done.resize(threads);
  for (auto& stack : stacks) stack.resize(1 << 16);
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (int thread = 0; thread < threads; thread++) {
      done[thread] = 0;
      getcontext(&fibres[thread]);
      fibres[thread].uc_stack.ss_sp = stacks[thread].data(), fibres[thread].uc_stack.ss_size = stacks[thread].size();
      fibres[thread].uc_link = &turns;
      makecontext(&fibres[thread], fibre, 0);
    }
    for (bool more = true; more;) {
      more = false;
      for (thread_now = 0; thread_now < threads; thread_now++)
        if (!done[thread_now]) more = true, swapcontext(&turns, &fibres[thread_now]);
    }
  }
  return waits;
}
