// What CUDA C++ has that C++ has not.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "machine.h"

using std::isinf;
using std::isnan;
using std::max;
using std::min;

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Of a block: its fibres are of one thread of the CPU, those of the other block of a cluster are not.
#define __shared__ thread_local

struct alignas(8) int2 { int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class To, class From>
inline To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "");
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline float __int_as_float(int bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf expf  // names that the C library has already
#define __log2f log2f
#define __logf logf

inline void atomicAdd(int* at, int value) { *at += value; }  // no other fibre comes between

inline void __syncthreads() { meet_block(); }

// Warps, always whole.
inline int own_lane() { return threadIdx.x % 32; }
template <class T>
inline void all_lanes(unsigned mask, const T& own, T (&of_all)[32]) {
  if (mask != 0xffffffffu) fail("lanes %#x are to meet: only whole warps are known here", mask);
  meet_warp(&own, sizeof own, of_all);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  char of_all[32];
  all_lanes(mask, char(0), of_all);
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from) {
  T of_all[32];
  all_lanes(mask, value, of_all);
  return of_all[from % 32];
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int other) { return __shfl_sync(mask, value, own_lane() ^ other); }
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int other) {
  return __shfl_sync(mask, value, own_lane() >= other ? own_lane() - other : own_lane());
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, int other) {
  return __shfl_sync(mask, value, own_lane() + other < 32 ? own_lane() + other : own_lane());
}
inline int __reduce_max_sync(unsigned mask, int value) {
  int of_all[32];
  all_lanes(mask, value, of_all);
  for (int one : of_all) value = max(value, one);
  return value;
}
inline int __reduce_min_sync(unsigned mask, int value) { return -__reduce_max_sync(mask, -value); }
inline unsigned __ballot_sync(unsigned mask, bool value) {
  bool of_all[32];
  all_lanes(mask, value, of_all);
  unsigned out = 0;
  for (int lane = 0; lane < 32; lane++) out |= (unsigned)of_all[lane] << lane;
  return out;
}
