// Wgmmas of four warps (wgmma): asked for now, there when they are awaited.

#include <cstdlib>
#include <cstring>

#include "block.h"
#include "hopper.cuh"

namespace {

constexpr int ROWS = 64, DEPTH = 16, THREADS = 128;

// Where a matrix lies: rows of 128 bytes, whose 16-byte pieces change places by the bits of the address above.
struct Place {
  unsigned start, leading, stride;
  explicit Place(u64 bits)
      : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {
    if (bits & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 1ull << 62) || !(bits >> 62 & 1))
      fail("%#llx says of no matrix where it lies", bits);
  }
  const bf16_t* piece(unsigned offset, int block) const {  // of eight numbers
    unsigned at = start + offset;
    at ^= (at >> 7 & 7) << 4;
    const char* found = shared_at(at, PIECE, PIECE, block);
    if (block_at(block).hidden[(at - FIRST) / PIECE])
      fail("threads wrote what is at %#x, and the tensor cores do not see it", at);
    return (const bf16_t*)found;
  }
};

float number(bf16_t bits) { return half_of(bits, 0); }

// Numbers that are summed over lie side by side.
void read(const Place& place, int rows, int block, float* to, int across, int down) {
  for (int row = 0; row < rows; row++)
    for (int half = 0; half < 2; half++) {
      const bf16_t* piece = place.piece(row / 8 * place.stride + row % 8 * 128 + half * 16, block);
      for (int i = 0; i < 8; i++) to[row * down + (half * 8 + i) * across] = number(piece[i]);
    }
}
// Those that are not lie side by side.
void read_turned(const Place& place, int columns, int block, float* to, int across) {
  for (int k = 0; k < DEPTH; k++)
    for (int column = 0; column < columns; column += 8) {
      const unsigned offset = column / 64 * place.leading + k / 8 * place.stride + k % 8 * 128 + column % 64 * 2;
      const bf16_t* piece = place.piece(offset, block);
      for (int i = 0; i < 8; i++) to[k * across + column + i] = number(piece[i]);
    }
}

// Which sum a thread's number i is.
int row_of(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

void multiply(const Issued* (&all)[THREADS], int block) {
  static float a[ROWS][DEPTH], b[DEPTH][256], sums[ROWS][256];
  const Issued& first = *all[0];
  const int width = first.width;
  for (const Issued* one : all)
    if (one->width != width || one->a != first.a || one->b != first.b || one->on != first.on || !one->held != !first.held)
      fail("threads issue different wgmmas");
  if (first.held) {
    for (int thread = 0; thread < THREADS; thread++)
      for (int i = 0; i < 8; i++)
        a[row_of(thread, i)][column_of(thread, i)] = half_of(all[thread]->held[i / 2], i % 2);
    read_turned(Place(first.b), width, block, b[0], 256);
  } else {
    read(Place(first.a), ROWS, block, a[0], 1, DEPTH);
    read(Place(first.b), width, block, b[0], 256, 1);
  }
  for (int thread = 0; thread < THREADS; thread++)
    for (int i = 0; i < width / 2; i++)
      sums[row_of(thread, i)][column_of(thread, i)] = first.on ? all[thread]->sums[i] : 0;
  for (int row = 0; row < ROWS; row++)
    for (int k = 0; k < DEPTH; k++)
      for (int column = 0; column < width; column++) sums[row][column] += a[row][k] * b[k][column];
  for (int thread = 0; thread < THREADS; thread++)
    for (int i = 0; i < width / 2; i++) all[thread]->sums[i] = sums[row_of(thread, i)][column_of(thread, i)];
}

void finish(Wgmmas& wgmmas, size_t left) {
  while (wgmmas.groups[0].size() > left) {
    const size_t count = wgmmas.groups[0].front().size();
    for (auto& groups : wgmmas.groups)
      if (groups.empty() || groups.front().size() != count) fail("threads issue different wgmmas");
    for (size_t i = 0; i < count; i++) {
      const Issued* all[THREADS];
      for (int thread = 0; thread < THREADS; thread++) all[thread] = &wgmmas.groups[thread].front()[i];
      multiply(all, own_block());
    }
    for (auto& groups : wgmmas.groups) groups.pop_front();
  }
}

}  // namespace

void issue_wgmma(float* s, int count, const char* width, u64 a, const pair_t* held, u64 b, int on) {
  if (atoi(width) != 2 * count || count % 4 || count > 128) fail("%d sums of a thread are no wgmma %s wide", count, width);
  own_wgmmas().open[now->thread % THREADS].push_back({s, 2 * count, a, b, held, on});
}
void wgmma_commit() {
  Wgmmas& wgmmas = own_wgmmas();
  const int thread = now->thread % THREADS;
  wgmmas.groups[thread].push_back(std::move(wgmmas.open[thread]));
  wgmmas.open[thread].clear();
  if (!late()) meet(wgmmas.meeting, THREADS, "wgmma_commit", [&] { finish(wgmmas, 0); });
}
void wgmma_wait(int left) {
  Wgmmas& wgmmas = own_wgmmas();
  meet(wgmmas.meeting, THREADS, "wgmma_wait", [&] { finish(wgmmas, left); });
}
void check_accumulators(const float* s) {
  Wgmmas& wgmmas = own_wgmmas();
  for (auto& group : wgmmas.groups[now->thread % THREADS])
    for (auto& one : group)
      if (one.sums == s) fail("sums are used before they are there");
}
