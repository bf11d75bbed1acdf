// One kernel, compiled for a CPU. Set beside its own constants: KERNEL_NAME, its function; KERNEL_CLUSTER, blocks of a cluster;
// and how it declares the shared memory whose size is said when it is launched: MEMORY_TYPE and MEMORY.

#include <utility>

#include "words.h"

#include "kernel.cu"

alignas(1024) thread_local MEMORY_TYPE MEMORY[ROOM / sizeof(MEMORY_TYPE)];

extern const int cluster = KERNEL_CLUSTER;
char* shared_memory() { return (char*)MEMORY; }

#define UNCHECKED __attribute__((no_sanitize_address, no_sanitize_undefined))  // as it is no part of the kernel

// Arguments come as addresses. Kinds are as `_kind` of this folder numbers them.
template <class T>
constexpr int kind_of(T*) { return -1; }
template <class T>
constexpr int kind_of(T) { return sizeof(T); }
constexpr int kind_of(int) { return -2; }
constexpr int kind_of(float) { return -3; }

template <class T>
UNCHECKED static T argument(const void* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}
template <class... Given, size_t... Number>
UNCHECKED static void call_with(void (*kernel)(Given...), void** given, std::index_sequence<Number...>) {
  kernel(argument<Given>(given[Number])...);
}
template <class... Given>
UNCHECKED static void call_with(void (*kernel)(Given...), void** given) {
  call_with(kernel, given, std::index_sequence_for<Given...>());
}
template <class... Given>
UNCHECKED static int check_with(void (*)(Given...), const int* kinds, int count) {
  const int wanted[] = {kind_of(Given())...};
  if (count != sizeof...(Given)) return count;
  for (int i = 0; i < count; i++)
    if (kinds[i] != wanted[i]) return i;
  return -1;
}
void call(void** given) { call_with(KERNEL_NAME, given); }
int wrong_argument(const int* kinds, int count) { return check_with(KERNEL_NAME, kinds, count); }
