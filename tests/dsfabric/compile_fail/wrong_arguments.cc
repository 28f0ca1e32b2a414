// error: cariama: the function cannot be called with these arguments (they arrive as values)
#include <string>

#include "dsfabric/send_call.h"

void example(cariama::Fabric& fabric, const std::string& name) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  const auto function = [](int number) { static_cast<void>(number); };
#else
  const auto function = [](const std::string& text) { static_cast<void>(text); };
#endif
  static_cast<void>(cariama::call(fabric, 1, function, name));
}
