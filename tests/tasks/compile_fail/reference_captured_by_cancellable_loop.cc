// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/cancellation.h"

void example(const cariama::CancellationToken& token, long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::parallel_for(token, 0L, n, [&](long i) { static_cast<void>(i < n); });
#else
  cariama::parallel_for(token, 0L, n, [=](long i) { static_cast<void>(i < n); });
#endif
}
