// Errors of set-up and of accounting: what broke, how far the damage reaches, and the remedy.
//
// Everything that may fail before data flows returns absl::Status or absl::StatusOr. The message is
// one sentence that names the operation and the peer and ends with what to do:
//
//   memlock is 64 KiB, a 2 MiB chunk needs more: raise ulimit -l
//
// A Status built here also carries its scope, so that a caller knows what has to be rebuilt without
// parsing text (the grouping follows UCX's status codes). The data path does not return Status: it
// reports through completions (completion.h), which turn into a Status with to_status().
#ifndef CARIAMA_DTUTILS_ERROR_H_
#define CARIAMA_DTUTILS_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// The largest thing that broke.
enum class ErrorScope {
  kNone,       // the Status is OK, or was not built by Cariama
  kOperation,  // this call or transfer only: everything else goes on
  kLink,       // the queue pair: repair() it, nothing else is touched
  kPeer,       // the peer process: every queue pair to it fails
  kProcess,    // this process or its machine: device, memory, limits
};

// The scope's name in lower case: "operation", "link", "peer", "process", "none".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view scope_name(ErrorScope scope);

// Builds a Status. `what` says what failed and why; `remedy` what the user can do ("" if nothing).
// The message is "what: remedy". Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status make_error(absl::StatusCode code,
                                                             ErrorScope scope,
                                                             std::string_view what,
                                                             std::string_view remedy = {});

// As make_error, for a failed system or verbs call: the code follows from `error_number` (ENOMEM →
// RESOURCE_EXHAUSTED, EPERM/EACCES → PERMISSION_DENIED, ...), the message is "what: strerror:
// remedy".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status make_errno_error(int error_number,
                                                                   ErrorScope scope,
                                                                   std::string_view what,
                                                                   std::string_view remedy = {});

// The scope a Status was built with; kNone if it is OK or comes from elsewhere.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT ErrorScope error_scope(const absl::Status& status);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ERROR_H_
