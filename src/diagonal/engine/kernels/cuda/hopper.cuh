// Hopper's own instructions, for the kernels in CUDA C++: mbarriers, TMA, clusters, and wgmma with its matrix descriptors.

typedef unsigned long long u64;

struct alignas(64) TensorMap {  // a CUtensorMap: how TMA addresses a matrix
  char bytes[128];
};

// L2 eviction: first, as usual, or last.
constexpr u64 ONCE = 0x12F0000000000000ull, USUAL = 0x10F0000000000000ull, AGAIN = 0x14F0000000000000ull;

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void fence_mbarrier_init() {  // all threads of a cluster may use them once they have met
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_expect_tx(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @done bra over;\n bra again;\n"
      "over:\n }" ::"r"(barrier), "r"(parity) : "memory");
}
// The first load through a tensor map fetches the map itself: this does so earlier.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap* map, int column, int row, unsigned barrier, u64 hint) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(hint)
      : "memory");
}
// Of several matrices, whose map says how many of them a tile has.
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap* map, int column, int row, int matrix, unsigned barrier, u64 hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "l"(hint)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void cluster_sync() {  // all threads of its thread blocks
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ unsigned map_to_peer(unsigned at, int rank) {  // the same address in another thread block of the cluster
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
__device__ __forceinline__ void st_async(unsigned to, float a, float b, float c, float d, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}
// wgmma's descriptor of a tile in shared memory: rows of 128 bytes, eight after the other, 128-byte swizzle; `across` bytes
// from 64 columns to the next 64, where columns are not the summed dimension.
__device__ __forceinline__ u64 matrix_descriptor(unsigned at, unsigned across = 16) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(across >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
template <int N>
__device__ __forceinline__ void fence_accumulators(float (&s)[N]) {  // keeps the compiler from using them earlier
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(s[i])::"memory");
}

// Asynchronous wgmma of a warpgroup: 64 rows of accumulators s, s += a b^T, or s = a b^T where `on` is 0. The instruction names
// its accumulators: WIDTH "128" for 64 of them a thread, NAMES "%0, %1, ...", SUMS "+f"(s[0]), ..., and the operands after them.
#define WGMMA_SS(s, a, b, on, WIDTH, NAMES, SUMS, A, B, ON)                                                        \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " ON ", 0;\n wgmma.mma_async.sync.aligned.m64n" WIDTH           \
               "k16.f32.bf16.bf16 {" NAMES "}, " A ", " B ", p, 1, 1, 0, 0;\n}"                                     \
               : SUMS                                                                                              \
               : "l"(a), "l"(b), "r"(on))
// The same with a in registers, four of each thread, and b transposed: s += a b.
#define WGMMA_RS(s, a, b, WIDTH, NAMES, SUMS, A0, A1, A2, A3, B)                                                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" WIDTH "k16.f32.bf16.bf16 {" NAMES "}, {" A0 ", " A1 ", " A2 ", " A3 \
               "}, " B ", 1, 1, 1, 1;"                                                                             \
               : SUMS                                                                                              \
               : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>  // of what was asked for last
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
