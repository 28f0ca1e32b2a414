// error: cariama: a Rank is not a ThreadId; use fabric.thread_of(rank, index)
#include "riutils/call.h"

void example(cariama::ThreadContext& self, const cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  const cariama::RDMAMessenger messenger(self, fabric.rank());
#else
  const cariama::RDMAMessenger messenger(self, fabric.thread_of(fabric.rank()));
#endif
}
