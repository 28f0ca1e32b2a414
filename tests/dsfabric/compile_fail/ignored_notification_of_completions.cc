// error: cariama: on_transmitted() and on_consumed() name the events; LocalNotify and RemoteNotify
// are for a single Synchronizer
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call<cariama::RemoteNotify>(
      fabric, 1, [] {}, cariama::on_consumed(done)));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, cariama::on_consumed(done)));
#endif
}
