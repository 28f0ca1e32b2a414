// A lock file: at most one process has it locked at a time.
#ifndef CARIAMA_BDD_INTERNAL_FILE_LOCK_H_
#define CARIAMA_BDD_INTERNAL_FILE_LOCK_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::bdd::internal {

// Creates the file if it does not exist, locks it, and returns a descriptor that is open for
// writing. The file stays locked until the descriptor is closed. The kernel unlocks the file when
// the process dies; the file remains. Does not block. On a file system without locks, reports this
// once, and returns the descriptor without a lock. Errors: UNAVAILABLE with the text `in_use` if
// another process has locked the file; those of open(2).
[[nodiscard]] absl::StatusOr<FileDescriptor> lock_file(const std::string& path,
                                                       std::string_view in_use);

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_FILE_LOCK_H_
