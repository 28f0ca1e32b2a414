// error: cariama: collectives take values that are trivially copyable
#include <functional>
#include <string>

#include "dsfabric/collectives.h"

void example(cariama::Collectives& all) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  std::string text;
  static_cast<void>(all.broadcast(text, 0, cariama::kForever));
#else
  int number = 1;
  static_cast<void>(all.broadcast(number, 0, cariama::kForever));
#endif
}
