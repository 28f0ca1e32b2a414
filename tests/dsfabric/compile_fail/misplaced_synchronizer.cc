// error: cariama: the completion of a call stands right behind its function
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::Synchronizer done;
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [](int) {}, 5, done));
#else
  cariama::Synchronizer done;
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [](int) {}, done, 5));
#endif
}
