#include "dtutils/internal/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "dtutils/error.h"

namespace cariama::internal {

absl::StatusOr<FileDescriptor> open_regular_file(const std::string& path, int flags,
                                                 std::string_view what, mode_t mode) {
  const bool creates = (flags & O_CREAT) != 0;
  FileDescriptor file(
      ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | (creates ? O_NOFOLLOW : 0), mode));
  const int error = errno;
  struct stat found {};
  const bool known =
      file.valid() ? ::fstat(file.get(), &found) == 0 : ::stat(path.c_str(), &found) == 0;
  if (known && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      std::string(what) + " " + path + ": it is no regular file",
                      "remove it, or use another name");
  }
  if (!file.valid()) {
    return make_errno_error(error, ErrorScope::kProcess, std::string(what) + " " + path);
  }
  return file;
}

}  // namespace cariama::internal
