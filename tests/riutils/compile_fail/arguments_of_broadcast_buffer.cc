// error: cariama: behind the buffer of broadcast_buffer stand its targets (a span of
// RemoteMemoryLocator), if any, and its completion, if any
#include <cstddef>
#include <cstdint>
#include <span>

#include "riutils/broadcast.h"

void example(cariama::Fabric& fabric, std::span<const std::byte> bytes) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::broadcast_buffer(
      fabric, [](void*, uint64_t) {}, bytes, 1));
#else
  static_cast<void>(cariama::broadcast_buffer(
      fabric, [](void*, uint64_t) {}, bytes));
#endif
}
