// error: cariama: behind the function of a call with a buffer stands the buffer: a
// std::span<const std::byte>, such as std::as_bytes(std::span(values)), or an RDMAMemory*, an
// offset and a size
#include <span>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, std::span<int> values) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [](void*, uint64_t) {}, values));
#else
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [](void*, uint64_t) {}, std::as_bytes(values)));
#endif
}
