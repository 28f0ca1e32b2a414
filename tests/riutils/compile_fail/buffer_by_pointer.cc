// error: cariama: behind the function of a call with a buffer stands the buffer: a
// std::span<const std::byte>, such as std::as_bytes(std::span(values)), or an RDMAMemory*, an
// offset and a size
#include <span>
#include <vector>

#include "riutils/call.h"

void example(cariama::RDMAMessengerGlobal& messengers, std::vector<int>& values) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messengers.call_buffer(
      1, [](void*, uint64_t) {}, values.data(), values.size()));
#else
  static_cast<void>(messengers.call_buffer(
      1, [](void*, uint64_t) {}, std::as_bytes(std::span(values))));
#endif
}
