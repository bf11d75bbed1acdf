// What C++ has no words for, as functions: instructions that all GPUs have on which the kernels in CUDA C++ run. Those that
// only Hopper has are in hopper.cuh. Kernels themselves hold no assembler, so that tests can run them on a CPU
// (tests/cuda_on_cpu).

typedef unsigned short bf16_t;  // bfloat16 by its bits
typedef unsigned int pair_t;    // two of them

// Programmatic dependent launch: from here on thread blocks of the next kernel may start, where they find room.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
// The kernel before has ended, and what it wrote is there. Until then nothing but weights may be read.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ pair_t pack_bf16(float lo, float hi) {
  pair_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
__device__ __forceinline__ pair_t pack_fp16(float lo, float hi) {  // of float16
  pair_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
// 2^x, 0 where that is below 2^-126.
__device__ __forceinline__ float exp2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
// Elementwise a * b.
__device__ __forceinline__ pair_t mul_pair(pair_t a, pair_t b) {
  pair_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Elementwise maximum; of a number and a NaN, the number.
__device__ __forceinline__ pair_t max_pair(pair_t a, pair_t b) {
  pair_t out;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Whether a > b in either element.
__device__ __forceinline__ bool any_greater(pair_t a, pair_t b) {
  unsigned out;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out != 0;
}
// Makes a value opaque to the compiler, which would otherwise keep what it computed from it, in registers that there are not.
__device__ __forceinline__ void make_opaque(pair_t& v) { asm volatile("" : "+r"(v)); }

// 16 bytes that are read once, and so not worth a place in the first-level cache.
__device__ __forceinline__ uint4 load_once(const bf16_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// 16 bytes that the kernel before has written: never ahead of `await_kernel_before`.
__device__ __forceinline__ uint4 load_written(const bf16_t* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// mma of a warp: 16 x 8 sums over 16.
__device__ __forceinline__ void mma(float* c, pair_t a0, pair_t a1, pair_t a2, pair_t a3, pair_t b0, pair_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Transpose the 8 x 8 matrix of a warp.
__device__ __forceinline__ pair_t transpose_8x8(pair_t v) {
  pair_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}
