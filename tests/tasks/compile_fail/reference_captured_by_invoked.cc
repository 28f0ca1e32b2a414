// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/parallel.h"

void example(long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::parallel_invoke([&n] { static_cast<void>(n); }, [] {});
#else
  cariama::parallel_invoke([n] { static_cast<void>(n); }, [] {});
#endif
}
