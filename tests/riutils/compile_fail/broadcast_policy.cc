// error: cariama: a broadcast takes no options but LocalNotify and RemoteNotify
#include "riutils/broadcast.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::broadcast<cariama::RetryAsync>(fabric, [] {}));
#else
  static_cast<void>(cariama::broadcast(fabric, [] {}));
#endif
}
