// error: cariama: put_value() takes a trivially copyable value
#include <string>

#include "dtutils/exchange_connect.h"

absl::Status example(cariama::Exchange& exchange) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::put_value(exchange, "name", std::string("text"));
#else
  return cariama::put_value(exchange, "name", 1);
#endif
}
