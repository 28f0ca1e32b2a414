// error: cariama: this function captures something that is not trivially copyable; pass it as an
// argument of call() instead of capturing it
#include <string>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::string& name) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(fabric, 1, [name] { static_cast<void>(name.size()); }));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [](const std::string& given) { static_cast<void>(given.size()); }, name));
#endif
}
