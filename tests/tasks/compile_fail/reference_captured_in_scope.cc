// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/parallel.h"

void example(long n) {
  cariama::TaskScope scope;
#ifdef CARIAMA_MUST_NOT_COMPILE
  scope.spawn([&] { static_cast<void>(n); });
#else
  scope.spawn([=] { static_cast<void>(n); });
#endif
  scope.join();
}
