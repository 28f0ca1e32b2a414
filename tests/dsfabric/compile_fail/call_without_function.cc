// error: cariama: a function stands behind the destination of a call
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, fabric.thread_of(1)));
#else
  static_cast<void>(cariama::call(fabric, fabric.thread_of(1), [] {}));
#endif
}
