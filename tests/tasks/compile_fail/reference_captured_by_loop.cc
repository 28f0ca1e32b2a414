// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include <functional>

#include "tasks/parallel.h"

void example(long n) {
  long sum = 0;
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::parallel_for(0L, n, [&](long i) { sum += i; });
#else
  sum = cariama::parallel_reduce(
      0L, n, 0L, [](long i) { return i; }, std::plus<>());
#endif
  static_cast<void>(sum);
}
