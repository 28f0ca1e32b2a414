// The Status of an exception that was caught, or of an error for whose text there is no memory.
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

// Returns make(), or the error `code` without a text if make() finds no memory. For operations that
// have failed and must end in any case. Throws no std::bad_alloc.
template <typename Make>
[[nodiscard]] absl::Status error_or_code(absl::StatusCode code, const Make& make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return absl::Status(code, {});  // does not allocate
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCEPTION_ERROR_H_
