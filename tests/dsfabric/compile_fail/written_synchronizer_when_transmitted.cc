// error: cariama: the destination counts a RemoteObject down, when it has run the call: give
// RemoteNotify or on_consumed()
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, cariama::RemoteObject<cariama::Synchronizer>& done) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, done));
#else
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [] {}, done));
#endif
}
