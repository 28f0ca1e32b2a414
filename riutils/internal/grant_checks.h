// Checks of the requests for chunks and of the grants (service_forms.h). Each process checks a form
// of its peer before it uses a field of the form. The functions access no memory but their
// arguments.
#ifndef CARIAMA_RIUTILS_INTERNAL_GRANT_CHECKS_H_
#define CARIAMA_RIUTILS_INTERNAL_GRANT_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "riutils/internal/service_forms.h"

namespace cariama::internal {

// Receiver: returns true if the receiver can execute a request of process `rank`. `threads` is the
// number of threads of each process. `granted` is the number of chunks of the channel that the
// request names, if the channel exists, without a chunk that the requested ones replace.
[[nodiscard]] bool is_possible(const ChunkRequest& request, uint32_t rank, uint32_t threads,
                               std::optional<size_t> granted);

// Sender: returns OK if the grant `answer` contains from one to `count` chunks, as requested, and
// each of them has `chunk_bytes` bytes and is aligned. Errors: the receiver's refusal. UNAVAILABLE
// if the answer is malformed; then the receiver has chunks that the sender does not use, so the
// channel ends. `receiver` names the receiver in error texts. Requires: count <=
// ChunkRequest::kMost.
[[nodiscard]] absl::Status check_grant(const ChunkAnswer& answer, uint32_t count,
                                       uint64_t chunk_bytes, const std::string& receiver);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_GRANT_CHECKS_H_
