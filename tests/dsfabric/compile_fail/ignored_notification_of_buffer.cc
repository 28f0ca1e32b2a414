// error: cariama: LocalNotify and RemoteNotify say when a Synchronizer is counted down; this call
// has none
#include <vector>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::vector<std::byte>& data) {
  const auto take = [](void*, uint64_t) {};
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(
      cariama::call_buffer<cariama::Sync, cariama::RemoteNotify>(fabric, 1, take, data));
#else
  cariama::Synchronizer done;
  static_cast<void>(
      cariama::call_buffer<cariama::Sync, cariama::RemoteNotify>(fabric, 1, take, data, done));
#endif
}
