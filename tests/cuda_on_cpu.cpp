// Runs a kernel in CUDA C++ on a CPU, to test what it computes: the threads of a block are fibres that take turns, each as
// far as the next place where threads wait for each other. KERNEL is a file with the kernel; CALL calls it with `given`, the
// addresses of its arguments.

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

static ucontext_t turns;
static std::vector<ucontext_t> fibres;
static std::vector<std::vector<char>> stacks;
static std::vector<char> done;
static uint32_t box[1024];

static void take_turns() { swapcontext(&fibres[thread_now], &turns); }
static void __syncthreads() { take_turns(); }
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
static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void atomicMax(int* at, int value) { *at = max(*at, value); }
static void atomicMin(int* at, int value) { *at = min(*at, value); }

#include KERNEL

static void** given;
template <class T>
static T argument(int number) { return *(T*)given[number]; }

static void fibre() {
  CALL;
  done[thread_now] = 1;
  take_turns();
}

extern "C" void run(int blocks, int threads, void** arguments) {
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
}
