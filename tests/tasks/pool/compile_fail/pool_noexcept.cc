// error: cariama: a pool task is noexcept, but a run that cannot be completed unwinds its tasks by
// an exception: declare the function without noexcept
#include "tasks/pool.h"

long value(long x) noexcept { return x; }
long throwing(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<value>(1);
#else
  cariama::pool::spawn<throwing>(1);
#endif
}
