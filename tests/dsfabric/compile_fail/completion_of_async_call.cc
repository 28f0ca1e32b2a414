// error: cariama: async_call takes no completion: its Future is one
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, cariama::Synchronizer& done) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::async_call(
      fabric, fabric.thread_of(1), [] { return 1; }, done));
#else
  static_cast<void>(cariama::async_call(fabric, fabric.thread_of(1), [] { return 1; }));
  static_cast<void>(done);
#endif
}
