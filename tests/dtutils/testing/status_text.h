// The messages of errors, for matchers.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_STATUS_TEXT_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_STATUS_TEXT_H_

#include <string>

#include "absl/status/status.h"

namespace cariama::testing {

// The message as a string that matchers can take. Empty if `status` is OK.
[[nodiscard]] inline std::string message_of(const absl::Status& status) {
  return std::string(status.message());
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_STATUS_TEXT_H_
