// error: cariama: a pool task is a function with a name, given as a template argument:
// run<f>(arguments...), Children<f>
#include "tasks/pool.h"

long value(long x) { return x; }

long example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::Children<[](long x) { return value(x); }> children;
#else
  cariama::pool::Children<value> children;
#endif
  children.spawn(1);
  return children.sync();
}
