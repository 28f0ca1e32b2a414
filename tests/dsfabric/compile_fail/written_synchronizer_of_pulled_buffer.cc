// error: cariama: an unregistered buffer that is READ (Sync, Async) is released by an answer, which
// can count a plain Synchronizer down; a RemoteObject is for registered memory
#include <vector>

#include "dsfabric/send_call.h"

#ifdef CARIAMA_MUST_NOT_COMPILE
using Done = cariama::RemoteObject<cariama::Synchronizer>;
#else
using Done = cariama::Synchronizer;
#endif

void example(cariama::Fabric& fabric, const std::vector<std::byte>& data, Done& done) {
  const auto take = [](void*, uint64_t) {};
  static_cast<void>(
      cariama::call_buffer<cariama::Sync, cariama::RemoteNotify>(fabric, 1, take, data, done));
}
