// The Status of an exception that was caught where data of a peer was decoded.
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCEPTION_ERROR_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCEPTION_ERROR_H_

#include <cerrno>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "dtutils/error.h"

namespace cariama::internal {

// Returns the error of this process if the exception is one (no memory, a failed system call), and
// `malformed` otherwise. `what` is the operation.
[[nodiscard]] inline absl::Status exception_error(const std::exception& error,
                                                  std::string_view what,
                                                  const absl::Status& malformed) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return make_errno_error(ENOMEM, ErrorScope::kProcess, what, "raise ulimit -v and -d");
  }
  if (const auto* const system = dynamic_cast<const std::system_error*>(&error)) {
    return make_errno_error(system->code().value(), ErrorScope::kProcess, what);
  }
  return malformed;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCEPTION_ERROR_H_
