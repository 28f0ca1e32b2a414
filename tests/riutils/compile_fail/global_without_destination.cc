// error: cariama: the destination of a call, a ThreadId such as fabric.thread_of(rank), stands
// before its function
#include "riutils/call.h"

void example(cariama::RDMAMessengerGlobal& messengers, int x) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messengers.call([x] { return x; }));
#else
  static_cast<void>(messengers.call(1, [x] { return x; }));
#endif
}
