// error: cariama: behind the buffer of call_buffer stand its target (a RemoteMemoryLocator), if
// any, and its completion, if any: a Synchronizer, a Future<void>, or on_transmitted(...) |
// on_consumed(...)
#include <vector>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::vector<std::byte>& data) {
  const auto take = [](void*, uint64_t) {};
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer(fabric, 1, take, data, &done));
#else
  static_cast<void>(cariama::call_buffer(fabric, 1, take, data, done));
#endif
}
