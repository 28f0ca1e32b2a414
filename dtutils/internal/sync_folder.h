// Makes a rename durable.
#ifndef CARIAMA_DTUTILS_INTERNAL_SYNC_FOLDER_H_
#define CARIAMA_DTUTILS_INTERNAL_SYNC_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama::internal {

// Writes the folder of `path` to its disk (fsync): a rename is on the disk when the folder is.
// Blocks. Thread-safe. Errors: those of open(2) and fsync(2).
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status sync_folder_of(const std::string& path);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SYNC_FOLDER_H_
