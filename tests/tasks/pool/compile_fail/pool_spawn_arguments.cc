// error: cariama: spawn() takes all arguments of the task's function
#include "tasks/pool.h"

long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<value>();
#else
  cariama::pool::spawn<value>(1);
#endif
}
