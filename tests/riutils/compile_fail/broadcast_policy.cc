// error: cariama: Fail, Retry and RetryAsync do not apply to broadcasts
#include "riutils/broadcast.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::broadcast<cariama::RetryAsync>(fabric, [] {});
#else
  cariama::broadcast(fabric, [] {});
#endif
}
