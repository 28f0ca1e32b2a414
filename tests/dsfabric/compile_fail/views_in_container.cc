// error: cariama: an argument of this call is or contains a pointer (as string literals are), a
// reference, a string_view or a span, which points into the caller's process; pass a value, such as
// a std::string
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/send_call.h"

#ifdef CARIAMA_MUST_NOT_COMPILE
using Text = std::string_view;
#else
using Text = std::string;
#endif

void example(cariama::Fabric& fabric, const std::vector<std::optional<Text>>& texts) {
  static_cast<void>(cariama::call(
      fabric, 1, [](const std::vector<std::optional<Text>>&) {}, texts));
}
