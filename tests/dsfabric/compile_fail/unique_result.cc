// error: cariama: the result of this call cannot travel: it is a reference, a view or a unique_ptr
// (return a value), or neither trivially copyable nor known to cereal (give its type a serialize()
// member)
#include <memory>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::async_call(fabric, 1, [] { return std::make_unique<int>(1); }));
#else
  static_cast<void>(cariama::async_call(fabric, 1, [] { return 1; }));
#endif
}
