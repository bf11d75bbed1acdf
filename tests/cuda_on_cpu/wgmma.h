// Wgmmas that four warps have asked the tensor cores for.

#pragma once

#include <deque>
#include <vector>

#include "machine.h"

struct Issued {
  float* sums;  // of one thread
  int width;
  unsigned long long a, b;
  const unsigned* held;  // a in registers instead
  int on;
};
struct Wgmmas {
  Meeting meeting;
  std::vector<Issued> open[128];                // of each thread, not yet a group
  std::deque<std::vector<Issued>> groups[128];
};
