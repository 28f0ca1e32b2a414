// error: cariama: an argument of this call is or contains a pointer (as string literals are), a
// reference, a string_view or a span, which points into the caller's process; pass a value, such as
// a std::string
#include <string>
#include <string_view>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(cariama::call(
      fabric, 1, [](std::string_view) {}, std::string_view("text")));
#else
  static_cast<void>(cariama::call(
      fabric, 1, [](std::string_view) {}, std::string("text")));
#endif
}
