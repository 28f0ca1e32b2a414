// error: cariama: behind the function of call_return stand a variable for its result and a
// completion: a Synchronizer, a Future<void> or on_consumed(...)
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int& result) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result));
#else
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, done));
#endif
}
