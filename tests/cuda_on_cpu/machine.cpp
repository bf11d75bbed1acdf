// Launches: blocks, their fibres, and whose turn it is (machine.h).

#include "machine.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "block.h"

// Of the kernel (kernel.cpp).
char* shared_memory();
void call(void** given);
int wrong_argument(const int* kinds, int count);

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

struct Mistake {};

struct Underway {
  std::unique_ptr<Work> work;
  int block;
};

Launch asked;
std::string problem;
std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
std::vector<Underway> under_way;
Meeting all_blocks;
int waits;
std::minstd_rand chance;

void fibre() {
  call(asked.given);
  now->over = true;
  now->block->left--;
  swapcontext(&now->context, &now->block->turns);
}

// One of so many: always the first, or any where things are to come late and in no order.
unsigned any_of(unsigned count) { return asked.late ? chance() % count : 0; }

bool may_go_on(const Fibre& one) { return !one.over && (!one.ready || one.ready(one.about)); }
bool may_go_on(const Block& block) {
  return std::any_of(block.fibres.begin(), block.fibres.end(), [](const Fibre& one) { return may_go_on(one); });
}

// As far as each of the block's fibres gets.
void take_turns(Block& block) {
  const int count = block.fibres.size(), first = any_of(count);
  for (int i = 0; i < count && problem.empty(); i++) {
    Fibre& one = block.fibres[(first + i) % count];
    if (!may_go_on(one)) continue;
    now = &one, threadIdx = {one.thread, 0, 0}, blockIdx = block.index;
    swapcontext(&block.turns, &one.context);
    now = nullptr;
  }
}

// A block has a thread of the CPU, since its shared memory is that thread's own. One of them runs at a time.
void live(Block& block) {
  block.go.acquire();
  block.memory = shared_memory();
  find_shared(block);
  memset(block.statics, 0xff, block.statics_bytes);  // NaN, and whole numbers that are no good either
  for (unsigned thread = 0; thread < asked.threads; thread++) {
    Fibre& one = block.fibres[thread];
    one.block = &block, one.thread = thread, one.stack.reset(new char[STACK]);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.get(), one.context.uc_stack.ss_size = STACK;
    one.context.uc_link = nullptr;
    makecontext(&one.context, fibre, 0);
  }
  block.back.release();
  for (block.go.acquire(); !block.end; block.go.acquire()) {
    while (problem.empty() && may_go_on(block)) take_turns(block);
    block.back.release();
  }
  block.back.release();
}
void turn_of(Block& block) { block.go.release(), block.back.acquire(); }

std::string who_waits() {
  std::map<std::string, int> waiting;
  for (auto& block : blocks)
    for (auto& one : block->fibres)
      if (!one.over) {
        char text[200];
        snprintf(text, sizeof text, "%s (%#x)", one.what, one.number);
        waiting[text]++;
      }
  std::string out;
  for (auto& [what, count] : waiting) out += (out.empty() ? "" : ", ") + std::to_string(count) + " for " + what;
  return out;
}

// As far as the fibres of all blocks get.
void take_all_turns() {
  for (bool moved = true; moved && problem.empty();) {
    moved = false;
    for (auto& block : blocks)
      if (may_go_on(*block)) turn_of(*block), moved = true;
  }
}

// Some of the work that goes on beside threads, until one of them may go on.
void work_late() {
  for (bool enough = false; !enough && !under_way.empty();) {
    std::swap(under_way[any_of(under_way.size())], under_way.back());
    const Underway next = std::move(under_way.back());
    under_way.pop_back();
    if (blocks[next.block]->left == 0) fail("block %d of a cluster ends before all has come that was asked for", next.block);
    next.work->run();
    enough = may_go_on(*blocks[next.block]);
  }
}

bool all_over() {
  return std::all_of(blocks.begin(), blocks.end(), [](const auto& block) { return block->left == 0; });
}

void run_cluster(uint3 first) {
  blocks.clear(), under_way.clear(), all_blocks = Meeting();
  std::vector<std::thread> lives;
  for (int rank = 0; rank < cluster; rank++) {
    blocks.emplace_back(new Block(rank, {first.x + rank, first.y, first.z}, asked.threads));
    lives.emplace_back(live, std::ref(*blocks.back()));
    turn_of(*blocks.back());  // its memory is there
  }
  try {
    for (take_all_turns(); problem.empty() && !(all_over() && under_way.empty()); take_all_turns()) {
      if (under_way.empty()) fail("threads wait forever: %s", who_waits().c_str());
      work_late();
    }
  } catch (Mistake) {
  }
  for (int rank = 0; rank < cluster; rank++) {
    blocks[rank]->end = true;
    turn_of(*blocks[rank]);
    lives[rank].join();
  }
}

}  // namespace

Fibre* now;

void fail(const char* format, ...) {
  char text[1000];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  if (problem.empty()) {
    problem = text;
    if (now) problem += " (thread " + std::to_string(now->thread) + " of block " + std::to_string(blockIdx.x) + ")";
  }
  if (!now) throw Mistake();
  swapcontext(&now->context, &now->block->turns);  // its turn never comes again
  __builtin_unreachable();
}

void wait_until(const char* what, unsigned number, bool (*ready)(const void*), const void* about) {
  if (ready(about)) return;
  now->what = what, now->number = number, now->ready = ready, now->about = about;
  swapcontext(&now->context, &now->block->turns);
  now->ready = nullptr;
}

bool last_to_come(Meeting& meeting, int count, const char* what) {
  if (meeting.come > 0 && strcmp(meeting.what, what)) fail("some threads meet for %s, others for %s", meeting.what, what);
  meeting.what = what;
  return ++meeting.come == count;
}
void go_on(Meeting& meeting) { meeting.come = 0, meeting.round++; }
void await_others(Meeting& meeting) {
  const int round = meeting.round;
  wait_until(meeting.what, 0, [&] { return meeting.round != round; });
}
void meet_block() {
  if (now->thread == 0) waits++;
  meet(now->block->all, asked.threads, "__syncthreads", [] {});
}
void named_barrier_sync(int number, int threads) {
  if (number < 1 || number > 15 || threads % 32) fail("no barrier %d of %d threads", number, threads);
  meet(now->block->named[number], threads, "a named barrier", [] {});
}
void cluster_sync() { meet(all_blocks, asked.threads * cluster, "the cluster", [] {}); }
void meet_warp(const void* own, int bytes, void* of_all) {
  Warp& warp = now->block->warps[now->thread / 32];
  // The next round has the other box: who is in the round after that has been waited for by all who read this one.
  char* box = warp.box[warp.meeting.round % 2];
  if (bytes * 32 > (int)sizeof warp.box[0]) fail("%d bytes are too many for a lane", bytes);
  memcpy(box + now->thread % 32 * bytes, own, bytes);
  meet(warp.meeting, 32, "lanes of a warp", [] {});
  memcpy(of_all, box, 32 * bytes);
}

bool late() { return asked.late; }
void start(Work* work, int block) {
  std::unique_ptr<Work> own(work);
  if (asked.late) return under_way.push_back({std::move(own), block});
  if (blocks[block]->left == 0) fail("block %d of the cluster has ended", block);
  work->run();
}
int own_block() { return now->block->rank; }
Block& block_at(int rank) { return *blocks[rank]; }
const Launch& launched() { return asked; }
Wgmmas& own_wgmmas() { return *now->block->wgmmas[now->thread / 128]; }
void kernel_before_has_ended() { now->awaited = true; }

extern "C" const char* launch(const Launch* given) {
  asked = *given, problem.clear(), waits = 0, now = nullptr, chance.seed(asked.late);
  blockDim = {asked.threads, 1, 1}, gridDim = {asked.grid[0], asked.grid[1], asked.grid[2]};
  try {
    const int wrong = wrong_argument(asked.kinds, asked.arguments);
    if (wrong >= 0) fail("argument %d of %d is not what the kernel takes", wrong, asked.arguments);
    if (asked.shared > SHARED) fail("%u bytes of shared memory are too many", asked.shared);
    if (asked.threads < 32 || asked.threads > 1024 || asked.threads % 32) fail("%u threads", asked.threads);
    if (gridDim.x % cluster) fail("%u blocks are no whole clusters of %d", gridDim.x, cluster);
  } catch (Mistake) {
  }
  for (unsigned z = 0; z < gridDim.z; z++)
    for (unsigned y = 0; y < gridDim.y; y++)
      for (unsigned x = 0; x < gridDim.x && problem.empty(); x += cluster) run_cluster({x, y, z});
  blocks.clear(), under_way.clear();
  return problem.empty() ? nullptr : problem.c_str();
}
extern "C" int waited() { return waits; }
