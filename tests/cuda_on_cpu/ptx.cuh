// What the kernels' ptx.cuh says in a GPU's assembler, in C++.

#pragma once

#include "words.h"

typedef unsigned short bf16_t;
typedef unsigned int pair_t;

inline float half_of(pair_t v, int which) { return __uint_as_float(which ? v & 0xffff0000u : v << 16); }

inline void launch_dependents() {}
inline void wait_for_previous_kernel() { kernel_before_has_ended(); }

inline unsigned to_bfloat16(float v) {  // the nearest, of two the even one
  const unsigned bits = __float_as_uint(v);
  return std::isnan(v) ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline pair_t pack_bf16(float lo, float hi) { return to_bfloat16(lo) | to_bfloat16(hi) << 16; }
inline unsigned to_float16(float v) {
  const unsigned sign = __float_as_uint(v) >> 16 & 0x8000u;
  if (std::isnan(v)) return 0x7fffu;
  int exponent;
  const float size = fabsf(v);
  std::frexp(size, &exponent);
  const int unit = size > 0 ? max(exponent - 11, -24) : -24;  // the power of 2 of its last bit
  const float whole = std::nearbyint(std::ldexp(size, -unit));
  if (std::isinf(v) || std::ldexp(whole, unit) >= 65536.f) return sign | 0x7c00u;
  // As many units as it has, the first bit of which is the exponent's last one.
  return sign | (unsigned)(whole + (unit + 24) * 1024);
}
inline pair_t pack_fp16(float lo, float hi) { return to_float16(lo) | to_float16(hi) << 16; }
inline float exp2_approx(float x) { return x < -126 ? 0 : exp2f(x); }
inline pair_t mul_pair(pair_t a, pair_t b) {
  return pack_bf16(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
inline pair_t max_pair(pair_t a, pair_t b) {
  pair_t out = 0;
  for (int i = 0; i < 2; i++) out |= __float_as_uint(fmaxf(half_of(a, i), half_of(b, i))) >> 16 << 16 * i;
  return out;
}
inline bool any_greater(pair_t a, pair_t b) { return half_of(a, 0) > half_of(b, 0) || half_of(a, 1) > half_of(b, 1); }
inline void make_opaque(pair_t&) {}

inline uint4 load_once(const bf16_t* p) { return *(const uint4*)p; }
inline uint4 load_written(const bf16_t* p) { return *(const uint4*)p; }

// Lane 4 * r + c has columns 2 * c and 2 * c + 1 of row r, of 8 x 8 numbers: of a in rows and sums, of b in columns.
struct Fragment {
  pair_t a[4], b[2];
};
inline void mma(float* c, pair_t a0, pair_t a1, pair_t a2, pair_t a3, pair_t b0, pair_t b1) {
  Fragment of_all[32];
  all_lanes(0xffffffffu, Fragment{{a0, a1, a2, a3}, {b0, b1}}, of_all);
  for (int i = 0; i < 4; i++) {
    const int row = own_lane() / 4, column = own_lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const int lane = k % 8 / 2, half = k / 8;
      c[i] += half_of(of_all[row * 4 + lane].a[half * 2 + i / 2], k % 2) * half_of(of_all[column * 4 + lane].b[half], k % 2);
    }
  }
}
inline pair_t transpose_8x8(pair_t v) {
  pair_t of_all[32];
  all_lanes(0xffffffffu, v, of_all);
  const int row = own_lane() / 4, column = own_lane() % 4 * 2;
  auto at = [&](int r, int c) { return of_all[r * 4 + c / 2] >> c % 2 * 16 & 0xffffu; };
  return at(column, row) | at(column + 1, row) << 16;
}
