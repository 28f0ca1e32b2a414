// error: cariama: an argument of a pool task is not plain data that another process can use: pass
// trivially copyable values and global_ptr, no pointers, views or references
#include <functional>

#include "tasks/pool.h"

long value_of(std::reference_wrapper<const long> x) { return x; }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  const long x = 1;
  cariama::pool::spawn<value_of>(std::cref(x));
#else
  cariama::pool::spawn<value>(1);
#endif
}
