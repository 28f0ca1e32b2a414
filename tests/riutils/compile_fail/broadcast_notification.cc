// error: cariama: LocalNotify and RemoteNotify say when a Synchronizer is counted down; this call
// has none
#include "riutils/messenger_global.h"

void example(cariama::RDMAMessengerGlobal& messengers) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messengers.broadcast<cariama::RemoteNotify>([] {}));
#else
  cariama::Synchronizer done;
  static_cast<void>(messengers.broadcast<cariama::RemoteNotify>([] {}, done));
#endif
}
