// error: cariama: a completion stands in the place of the result; the result of call_return stands
// right behind its function
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int& result) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, done, result));
#else
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, done));
#endif
}
