// error: cariama: a Rank is not a ThreadId; use fabric.thread_of(rank, index)
#include "riutils/call.h"

void example(cariama::RDMAMessengerGlobal& messenger, const cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messenger.call(fabric.rank(), [] {}));
#else
  static_cast<void>(messenger.call(fabric.thread_of(fabric.rank(), 1), [] {}));
#endif
}
