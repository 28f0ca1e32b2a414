// error: cariama: run() takes all arguments of the task's function
#include "tasks/pool.h"

long value(long x) { return x; }

bool example(cariama::TaskPool& pool) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return pool.run<value>().ok();
#else
  return pool.run<value>(1).ok();
#endif
}
