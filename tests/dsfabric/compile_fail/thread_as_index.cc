// error: cariama: a ThreadId is not a ThreadIndex; use fabric.index_of(thread)
#include "dsfabric/fabric.h"

void example(cariama::Fabric& fabric, cariama::ThreadId thread) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  fabric.wake(thread);
#else
  fabric.wake(fabric.index_of(thread));
#endif
}
