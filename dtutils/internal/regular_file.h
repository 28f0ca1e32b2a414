// Opens files that this process owns without waiting for another process.
#ifndef CARIAMA_DTUTILS_INTERNAL_REGULAR_FILE_H_
#define CARIAMA_DTUTILS_INTERNAL_REGULAR_FILE_H_

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// Opens a regular file with `flags` of open(2), and with `mode` less the umask if it creates one.
// Unlike open(2), does not block if the path names a FIFO. A file that is to be created is not
// the target of a link. `what` begins the error of open(2) ("cannot create"). Thread-safe. Errors:
// those of open(2), FAILED_PRECONDITION (the path names no regular file).
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<FileDescriptor> open_regular_file(
    const std::string& path, int flags, std::string_view what, mode_t mode = 0666);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_REGULAR_FILE_H_
