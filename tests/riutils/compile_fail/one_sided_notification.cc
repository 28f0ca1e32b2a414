// error: cariama: LocalNotify and RemoteNotify say when a Synchronizer is counted down; this call
// has none
#include "riutils/messenger_global.h"

void example(cariama::RDMAAggregatorGlobal& aggregators) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(aggregators.call<cariama::RemoteNotify>(
      1, [](int) {}, 5));
#else
  static_cast<void>(aggregators.call(
      1, [](int) {}, 5));
#endif
}
