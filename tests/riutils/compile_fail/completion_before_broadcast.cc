// error: cariama: a completion stands in the place of the function; the function of a call comes
// first, and its completions stand behind it
#include "riutils/call.h"

void example(cariama::Fabric& fabric) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::broadcast(fabric, done, [] {}));
#else
  static_cast<void>(cariama::broadcast(
      fabric, [] {}, done));
#endif
}
