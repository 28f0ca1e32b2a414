// error: ignoring return
#include "dsfabric/send_call.h"

#pragma GCC diagnostic error "-Wunused-result"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::call(fabric, 1, [] {});
#else
  static_cast<void>(cariama::call(fabric, 1, [] {}));
#endif
}
