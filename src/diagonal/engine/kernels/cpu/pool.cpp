// Threads that share the chunks of one job: whoever is free takes the next chunk, so a thread whose core is busy
// elsewhere takes fewer. Idle threads look for work for a short while, then sleep.

#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto LOOK = std::chrono::microseconds(60);  // for work, before sleeping: longer than between two layers
constexpr int GLANCES = 64;                           // between two readings of the clock
constexpr int PATIENCE = 4096;                        // looks at the last chunk before its thread is offered the core

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

struct Pool {
    std::atomic<int> left{0};      // chunks that nobody has taken
    std::atomic<int> done{0};      // chunks that are finished
    std::atomic<int> sleeping{0};  // threads
    std::mutex door, busy;
    std::condition_variable work;
    // Of the job: written while no chunk is left, read by who has taken one.
    Chunk run = nullptr;
    const void* job = nullptr;
    int chunks = 0;
    std::atomic<int> helpers{0};  // threads that may help with it
    int started = 0;

    bool take() {
        int known = left.load(std::memory_order_acquire);
        while (known > 0)
            if (left.compare_exchange_weak(known, known - 1, std::memory_order_acq_rel)) {
                run(job, chunks - known);
                done.fetch_add(1, std::memory_order_release);
                return true;
            }
        return false;
    }

    bool wanted(int number) { return left.load() > 0 && number < helpers.load(std::memory_order_relaxed); }

    [[noreturn]] void serve(int number) {
        auto until = Clock::now() + LOOK;
        for (int glance = 0;; glance++) {
            if (wanted(number)) {
                while (take()) {}
                until = Clock::now() + LOOK;
            } else if (glance % GLANCES == 0 && Clock::now() > until) {
                std::unique_lock<std::mutex> lock(door);
                sleeping.fetch_add(1);
                work.wait(lock, [&] { return wanted(number); });
                sleeping.fetch_sub(1);
            } else {
                pause();
            }
        }
    }

    void share(int threads, int count, Chunk what, const void* which) {
        while (started < threads - 1) {
            std::thread([this, number = started] { serve(number); }).detach();
            started++;
        }
        run = what, job = which, chunks = count;
        helpers.store(threads - 1, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        left.store(count);
        if (sleeping.load() > 0) {
            std::lock_guard<std::mutex> lock(door);
            work.notify_all();
        }
        while (take()) {}
        for (int looks = 0; done.load(std::memory_order_acquire) < count; looks++)
            if (looks < PATIENCE) pause();
            else sched_yield();
    }
};

std::atomic<Pool*> pool{nullptr};

// Threads do not survive a fork: the child begins with a pool of its own, and leaves the memory of this one alone.
Pool* ours() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
    (void)registered;
    Pool* found = pool.load(std::memory_order_acquire);
    if (found == nullptr) {
        Pool* made = new Pool;
        if (pool.compare_exchange_strong(found, made)) return made;
        delete made;
    }
    return found;
}

}  // namespace

void share(int threads, int chunks, Chunk run, const void* job) {
    if (threads > 1 && chunks > 1) {
        Pool* found = ours();
        std::unique_lock<std::mutex> lock(found->busy, std::try_to_lock);
        if (lock.owns_lock()) {
            found->share(threads, chunks, run, job);
            return;
        }
    }
    // One thread, or the others work for somebody else.
    for (int chunk = 0; chunk < chunks; chunk++) run(job, chunk);
}

float* scratch(int place, long floats) {
    struct Kept {
        float* start = nullptr;
        long size = 0;
        ~Kept() { free(start); }
    };
    thread_local Kept kept[2];
    Kept& one = kept[place];
    if (one.size < floats) {
        free(one.start);
        one.size = (floats + 4095) / 1024 * 1024;
        one.start = static_cast<float*>(aligned_alloc(64, sizeof(float) * one.size));
        if (one.start == nullptr) throw std::bad_alloc();
    }
    return one.start;
}
