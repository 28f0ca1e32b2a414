// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/task.h"

long example(long n) {
  long sum = 0;
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::task<void> child = cariama::spawn([&] { sum += n; });
  cariama::join(std::move(child));
#else
  // A captured pointer compiles. This one points to a local of the parent, which is wrong:
  // TaskOptions::check_closures finds it when the program runs.
  cariama::task<long> child = cariama::spawn([n, unused = &sum] { return n; });
  sum += cariama::join(std::move(child));
#endif
  return sum;
}
