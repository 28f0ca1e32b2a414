// error: cariama: the function of a call with a buffer takes (void* buffer, uint64_t size)
#include <vector>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::vector<std::byte>& data) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [](const std::byte*) {}, data));
#else
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [](void*, uint64_t) {}, data));
#endif
}
