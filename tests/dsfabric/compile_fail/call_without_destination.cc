// error: cariama: the destination of a call, a ThreadId such as fabric.thread_of(rank), stands
// before its function
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, int x) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, [x] { return x; }));
#else
  static_cast<void>(cariama::call(fabric, 1, [x] { return x; }));
#endif
}
