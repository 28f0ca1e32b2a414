// error: cariama: the end of a transfer takes a Synchronizer or a Future<void> by reference, or a
// callback that takes a const absl::Status&
#include "dsfabric/global_memory.h"

void example(cariama::GlobalMemory& memory, cariama::global_ptr<int> word) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(memory.rput(1, word).notify(cariama::Synchronizer()));
#else
  static_cast<void>(memory.rput(1, word).notify([](const absl::Status&) {}));
#endif
}
