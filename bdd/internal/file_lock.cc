#include "bdd/internal/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/regular_file.h"

namespace cariama::bdd::internal {

absl::StatusOr<FileDescriptor> lock_file(const std::string& path, std::string_view in_use) {
  for (;;) {
    // Network file systems lock only files that are open for writing.
    absl::StatusOr<FileDescriptor> file =
        cariama::internal::open_regular_file(path, O_WRONLY | O_CREAT, "cannot create");
    if (!file.ok()) return file.status();
    if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) {
        return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess, in_use);
      }
      report_once("bdd.file_lock",
                  "cannot lock " + path + " (" + std::generic_category().message(errno) +
                      "): a second job that uses it is not refused",
                  "give each job files of its own");
    }
    // The process that had the lock before may have renamed or removed the file.
    struct stat opened {};
    struct stat named {};
    if (::fstat(file->get(), &opened) != 0) {
      return make_errno_error(errno, ErrorScope::kProcess, "cannot read " + path);
    }
    if (::stat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
        named.st_ino == opened.st_ino) {
      return file;
    }
  }
}

}  // namespace cariama::bdd::internal
