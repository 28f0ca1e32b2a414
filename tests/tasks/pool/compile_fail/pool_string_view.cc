// error: cariama: an argument of a pool task is not plain data that another process can use: pass
// trivially copyable values and global_ptr, no pointers, views or references
#include <string_view>

#include "tasks/pool.h"

size_t length(std::string_view text) { return text.size(); }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<length>("text");
#else
  cariama::pool::spawn<value>(1);
#endif
}
