// Errors of set-up and of accounting: the failed operation, the scope of the failure, and the
// remedy.
//
// Every function that may fail before data flows returns absl::Status or absl::StatusOr. The
// message is one sentence that names the operation and the peer and ends with the remedy:
//
//   memlock is 64 KiB, a 2 MiB chunk needs more: raise ulimit -l
//
// A Status built here also carries its scope, so that a caller knows which object has to be rebuilt
// without parsing text (the grouping follows UCX's status codes). The scope is a payload, which
// ToString() prints: [cariama.dtutils/error_scope='peer']. The data path does not return
// Status: it reports through completions (completion.h), which to_status() converts to a Status.
#ifndef CARIAMA_DTUTILS_ERROR_H_
#define CARIAMA_DTUTILS_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// The largest unit that failed.
enum class ErrorScope {
  kNone,       // the Status is OK, or was not built by Cariama
  kOperation,  // this call or transfer only; later ones can succeed
  kLink,       // the queue pair: repair() it; nothing else is affected
  kPeer,       // the peer process: every queue pair to it fails
  kProcess,    // this process or its machine: device, memory, limits
};

// Returns the scope's name in lower case: "operation", "link", "peer", "process", "none".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view scope_name(ErrorScope scope);

// Builds a Status. `what` states the failure and its cause, `remedy` the action that the user can
// take ("" if there is none). The message is "what: remedy". Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status make_error(absl::StatusCode code,
                                                             ErrorScope scope,
                                                             std::string_view what,
                                                             std::string_view remedy = {});

// Builds a Status for a failed system or verbs call. The code follows from `error_number` (ENOMEM →
// RESOURCE_EXHAUSTED, EPERM/EACCES → PERMISSION_DENIED, ...). The message is "what: strerror:
// remedy". Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status make_errno_error(int error_number,
                                                                   ErrorScope scope,
                                                                   std::string_view what,
                                                                   std::string_view remedy = {});

// Returns the scope with which a Status was built, or kNone if it is OK or was not built by
// Cariama.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT ErrorScope error_scope(const absl::Status& status);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ERROR_H_
