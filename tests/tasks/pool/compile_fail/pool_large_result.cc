// error: cariama: the result of a pool task exceeds pool::kPayloadBytes: put it into global
// memory and return a global_ptr
#include <array>

#include "tasks/pool.h"

struct Large {
  std::array<long, 13> words;
};
Large large(long x) { return {{x}}; }
long value(long x) { return x; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<large>(1);
#else
  cariama::pool::spawn<value>(1);
#endif
}
