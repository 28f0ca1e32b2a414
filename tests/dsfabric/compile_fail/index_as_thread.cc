// error: cariama: a ThreadIndex is not a ThreadId; use fabric.thread_of(rank, index)
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const cariama::ThreadContext& self) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  auto answer = cariama::async_call(fabric, self.index(), [] { return 1; });
#else
  auto answer =
      cariama::async_call(fabric, fabric.thread_of(fabric.rank(), self.index()), [] { return 1; });
#endif
}
