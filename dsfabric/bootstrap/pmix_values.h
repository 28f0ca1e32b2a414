// The values that PMIx gives to the processes of a job that it started: their place in the job, and
// the text that rank 0 publishes for the other ranks.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_PMIX_VALUES_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_PMIX_VALUES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"

namespace cariama::internal {

// Returns OK if a process can be number `rank` of `size` processes, else FAILED_PRECONDITION. PMIx
// has special values of ranks, and sizes beyond those of an int.
[[nodiscard]] absl::Status check_place_in_job(uint32_t rank, uint32_t size);

// Where the store of a job listens, and the secret of the job.
struct PublishedStore {
  SocketAddress address;
  JobSecret key{};
};

// Returns "ADDRESS KEY", the key in hexadecimal digits.
[[nodiscard]] std::string encode_published_store(const PublishedStore& store);
// Returns "!REASON": rank 0 has no store.
[[nodiscard]] std::string encode_no_store(std::string_view reason);
// Returns the store that a text names. Errors: UNAVAILABLE with the reason if rank 0 has no store,
// FAILED_PRECONDITION if the text is none of these.
[[nodiscard]] absl::StatusOr<PublishedStore> decode_published_store(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_PMIX_VALUES_H_
