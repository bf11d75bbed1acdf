// What the kernels' hopper.cuh says in a GPU's assembler, in C++ (memory.cpp, tensor_cores.cpp).

#pragma once

#include "ptx.cuh"

typedef unsigned long long u64;

struct alignas(64) TensorMap {  // as `tensor_map` of this folder writes it
  const char* matrix;
  int count, rows, columns, box_count, box_rows, box_columns;  // matrices, and of each
  unsigned mark;
  char nothing[128 - 36];
};
constexpr unsigned MAP = 0x5ca1ab1e;

constexpr u64 ONCE = 0x12F0000000000000ull, USUAL = 0x10F0000000000000ull, AGAIN = 0x14F0000000000000ull;

inline unsigned shared_address(const void* p) { return address_of(p); }
void mbarrier_init(unsigned barrier, int arrivals);
inline void fence_mbarrier_init() {}
void fence_async_proxy();
void mbarrier_expect_tx(unsigned barrier, int bytes);
void mbarrier_arrive(unsigned barrier);
void mbarrier_wait(unsigned barrier, int parity);
inline void prefetch_tensor_map(const TensorMap* map) {
  if (map->mark != MAP) fail("this is no map of a matrix");
}
void tma_load(unsigned to, const TensorMap* map, int column, int row, unsigned barrier, u64 hint);
void tma_load(unsigned to, const TensorMap* map, int column, int row, int matrix, unsigned barrier, u64 hint);
void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier);
unsigned map_to_peer(unsigned at, int rank);
void st_async(unsigned to, float a, float b, float c, float d, unsigned barrier);

inline u64 matrix_descriptor(unsigned at, unsigned across = 16) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(across >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
void issue_wgmma(float* s, int count, const char* width, u64 a, const pair_t* held, u64 b, int on);
void wgmma_commit();
void wgmma_wait(int left);
void check_accumulators(const float* s);
#define WGMMA_SS(s, a, b, on, WIDTH, NAMES, SUMS, A, B, ON) issue_wgmma(s, sizeof(s) / 4, WIDTH, a, nullptr, b, on)
#define WGMMA_RS(s, a, b, WIDTH, NAMES, SUMS, A0, A1, A2, A3, B) issue_wgmma(s, sizeof(s) / 4, WIDTH, 0, a, b, 1)
template <int LEFT>
inline void wgmma_wait() { wgmma_wait(LEFT); }
inline void wgmma_fence() {}
template <int N>
inline void fence_accumulators(float (&s)[N]) { check_accumulators(s); }
template <int COUNT>
inline void setmaxnreg_inc() {}
template <int COUNT>
inline void setmaxnreg_dec() {}
