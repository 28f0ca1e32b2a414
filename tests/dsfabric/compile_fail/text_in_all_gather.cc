// error: cariama: collectives take values that are trivially copyable
#include <functional>
#include <string>

#include "dsfabric/collectives.h"

void example(cariama::Collectives& all) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(all.all_gather(std::string(), cariama::kForever));
#else
  static_cast<void>(all.all_gather(1, cariama::kForever));
#endif
}
