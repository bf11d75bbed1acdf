// A multiprocessor on a CPU, as far as kernels see it: threads that wait for each other, and memory that they share.
//
// A thread of a kernel is a fibre; the fibres of a block take turns, each as far as the next place where it has to wait. All
// that a kernel may call is a function of words.h (what CUDA C++ has), ptx.cuh or hopper.cuh (the kernels' own).
// A mistake ends the launch (`fail`), and so does waiting for what never comes.

#pragma once

#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx, blockDim, gridDim;  // of the fibre whose turn it is

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// `ready` is asked again and again, until it says yes. `what` and `number` are for the message if it never does.
void wait_until(const char* what, unsigned number, bool (*ready)(const void*), const void* about);
template <class Ready>
void wait_until(const char* what, unsigned number, const Ready& ready) {
  wait_until(what, number, [](const void* about) { return (*(const Ready*)about)(); }, &ready);
}

// Threads that go on once all of them are there.
struct Meeting {
  int come = 0, round = 0;
  const char* what = nullptr;
};
bool last_to_come(Meeting& meeting, int count, const char* what);
void go_on(Meeting& meeting);
void await_others(Meeting& meeting);
template <class Do>
void meet(Meeting& meeting, int count, const char* what, const Do& last) {  // who comes last does what is to be done
  if (!last_to_come(meeting, count, what)) return await_others(meeting);
  last();
  go_on(meeting);
}
void meet_block();
void cluster_sync();
void named_barrier_sync(int number, int threads);
void meet_warp(const void* own, int bytes, void* of_all);  // what each lane has, for all

// Work that goes on beside the threads, for memory of one block of the cluster: done at once, or as late as possible.
struct Work {
  virtual void run() = 0;
  virtual ~Work() = default;
};
void start(Work* work, int block);
bool late();

// Shared memory has addresses of 32 bits: an offset, and above it which block of the cluster is meant, 0 for one's own.
constexpr int OFFSET_BITS = 24;
constexpr unsigned FIRST = 1024;       // so that 0 is no address
constexpr unsigned ROOM = 256 * 1024;  // more than any block may have
unsigned address_of(const void* p);
char* shared_at(unsigned at, unsigned bytes, unsigned aligned, int block);
int block_of(unsigned at);  // of the cluster
int own_block();

// Of a thread: it must be in a tensor that the kernel was given; and before the thread has waited for the kernel before, in
// one that this one has not written.
void check_global(const void* at, long bytes, bool written);
void kernel_before_has_ended();

// The wgmmas of a warpgroup (tensor_cores.cpp).
struct Wgmmas;
Wgmmas& own_wgmmas();
