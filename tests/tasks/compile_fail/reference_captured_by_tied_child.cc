// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/task.h"

long example(long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::task<long> child = cariama::spawn_tied([&n] { return n; });
#else
  cariama::task<long> child = cariama::spawn_tied([n] { return n; });
#endif
  return cariama::join(std::move(child));
}
