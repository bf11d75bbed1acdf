// bfloat16 by its bits, and what products end with, for the kernels in CUDA C++.

#include "assembler.cuh"

constexpr pair_t ONES = 0x3f803f80u;  // two of 1
__device__ __forceinline__ float low(pair_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(pair_t v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float rounded(float v) { return low(pack(v, 0.f)); }

// Of sums that are rounded first, as products of their own would be.
__device__ __forceinline__ float silu_times(float gate, float up) {
  gate = rounded(gate);
  return gate / (1.f + __expf(-gate)) * rounded(up);
}
__device__ __forceinline__ float gelu(float v) {  // its tanh form
  v = rounded(v);
  return v / (1.f + __expf(-1.5957691216057308f * (v + 0.044715f * v * v * v)));
}
