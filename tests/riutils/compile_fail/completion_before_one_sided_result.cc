// error: cariama: a completion stands in the place of the function; the function of a call comes
// first, and its completions stand behind it
#include "riutils/call.h"

void example(cariama::RDMAMessenger& messenger, int& result) {
  cariama::Synchronizer done;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(messenger.call_return(
      done, [] { return 1; }, result));
#else
  static_cast<void>(messenger.call_return([] { return 1; }, result, done));
#endif
}
