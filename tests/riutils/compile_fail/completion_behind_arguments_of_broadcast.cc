// error: cariama: the completion of a broadcast stands right behind its function
#include "riutils/broadcast.h"

void example(cariama::Fabric& fabric, cariama::Synchronizer& done) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::broadcast(
      fabric, [](int) {}, 1, done));
#else
  static_cast<void>(cariama::broadcast(
      fabric, [](int) {}, done, 1));
#endif
}
