// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include <functional>

#include "tasks/parallel.h"

long example(long n, long factor) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::parallel_reduce(
      0L, n, 0L, [&](long i) { return factor * i; }, std::plus<>());
#else
  return cariama::parallel_reduce(
      0L, n, 0L, [=](long i) { return factor * i; }, std::plus<>());
#endif
}
