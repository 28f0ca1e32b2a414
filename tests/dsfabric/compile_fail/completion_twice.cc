// error: cariama: each event of a call has at most one completion
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
  cariama::Synchronizer one;
  cariama::Synchronizer other;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, cariama::on_consumed(one) | cariama::on_consumed(other)));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, cariama::on_consumed(one) | cariama::on_transmitted(other)));
#endif
}
