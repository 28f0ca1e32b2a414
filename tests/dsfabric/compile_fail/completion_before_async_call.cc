// error: cariama: a completion stands in the place of the function; the function of a call comes
// first, and its completions stand behind it
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::async_call(fabric, 1, done, [] { return 1; }));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [] {}, done));
#endif
}
