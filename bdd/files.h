// read_file() and write_file(): whole files.
#ifndef CARIAMA_BDD_FILES_H_
#define CARIAMA_BDD_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/export.h"

namespace cariama::bdd {

// Returns the bytes of a file. Errors: those of open(2) and read(2); NOT_FOUND only if there is no
// such file; RESOURCE_EXHAUSTED (no memory; a pipe or a device with more than 256 MiB).
// Thread-safe.
[[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<std::string> read_file(const std::string& path);

// Replaces a file by `bytes`: writes them to PATH.new, flushes it to the disk, and renames it. If
// the process is killed or the disk is full, the previous file remains. A file that is not a
// regular file (/dev/stdout) is written directly. Errors: those of open(2), write(2), fsync(2) and
// rename(2); UNAVAILABLE if another process is writing PATH.new.
[[nodiscard]] CARIAMA_BDD_EXPORT absl::Status write_file(const std::string& path,
                                                         std::string_view bytes);

// Returns a checksum of the bytes, which is the same on every host. Different bytes have different
// checksums with great probability. The processes of a job use it as the `value` of
// Manager::agree(), to detect that they have read different files. Thread-safe.
[[nodiscard]] CARIAMA_BDD_EXPORT uint64_t checksum(std::string_view bytes);

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_FILES_H_
