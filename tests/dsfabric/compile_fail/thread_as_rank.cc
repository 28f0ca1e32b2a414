// error: cariama: a ThreadId is not a Rank; use fabric.rank_of(thread)
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const cariama::ThreadContext& self) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::service_call(fabric, self.global_id(), [] {}));
#else
  static_cast<void>(cariama::service_call(fabric, fabric.rank_of(self.global_id()), [] {}));
#endif
}
