// error: cariama: LocalNotify and RemoteNotify say when a Synchronizer is counted down; this call
// has none
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [](int) {}, 5));
#else
  cariama::Synchronizer done;
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [](int) {}, done, 5));
#endif
}
