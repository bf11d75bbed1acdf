// A block of a kernel while it runs, and what is launched.

#pragma once

#include <ucontext.h>

#include <memory>
#include <semaphore>
#include <vector>

#include "machine.h"
#include "wgmma.h"

constexpr unsigned SHARED = 227 * 1024;  // bytes that a block may ask for
constexpr size_t STACK = 128 * 1024;     // of a thread
constexpr unsigned PIECE = 16;           // bytes that copies and the tensor cores take at a time

struct Range {
  const char *begin, *end;
};

struct Launch {  // as `_Launch` of this folder
  unsigned grid[3], threads, shared;
  int late, arguments, tensors, fresh;
  void** given;
  const int* kinds;
  const Range *tensor, *fresh_one;  // what the kernel was given; what the one before it writes
};

struct Block;

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block;
  unsigned thread;
  bool over = false, awaited = false;
  bool (*ready)(const void*) = nullptr;  // nothing: it may go on
  const void* about;
  const char* what = "";
  unsigned number = 0;
  std::vector<unsigned> unfenced;  // pieces of shared memory that it wrote and the tensor cores do not see yet
};

struct Warp {
  Meeting meeting;
  char box[2][32 * 64];
};

struct Block {
  int rank;
  uint3 index;
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Wgmmas>> wgmmas;
  Meeting all, named[16];
  unsigned left;             // threads that have not ended
  char* memory = nullptr;    // shared, of the size that was asked for
  std::vector<bool> hidden;  // pieces of it that the tensor cores do not see
  char* statics = nullptr;   // all that is shared
  size_t statics_bytes = 0;
  ucontext_t turns;
  std::binary_semaphore go{0}, back{0};
  bool end = false;

  Block(int rank, uint3 index, unsigned threads)
      : rank(rank), index(index), fibres(threads), warps(threads / 32), left(threads), hidden(SHARED / PIECE) {
    for (unsigned group = 0; group < (threads + 127) / 128; group++) wgmmas.emplace_back(new Wgmmas());
  }
};

extern const int cluster;  // blocks of one (kernel.cpp)
extern Fibre* now;  // whose turn it is, if it is any's
const Launch& launched();
Block& block_at(int rank);  // of the cluster
void find_shared(Block& block);
