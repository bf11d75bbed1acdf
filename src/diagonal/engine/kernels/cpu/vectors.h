// Vectors as wide as the machine has them, by the vector extensions of GCC and clang.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

constexpr int BLOCK = 64;          // slots of the cache that are looked at together, as visibility.py has them
constexpr float UNSEEN = -1e30f;   // the score of a key that a query does not see

INLINE Vec load(const float* from) {
    Vec made;
    memcpy(&made, from, sizeof made);
    return made;
}

INLINE void store(float* to, Vec value) { memcpy(to, &value, sizeof value); }

INLINE Vec all(float value) { return value - Vec{}; }

INLINE Vec greater(Vec a, Vec b) { return a > b ? a : b; }

typedef uint16_t BFloat16;  // the upper half of a float32

INLINE float widen(BFloat16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}

// Round to the nearest bfloat16, ties to even.
INLINE BFloat16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return BFloat16((bits >> 16) | 64);
    return BFloat16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE float rounded(float value) { return widen(narrow(value)); }

// LANES numbers of some type as float32.
INLINE Vec load_wide(const float* from) { return load(from); }

INLINE Vec load_wide(const BFloat16* from) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return reinterpret_cast<Vec>(_mm512_slli_epi32(bits, 16));
#elif defined(__AVX2__)
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Vec>(_mm256_slli_epi32(bits, 16));
#else
    Vec made;
    for (int lane = 0; lane < LANES; lane++) made[lane] = widen(from[lane]);
    return made;
#endif
}

INLINE Vec load_wide(const int8_t* from) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(whole));
#elif defined(__AVX2__)
    const __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(whole));
#else
    Ints whole;
    for (int lane = 0; lane < LANES; lane++) whole[lane] = from[lane];
    return __builtin_convertvector(whole, Vec);
#endif
}

// exp(x), to about 2 units in the last place; arguments are held between -87 and 88.
INLINE Vec exponential(Vec x) {
    constexpr float NEAREST = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    x = greater(x, all(-87.0f));
    x = x < all(88.0f) ? x : all(88.0f);
    const Vec shifted = x * 1.44269504088896341f + NEAREST, whole = shifted - NEAREST;
    const Vec rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    Vec sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return sum * reinterpret_cast<Vec>(power);
}

// log(x) of positive normal numbers, to about 1 unit in the last place.
INLINE Vec logarithm(Vec x) {
    const Ints bits = reinterpret_cast<Ints>(x);
    const Vec half = reinterpret_cast<Vec>((bits & 0x007fffff) | 0x3f000000);  // the mantissa, in [1/2, 1)
    const auto low = half < all(0.707106781186547524f);
    const Vec power = __builtin_convertvector((bits >> 23) - 126, Vec) - (low ? all(1.0f) : Vec{});
    const Vec rest = (low ? half + half : half) - 1.0f;
    Vec sum = all(7.0376836292e-2f);
    sum = sum * rest - 1.1514610310e-1f;
    sum = sum * rest + 1.1676998740e-1f;
    sum = sum * rest - 1.2420140846e-1f;
    sum = sum * rest + 1.4249322787e-1f;
    sum = sum * rest - 1.6668057665e-1f;
    sum = sum * rest + 2.0000714765e-1f;
    sum = sum * rest - 2.4999993993e-1f;
    sum = sum * rest + 3.3333331174e-1f;
    sum = sum * rest * rest * rest - power * 2.12194440e-4f - 0.5f * rest * rest;
    return sum + rest + power * 0.693359375f;
}

INLINE Vec silu(Vec x) { return x / (1.0f + exponential(-x)); }

// The tanh form of GELU: x * sigmoid(2 u), as 1 + tanh(u) is 2 sigmoid(2 u).
INLINE Vec gelu(Vec x) {
    const Vec u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-2.0f * u));
}

// Numbers that come as float32 or bfloat16.
struct Numbers {
    const void* start;
    bool half;

    float at(int64_t index) const {
        return half ? widen(static_cast<const BFloat16*>(start)[index]) : static_cast<const float*>(start)[index];
    }
};

struct Results {
    void* start;
    bool half;

    void put(int64_t index, float value) const {
        if (half) static_cast<BFloat16*>(start)[index] = narrow(value);
        else static_cast<float*>(start)[index] = value;
    }
};

// Whole numbers that come as int32 or int64.
struct Whole {
    const void* start;
    bool wide;

    int64_t at(int64_t index) const {
        return wide ? static_cast<const int64_t*>(start)[index] : static_cast<const int32_t*>(start)[index];
    }
};
