// error: cariama: an option of a call is given twice
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(
      cariama::call<cariama::Retry, cariama::Fail>(fabric, fabric.thread_of(1), [] {}));
#else
  static_cast<void>(cariama::call<cariama::Retry>(fabric, fabric.thread_of(1), [] {}));
#endif
}
