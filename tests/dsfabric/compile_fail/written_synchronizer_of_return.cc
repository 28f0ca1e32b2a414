// error: cariama: the result of call_return comes in an answer, which can count a plain
// Synchronizer down; a RemoteObject is for calls without a result
#include "dsfabric/send_call.h"

#ifdef CARIAMA_MUST_NOT_COMPILE
using Done = cariama::RemoteObject<cariama::Synchronizer>;
#else
using Done = cariama::Synchronizer;
#endif

void example(cariama::Fabric& fabric, int& result, Done& done) {
  static_cast<void>(cariama::call_return(
      fabric, 1, [] { return 1; }, result, done));
}
