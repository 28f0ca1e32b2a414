// error: cariama: async_call takes no options but Fail, Retry and RetryAsync; its Future is ready
// when the result has arrived
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::async_call<cariama::RemoteNotify>(fabric, 1, [] { return 1; }));
#else
  static_cast<void>(cariama::async_call<cariama::Fail>(fabric, 1, [] { return 1; }));
#endif
}
