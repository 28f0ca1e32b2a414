// error: cariama: the result of a pool task is not plain data that another process can use: return
// a trivially copyable value, and put large data into global memory
#include <string>

#include "tasks/pool.h"

std::string text(long x) { return std::to_string(x); }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<text>(1);
#else
  cariama::pool::spawn<value>(1);
#endif
}
