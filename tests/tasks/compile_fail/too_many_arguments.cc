// error: cariama: spawn(f, arguments...) calls f(arguments...), and f cannot be called with these
// arguments
#include "tasks/task.h"

long value(long x) { return x; }

long example(long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::task<long> child = cariama::spawn(value, n, n);
#else
  cariama::task<long> child = cariama::spawn(value, n);
#endif
  return cariama::join(std::move(child));
}
