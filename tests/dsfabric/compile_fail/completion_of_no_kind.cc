// error: cariama: an event of a call takes a Synchronizer or a Future<void> by reference, or a
// callback that takes a const absl::Status&
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, cariama::on_consumed([](int) {})));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, cariama::on_consumed([](const absl::Status&) {})));
#endif
}
