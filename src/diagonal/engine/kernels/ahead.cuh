// What later kernels read of a matrix, while this one has nothing else to read: the first `lines` of each of its `segments`,
// `stride` bytes apart (cuda.ahead). A thread fetches its share.
struct Ahead {
  const char* from;
  int segments, stride, lines;
};
__device__ __forceinline__ void fetch_ahead(const Ahead& ahead, int thread, int threads) {
#pragma unroll 1
  for (int i = thread; i < ahead.segments * ahead.lines; i += threads)
    prefetch(ahead.from + (size_t)(i / ahead.lines) * ahead.stride + i % ahead.lines * 128);
}
