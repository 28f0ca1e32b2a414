// error: cariama: the arguments of a pool task exceed pool::kPayloadBytes: put them into global
// memory and pass a global_ptr
#include <array>

#include "tasks/pool.h"

long large(const std::array<long, 13>& values) { return values[0]; }
long small(const std::array<long, 12>& values) { return values[0]; }

void example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::pool::spawn<large>(std::array<long, 13>{});
#else
  cariama::pool::spawn<small>(std::array<long, 12>{});
#endif
}
