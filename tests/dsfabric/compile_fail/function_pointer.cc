// error: cariama: the address of a function is valid in the caller's process only; pass a lambda
// that calls the function
#include "dsfabric/send_call.h"

void work() {}

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, 1, &work));
#else
  static_cast<void>(cariama::call(fabric, 1, [] { work(); }));
#endif
}
