// error: cariama: collectives take values that are trivially copyable
#include <functional>
#include <string>

#include "dsfabric/collectives.h"

void example(cariama::Collectives& all) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(all.all_reduce(std::string(), std::plus<>(), cariama::kForever));
#else
  static_cast<void>(all.all_reduce(1, std::plus<>(), cariama::kForever));
#endif
}
