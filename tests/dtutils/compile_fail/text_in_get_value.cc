// error: cariama: get_value() returns a trivially copyable value
#include <string>

#include "dtutils/exchange_connect.h"

bool example(cariama::Exchange& exchange) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::get_value<std::string>(exchange, 1, "name", {}).ok();
#else
  return cariama::get_value<int>(exchange, 1, "name", {}).ok();
#endif
}
