// error: cariama: the end of a broadcast comes in answers, which can count a plain Synchronizer
// down; a RemoteObject is for calls to one thread
#include "riutils/broadcast.h"

#ifdef CARIAMA_MUST_NOT_COMPILE
using Done = cariama::RemoteObject<cariama::Synchronizer>;
#else
using Done = cariama::Synchronizer;
#endif

void example(cariama::Fabric& fabric, Done& done) {
  static_cast<void>(cariama::broadcast<cariama::RemoteNotify>(
      fabric, [] {}, done));
}
