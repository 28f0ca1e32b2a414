// error: cariama: a ThreadId is not a Rank; use fabric.rank_of(thread)
#include "dsfabric/remote_memory.h"

void example(cariama::Fabric& fabric, const cariama::ThreadContext& self) {
  cariama::GlobalAddress place;
#ifdef CARIAMA_MUST_NOT_COMPILE
  place.rank = self.global_id();
#else
  place.rank = fabric.rank_of(self.global_id());
#endif
  static_cast<void>(cariama::locator_of(fabric, place, 8));
}
