// agree(): one outcome for all processes, after a step that each process executes by itself.
//
//   absl::Status read = read_my_file();                         // may fail in some processes only
//   if (absl::Status all = agree(collectives, read, "no table", deadline); !all.ok()) return all;
//
// Without agree(), a process whose step failed would leave, and the other processes would wait for
// it in their next collective function.
#ifndef CARIAMA_DHT_AGREEMENT_H_
#define CARIAMA_DHT_AGREEMENT_H_

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dht/export.h"
#include "dsfabric/collectives.h"
#include "dtutils/wait.h"

namespace cariama {

// Returns OK if `mine` is OK and `value` is equal in all processes. Collective; blocks. Errors:
// DEADLINE_EXCEEDED (the operation is still in progress, also if `mine` is an error); `mine`;
// UNAVAILABLE (`what`, and the text of the failed process with the lowest rank, or the label of a
// dead process), but RESOURCE_EXHAUSTED if that process failed with it; FAILED_PRECONDITION
// (`what`: the value of a process differs from that of rank 0); further errors of Collectives.
[[nodiscard]] CARIAMA_DHT_EXPORT absl::Status agree(Collectives& all, const absl::Status& mine,
                                                    std::string_view what, Deadline deadline,
                                                    uint64_t value = 0);

// Returns the error of a step of one process, on which all processes are going to agree:
// UNAVAILABLE instead of DEADLINE_EXCEEDED, which means that the agreement is in progress.
[[nodiscard]] CARIAMA_DHT_EXPORT absl::Status of_one_process(const absl::Status& mine);

// Returns the Status that step() returns, or that of the exception that it throws, so that the
// processes can agree on it: RESOURCE_EXHAUSTED with the text `no_memory` for std::bad_alloc,
// UNAVAILABLE with its text for std::runtime_error.
template <typename Step>
[[nodiscard]] absl::Status status_of(std::string_view no_memory, Step step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(std::string(no_memory));
  } catch (const std::runtime_error& error) {
    return absl::UnavailableError(error.what());
  }
}

}  // namespace cariama

#endif  // CARIAMA_DHT_AGREEMENT_H_
