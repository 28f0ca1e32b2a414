// error: cariama: a completion stands in the place of the function; the function of a call comes
// first, and its completions stand behind it
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, std::span<const std::byte> buffer) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call_buffer(
      fabric, 1, done, [](void*, uint64_t) {}, buffer));
#else
  static_cast<void>(cariama::call_buffer(
      fabric, 1, [](void*, uint64_t) {}, buffer, done));
#endif
}
