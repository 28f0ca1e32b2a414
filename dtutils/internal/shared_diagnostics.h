// Lets the processes of a job on one host write each diagnostic to stderr once together
// (diagnostics.h).
#ifndef CARIAMA_DTUTILS_INTERNAL_SHARED_DIAGNOSTICS_H_
#define CARIAMA_DTUTILS_INTERNAL_SHARED_DIAGNOSTICS_H_

#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

// From now on, this process writes a key to stderr only if no living process that called this
// function with the same `job` has written it. This holds within one network name space, usually
// one host. reported_diagnostics() and sinks are not affected. A later call replaces `job`.
// Requires: `job` has at most 64 bytes; other users of the host can read it. Thread-safe. Cost: one
// file descriptor for each key that this process writes.
CARIAMA_DTUTILS_EXPORT void share_diagnostics(std::string_view job);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SHARED_DIAGNOSTICS_H_
