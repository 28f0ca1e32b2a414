// error: cariama: a completion stands in the place of the function; the function of a call comes
// first, and its completions stand behind it
#include "riutils/call.h"

void example(cariama::RDMAMessengerGlobal& messengers, cariama::RDMAMemory* memory) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messengers.broadcast_buffer(
      done, [](void*, uint64_t) {}, memory, 0, 8));
#else
  static_cast<void>(messengers.broadcast_buffer([](void*, uint64_t) {}, memory, 0, 8, done));
#endif
}
