// bfloat16 by its bits, and the activations of GEMM epilogues, for the kernels in CUDA C++.

#include "ptx.cuh"

constexpr pair_t ONES = 0x3f803f80u;  // two of 1
__device__ __forceinline__ float low(pair_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(pair_t v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float round_bf16(float v) { return low(pack_bf16(v, 0.f)); }

// Of sums that are rounded first, as the results of separate GEMMs would be.
__device__ __forceinline__ float silu_times(float gate, float up) {
  gate = round_bf16(gate);
  return gate / (1.f + __expf(-gate)) * round_bf16(up);
}
__device__ __forceinline__ float gelu(float v) {  // its tanh form
  v = round_bf16(v);
  return v / (1.f + __expf(-1.5957691216057308f * (v + 0.044715f * v * v * v)));
}
