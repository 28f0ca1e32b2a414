// error: cariama: this function captures by reference ([&] or [&x]), and a reference is an address
// in the caller's process; capture by value, or pass an argument
#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
  int count = 0;
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, 1, [&] { static_cast<void>(count + 1); }));
#else
  static_cast<void>(cariama::call(fabric, 1, [count] { static_cast<void>(count + 1); }));
#endif
}
