// error: cariama: a Rank, a ThreadId and a ThreadIndex do not compare; convert one by
// fabric.rank_of(), thread_of() or index_of()
#include "dsfabric/fabric.h"

bool example(const cariama::Fabric& fabric, const cariama::ThreadContext& self) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return fabric.rank() == self.global_id();
#else
  return fabric.rank() == fabric.rank_of(self.global_id());
#endif
}
