// error: cariama: a pool task cannot change its caller's variables: return a value instead of
// taking a reference that is not const
#include "tasks/pool.h"

void add(long& sum, long x) { sum += x; }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  long sum = 0;
  cariama::pool::spawn<add>(sum, 1L);
#else
  cariama::pool::spawn<value>(1);
#endif
}
