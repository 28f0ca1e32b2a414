#include "dtutils/internal/sync_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "dtutils/error.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

absl::Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid() || ::fsync(opened.get()) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "cannot write the folder of " + path + " to its disk (fsync)");
  }
  return absl::OkStatus();
}

}  // namespace cariama::internal
