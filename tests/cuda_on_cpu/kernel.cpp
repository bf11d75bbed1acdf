// One kernel, compiled for a CPU. Set: NAME, its function; CLUSTER, blocks of a cluster; and how it declares
// the shared memory whose size is said when it is launched: TYPE and PLACE.

#include <utility>

#include "words.h"

#include "kernel.cu"

constexpr unsigned ROOM = 256 * 1024;
alignas(1024) thread_local TYPE PLACE[ROOM / sizeof(TYPE)];

extern const int cluster = CLUSTER;
char* shared_memory() { return (char*)PLACE; }

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
void call(void** given) { call_with(NAME, given); }
int wrong_argument(const int* kinds, int count) { return check_with(NAME, kinds, count); }
