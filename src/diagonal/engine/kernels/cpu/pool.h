// Threads that share the chunks of one job.
#pragma once

using Chunk = void (*)(const void* job, int chunk);

void share(int threads, int chunks, Chunk run, const void* job);

// Calls `job(chunk)` for every chunk, by up to so many threads, in any order; returns when all are done.
template <class Job>
void parallel(int threads, int chunks, const Job& job) {
    share(threads, chunks, [](const void* which, int chunk) { (*static_cast<const Job*>(which))(chunk); }, &job);
}

// Memory of a calling thread that is kept for its next call; place 0 or 1, for calls that need two.
float* scratch(int place, long floats);
