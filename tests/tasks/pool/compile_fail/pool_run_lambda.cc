// error: cariama: a pool task is a function with a name, given as a template argument:
// run<f>(arguments...), Children<f>
#include "tasks/pool.h"

long value(long x) { return x; }

bool example(cariama::TaskPool& pool) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return pool.run([] { return value(1); }).ok();
#else
  return pool.run<value>(1).ok();
#endif
}
