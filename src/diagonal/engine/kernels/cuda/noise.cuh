// The noise of sampling, a number by (seed, position, id) alone: twin of engine/noise.py, which says what it is for.

#pragma once

struct NoiseKey {
  unsigned low, high;
};

__device__ __forceinline__ NoiseKey noise_key(long long seed, long long position) {
  typedef unsigned long long word_t;
  word_t z = (word_t)seed * 0x9E3779B97F4A7C15ull + (word_t)position * 0xD1342543DE82EF95ull + 0x2545F4914F6CDD1Dull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return {(unsigned)z, (unsigned)(z >> 32)};
}

__device__ __forceinline__ unsigned mix32(unsigned h) {
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  return h ^ h >> 16;
}

__device__ __forceinline__ unsigned noise_hash(NoiseKey key, unsigned id) {
  return mix32(mix32(id * 0x9E3779B1u ^ key.low) ^ key.high);
}

// E of a hash: an exponential number.
__device__ __forceinline__ float exponential(unsigned hash) {
  const float v = fminf(((float)hash + 0.5f) * 0x1p-32f, 0x1.fffffep-1f);
  return v < 0x1p-8f ? v * (1.f + v * (0.5f + v * (1.f / 3.f))) : -__logf(1.f - v);
}
