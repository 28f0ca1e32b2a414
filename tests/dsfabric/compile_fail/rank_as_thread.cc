// error: cariama: a Rank is not a ThreadId; use fabric.thread_of(rank, index)
#include "dsfabric/process.h"  // its overloads must add no error
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, fabric.rank(), [] {}));
#else
  static_cast<void>(cariama::call(fabric, fabric.thread_of(fabric.rank()), [] {}));
#endif
}
