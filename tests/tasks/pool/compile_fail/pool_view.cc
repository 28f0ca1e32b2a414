// error: cariama: an argument of a pool task is not plain data that another process can use: pass
// trivially copyable values and global_ptr, no pointers, views or references
#include <span>

#include "tasks/pool.h"

long first(std::span<const long> values) { return values[0]; }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  const long values[1] = {1};
  cariama::pool::spawn<first>(std::span(values));
#else
  cariama::pool::spawn<value>(1);
#endif
}
