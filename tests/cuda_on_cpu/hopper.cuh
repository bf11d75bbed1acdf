// What the kernels' hopper.cuh says in a GPU's assembler, in C++ (memory.cpp, tensor_cores.cpp).

#pragma once

#include "assembler.cuh"

typedef unsigned long long u64;

struct alignas(64) Map {  // as `tensor_map` of this folder writes it
  const char* matrix;
  int count, rows, columns, box_count, box_rows, box_columns;  // matrices, and of each
  unsigned mark;
  char nothing[128 - 36];
};
constexpr unsigned MAP = 0x5ca1ab1e;

constexpr u64 ONCE = 0x12F0000000000000ull, USUAL = 0x10F0000000000000ull, AGAIN = 0x14F0000000000000ull;

inline unsigned address(const void* p) { return address_of(p); }
void init(unsigned barrier, int arrivals);
inline void barriers_made() {}
void fence_for_tensor_cores();
void expect(unsigned barrier, int bytes);
void arrive(unsigned barrier);
void await(unsigned barrier, int parity);
inline void ready(const Map* map) {
  if (map->mark != MAP) fail("this is no map of a matrix");
}
void fetch(unsigned to, const Map* map, int column, int row, unsigned barrier, u64 hint);
void fetch(unsigned to, const Map* map, int column, int row, int matrix, unsigned barrier, u64 hint);
void copy(unsigned to, const void* from, int bytes, unsigned barrier);
unsigned at_other(unsigned at, int program);
void send(unsigned to, float a, float b, float c, float d, unsigned barrier);

inline u64 place(unsigned at, unsigned across = 16) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(across >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
void ask_product(float* s, int count, const char* width, u64 a, const pair_t* held, u64 b, int on);
void asked_products();
void await_products(int left);
void check_settled(const float* s);
#define MULTIPLY(s, a, b, on, WIDTH, NAMES, SUMS, A, B, ON) ask_product(s, sizeof(s) / 4, WIDTH, a, nullptr, b, on)
#define MIX(s, a, b, WIDTH, NAMES, SUMS, A0, A1, A2, A3, B) ask_product(s, sizeof(s) / 4, WIDTH, 0, a, b, 1)
template <int LEFT>
inline void await_products() { await_products(LEFT); }
inline void before_products() {}
template <int N>
inline void settled(float (&s)[N]) { check_settled(s); }
template <int COUNT>
inline void more_registers() {}
template <int COUNT>
inline void fewer_registers() {}
