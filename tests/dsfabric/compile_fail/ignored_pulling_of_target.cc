// error: cariama: this call_buffer WRITEs its buffer to a target; Sync and Async say how the
// destination READs a buffer
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, cariama::RDMAMemory* source,
             const cariama::RemoteMemoryLocator& target) {
  const auto take = [](void*, uint64_t) {};
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer<cariama::Sync>(fabric, 1, take, source, 0, 8, target));
#else
  static_cast<void>(cariama::call_buffer(fabric, 1, take, source, 0, 8, target));
#endif
}
