// error: cariama: this function or argument of a task refers to a variable of the caller ([&], [&x]
// or std::ref), which may be in another process when the task uses it; capture and pass values, and
// return results
#include "tasks/runtime.h"

bool example(cariama::TaskRuntime& runtime, long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return runtime.run([&] { return n; }).ok();
#else
  return runtime.run([=] { return n; }).ok();
#endif
}
