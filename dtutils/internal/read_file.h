// Reads a whole file that a user has named.
#ifndef CARIAMA_DTUTILS_INTERNAL_READ_FILE_H_
#define CARIAMA_DTUTILS_INTERNAL_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtutils/export.h"

namespace cariama::internal {

// Returns the bytes of a file. Reads at most `most_bytes` from a pipe or a device, which may be
// endless. A regular file may have any size for which there is memory. Blocks until the writer of a
// pipe has closed it. Thread-safe. Errors: those of open(2) and read(2); NOT_FOUND only if there is
// no such file; RESOURCE_EXHAUSTED if the limit or the memory does not suffice.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<std::string> read_file(const std::string& path,
                                                                           uint64_t most_bytes);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_READ_FILE_H_
