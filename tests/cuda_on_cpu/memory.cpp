// Shared memory and what goes on there beside the threads: barriers that count bytes, and copies. And which memory a kernel
// may touch: its compiler calls `__asan_...` for every access.

#include <link.h>

#include <algorithm>
#include <cstring>

#include "block.h"
#include "hopper.cuh"

namespace {

// In shared memory, as a GPU has them: so whoever writes over one breaks it.
struct Barrier {
  u64 mark : 16, phase : 1, count : 12, pending : 12;
  long long bytes : 23;
};
static_assert(sizeof(Barrier) == 8, "");
constexpr unsigned MADE = 0xba22;
constexpr int MOST_BYTES = (1 << 20) - 1;  // that may be under way

Barrier& made(unsigned at, int block) {
  Barrier& found = *(Barrier*)shared_at(at, 8, 8, block);
  if (found.mark != MADE) fail("there is no barrier at %#x", at);
  return found;
}
Barrier& own(unsigned at) {
  if (at >> OFFSET_BITS) fail("a barrier of another block can only be told of bytes");
  return made(at, own_block());
}
void changed(Barrier& one) {
  if (one.bytes > MOST_BYTES || one.bytes < -MOST_BYTES) fail("a barrier waits for %d bytes", (int)one.bytes);
  if (one.pending == 0 && one.bytes == 0) one.phase ^= 1, one.pending = one.count;
}
void arrive_at(Barrier& one) {
  if (one.pending == 0) fail("more threads arrive at a barrier than it waits for");
  one.pending--;
  changed(one);
}

struct Arrival : Work {
  unsigned barrier;
  int block, bytes;
  void arrived() {
    Barrier& one = made(barrier, block);
    one.bytes -= bytes;
    changed(one);
  }
};
struct Fetch : Arrival {
  unsigned to;
  TensorMap map;
  int column, row;
  void run() override {
    const int line = map.box_columns * 2;
    for (int r = 0; r < map.box_rows; r++)
      for (int c = 0; c < line; c += 16) {  // pieces of 16 bytes change places
        unsigned at = to + r * line + c;
        at ^= (at >> 7 & 7) << 4;
        char* piece = shared_at(at, 16, 16, block);
        block_at(block).hidden[(at % (1u << OFFSET_BITS) - FIRST) / PIECE] = false;
        for (int b = 0; b < 16; b += 2) {
          const int from_row = row + r, from_column = column + (c + b) / 2;
          const bool there = from_row >= 0 && from_row < map.rows && from_column >= 0 && from_column < map.columns;
          if (there)
            memcpy(piece + b, map.matrix + ((size_t)from_row * map.columns + from_column) * 2, 2);
          else
            memset(piece + b, 0, 2);
        }
      }
    arrived();
  }
};
struct Copy : Arrival {
  unsigned to;
  const void* from;
  void run() override {
    memcpy(shared_at(to, bytes, 16, block), from, bytes);
    arrived();
  }
};
struct Sent : Arrival {
  unsigned to;
  float numbers[4];
  void run() override {
    memcpy(shared_at(to, bytes, 16, block), numbers, bytes);
    arrived();
  }
};

const char *code_begin, *code_end;  // this library, with its constants

}  // namespace

unsigned address_of(const void* p) {
  const long at = (const char*)p - now->block->memory;
  if (at < 0 || at > launched().shared) fail("an address is asked for of what is not in shared memory");
  return FIRST + at;
}
int block_of(unsigned at) {
  const int other = at >> OFFSET_BITS;
  if (other > cluster) fail("there is no block %d in the cluster", other - 1);
  return other ? other - 1 : own_block();
}
char* shared_at(unsigned at, unsigned bytes, unsigned aligned, int block) {
  const unsigned offset = at & ((1u << OFFSET_BITS) - 1);
  if (at % aligned) fail("an address of shared memory, %#x, is no multiple of %u", at, aligned);
  if (offset < FIRST || offset - FIRST + bytes > launched().shared)
    fail("%u bytes at %#x are not all in the shared memory of %u bytes", bytes, at, launched().shared);
  return block_at(block).memory + offset - FIRST;
}
unsigned map_to_peer(unsigned at, int rank) {
  const unsigned there = at | (unsigned)(rank + 1) << OFFSET_BITS;
  block_of(there);
  return there;
}

void mbarrier_init(unsigned barrier, int arrivals) {
  if (barrier >> OFFSET_BITS || arrivals < 1 || arrivals >= 1 << 12) fail("no barrier of %d at %#x", arrivals, barrier);
  Barrier& one = *(Barrier*)shared_at(barrier, 8, 8, own_block());
  one.mark = MADE, one.phase = 0, one.count = one.pending = arrivals, one.bytes = 0;
}
void mbarrier_expect_tx(unsigned barrier, int bytes) {
  Barrier& one = own(barrier);
  one.bytes += bytes;
  arrive_at(one);
}
void mbarrier_arrive(unsigned barrier) { arrive_at(own(barrier)); }
void mbarrier_wait(unsigned barrier, int parity) {
  const Barrier& one = own(barrier);
  wait_until("a barrier in shared memory", barrier, [&] { return one.phase != (unsigned)parity; });
}

void tma_load(unsigned to, const TensorMap* map, int column, int row, unsigned barrier, u64) {
  if (map->mark != MAP || map->box_count != 1) fail("this is no map of a matrix");
  Fetch* work = new Fetch();
  work->to = to, work->map = *map, work->column = column, work->row = row;
  work->barrier = barrier, work->block = block_of(to), work->bytes = map->box_rows * map->box_columns * 2;
  if (block_of(barrier) != work->block) fail("a barrier of another block");
  if (to % 128) fail("a block of a matrix would come to %#x, which is no multiple of 128", to);
  shared_at(to, work->bytes, 128, work->block);
  const long line = map->columns * 2;
  const int first = std::clamp(row, 0, map->rows), end = std::clamp(row + map->box_rows, 0, map->rows);
  if (end > first) check_global(map->matrix + first * line, (end - first) * line, false);
  start(work, work->block);
}
void tma_load(unsigned to, const TensorMap* map, int column, int row, int matrix, unsigned barrier, u64 hint) {
  if (map->mark != MAP) fail("this is no map of matrices");
  for (int i = 0; i < map->box_count; i++) {
    TensorMap one = *map;
    one.box_count = 1;
    one.matrix += (long)(matrix + i) * map->rows * map->columns * 2;
    if (matrix + i < 0 || matrix + i >= map->count) one.rows = 0;  // nothing but zeros
    tma_load(to + i * map->box_rows * map->box_columns * 2, &one, column, row, barrier, hint);
  }
}
void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
  Copy* work = new Copy();
  work->to = to, work->from = from, work->barrier = barrier, work->block = block_of(to), work->bytes = bytes;
  if (block_of(barrier) != work->block) fail("a barrier of another block");
  if (bytes <= 0 || bytes % 16 || (size_t)from % 16) fail("%d bytes cannot be copied from %p", bytes, from);
  shared_at(to, bytes, 16, work->block);
  check_global(from, bytes, false);
  start(work, work->block);
}
void st_async(unsigned to, float a, float b, float c, float d, unsigned barrier) {
  Sent* work = new Sent();
  work->to = to, work->barrier = barrier, work->block = block_of(to), work->bytes = 16;
  const float numbers[4] = {a, b, c, d};
  memcpy(work->numbers, numbers, 16);
  if (block_of(barrier) != work->block) fail("a barrier of another block");
  start(work, work->block);
}

// Shared memory of fixed size lies with that of variable size in the memory of the block's own thread (kernel.cpp).
void find_shared(Block& block) {
  auto look = [](dl_phdr_info* info, size_t, void* given) {
    Block& block = *(Block*)given;
    const char *first = nullptr, *end = nullptr;
    size_t own = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
      const auto& part = info->dlpi_phdr[i];
      const char* at = (const char*)info->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_LOAD) first = first ? first : at, end = at + part.p_memsz;
      if (part.p_type == PT_TLS) own = part.p_memsz;
    }
    if ((const char*)&code_begin < first || (const char*)&code_begin >= end) return 0;
    code_begin = first, code_end = end;
    block.statics = (char*)info->dlpi_tls_data, block.statics_bytes = own;
    return 1;
  };
  dl_iterate_phdr(look, &block);
}

void check_global(const void* at, long bytes, bool written) {
  const Launch& launch = launched();
  const char *begin = (const char*)at, *end = begin + bytes;
  bool known = false;
  for (int i = 0; i < launch.tensors && !known; i++) known = begin >= launch.tensor[i].begin && end <= launch.tensor[i].end;
  if (!known) fail("%ld bytes are %s that are in none of the kernel's tensors", bytes, written ? "written" : "read");
  if (now->awaited) return;
  if (written) fail("memory is written before the kernel before has ended");
  for (int i = 0; i < launch.fresh; i++)
    if (begin < launch.fresh_one[i].end && end > launch.fresh_one[i].begin)
      fail("what the kernel before writes is read before it has ended");
}

// What threads write the tensor cores see after a fence.
static void hide(unsigned at, long bytes) {
  for (unsigned piece = at / PIECE; piece <= (at + bytes - 1) / PIECE; piece++) {
    now->block->hidden[piece] = true;
    now->unfenced.push_back(piece);
  }
}
void fence_async_proxy() {
  for (unsigned piece : now->unfenced) now->block->hidden[piece] = false;
  now->unfenced.clear();
}

static void check(const void* p, long bytes, bool written) {
  const char* at = (const char*)p;
  auto in = [&](const char* begin, size_t size) { return at >= begin && at + bytes <= begin + size; };
  const Block& block = *now->block;
  const unsigned shared = launched().shared;
  if (in(now->stack.get(), STACK)) return;
  if (in(block.memory, shared)) {
    if (written) hide(at - block.memory, bytes);
  } else if (in(block.memory, ROOM)) {
    fail("%ld bytes at %ld are not in the shared memory of %u bytes", bytes, (long)(at - block.memory), shared);
  } else if (!in(block.statics, block.statics_bytes) && !in(code_begin, code_end - code_begin)) {
    check_global(p, bytes, written);
  }
}

extern "C" {
#define ACCESS(bytes)                                                      \
  void __asan_load##bytes##_noabort(void* at) { check(at, bytes, false); } \
  void __asan_store##bytes##_noabort(void* at) { check(at, bytes, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __asan_loadN_noabort(void* at, long bytes) { check(at, bytes, false); }
void __asan_storeN_noabort(void* at, long bytes) { check(at, bytes, true); }
void __asan_handle_no_return() {}

struct Misaligned {  // as the compiler says it
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char aligned;
};
void __ubsan_handle_type_mismatch_v1(const Misaligned* what, void* at) {
  const char* name = strrchr(what->file, '/');
  fail("%s, line %u: %p is no multiple of %d", name ? name + 1 : what->file, what->line, at, 1 << what->aligned);
}
}
