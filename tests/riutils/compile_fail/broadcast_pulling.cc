// error: cariama: a broadcast takes no options but LocalNotify and RemoteNotify
#include "riutils/broadcast.h"

void example(cariama::Fabric& fabric, cariama::RDMAMemory* memory) {
  const auto take = [](void*, uint64_t) {};
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::broadcast_buffer<cariama::Async>(fabric, take, memory, 0, 8));
#else
  static_cast<void>(cariama::broadcast_buffer(fabric, take, memory, 0, 8));
#endif
}
