// error: cariama: call_return needs on_consumed(...), which reports that the result has arrived
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int& result) {
  cariama::Synchronizer sent;
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, cariama::on_transmitted(sent)));
#else
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result,
      cariama::on_transmitted(sent) | cariama::on_consumed(done)));
#endif
}
