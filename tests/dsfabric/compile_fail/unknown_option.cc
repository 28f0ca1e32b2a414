// error: cariama: the options of a call are LocalNotify or RemoteNotify; Fail, Retry or
// RetryAsync; Sync or Async
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call<7>(fabric, fabric.thread_of(1), [] {}));
#else
  static_cast<void>(cariama::call<>(fabric, fabric.thread_of(1), [] {}));
#endif
}
