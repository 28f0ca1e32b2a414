// error: cariama: the function of this call_return has another result type than the object that
// the result is stored into
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, cariama::Synchronizer& done) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  long result = 0;
  static_cast<void>(cariama::call_return(
      fabric, fabric.thread_of(1), [] { return 1; }, result, done));
#else
  int result = 0;
  static_cast<void>(cariama::call_return(
      fabric, fabric.thread_of(1), [] { return 1; }, result, done));
#endif
}
