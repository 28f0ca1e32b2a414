// error: cariama: call() takes all arguments of the task's function
#include "tasks/pool.h"

long value(long x) { return x; }

long example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::pool::call<value>();
#else
  return cariama::pool::call<value>(1);
#endif
}
