// error: cariama: the completion of call_return is notified when the result has arrived; for
// another event give on_transmitted(...) | on_consumed(...)
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int& result) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_return<cariama::LocalNotify>(
      fabric, 1, [] { return 1; }, result, done));
#else
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, done));
#endif
}
