// error: cariama: Sync and Async say how call_buffer READs its buffer; this call READs none
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call<cariama::Async>(fabric, 1, [] {}));
#else
  static_cast<void>(cariama::call<cariama::RetryAsync>(fabric, 1, [] {}));
#endif
}
