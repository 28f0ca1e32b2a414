// error: cariama: this function captures by reference ([&] or [&x]), and a reference is an address
// in the caller's process; capture by value, or pass an argument
#include <vector>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::vector<std::byte>& data) {
  uint64_t sum = 0;
  // A capture that is not a standard-layout class is no reference.
  struct Base {
    uint64_t first = 1;
  };
  struct Pair : Base {
    uint64_t second = 2;
  } pair;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [&sum, pair](void*, uint64_t size) { sum += size + pair.second; }, data));
#else
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [sum, pair](void*, uint64_t size) mutable { sum += size + pair.second; }, data));
#endif
}
