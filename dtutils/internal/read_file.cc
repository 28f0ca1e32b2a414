#include "dtutils/internal/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

absl::StatusOr<std::string> read_file(const std::string& path, uint64_t most_bytes) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return make_errno_error(errno, ErrorScope::kProcess, "cannot open " + path);
  struct stat found {};
  if (fstat(file.get(), &found) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "cannot read " + path);
  }
  const uint64_t size = S_ISREG(found.st_mode) ? static_cast<uint64_t>(found.st_size) : 0;
  // A file that grows while it is read is endless, too.
  const uint64_t limit = std::max(size, most_bytes);
  std::string bytes;
  try {
    bytes.reserve(size);
    std::array<char, 8192> part;  // a stack may have 64 KiB
    for (;;) {
      const ssize_t got = read(file.get(), part.data(), part.size());
      if (got == 0) return bytes;
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return make_errno_error(errno, ErrorScope::kProcess, "cannot read " + path);
      if (static_cast<uint64_t>(got) > limit - bytes.size()) {
        return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                          path + " is longer than " + format_bytes(limit) +
                              ", the limit for what is not a regular file");
      }
      bytes.append(part.data(), static_cast<size_t>(got));
    }
  } catch (const std::exception&) {  // std::bad_alloc or std::length_error
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "there is no memory for " + path + ", which has " +
                          format_bytes(std::max<uint64_t>(size, bytes.size())) +
                          (size == 0 ? " or more" : ""));
  }
}

}  // namespace cariama::internal
