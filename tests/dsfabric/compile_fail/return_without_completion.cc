// error: cariama: behind the result of call_return stands its completion: a Synchronizer, a
// Future<void> or on_consumed(...)
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int& result) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, 5));
#else
  cariama::Synchronizer done;
  static_cast<void>(cariama::call_return(
      fabric, 1, [](int x) { return x; }, result, done, 5));
#endif
}
