#include "dsfabric/launcher/output_queue.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"

namespace cariama::internal {
namespace {

// Opens the pipe or terminal behind `descriptor` once more, without blocking. O_NONBLOCK belongs to
// the open file, which other processes share: setting it on `descriptor` itself would change their
// writes. Returns an invalid descriptor for other kinds of files, and for a descriptor that is open
// for reading only, as a closed stream is (standard_streams.h): writes to it must fail.
FileDescriptor open_again(int descriptor) {
  if ((fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY) return {};
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return {};
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return {};
  return FileDescriptor(open(absl::StrCat("/proc/self/fd/", descriptor).c_str(),
                             O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputQueue::OutputQueue(int descriptor)
    : own_(open_again(descriptor)), descriptor_(own_.valid() ? own_.get() : descriptor) {}

void OutputQueue::append(std::string_view text) {
  if (error_ != 0) return;
  pending_ += text;
  write_some();
}

void OutputQueue::write_some() {
  size_t written = 0;
  while (written < pending_.size()) {
    pollfd room{descriptor_, POLLOUT, 0};
    if (poll(&room, 1, 0) <= 0) break;
    // A pipe with POLLOUT takes PIPE_BUF bytes without blocking, also if it was not opened again.
    const ssize_t count = write(descriptor_, pending_.data() + written,
                                std::min<size_t>(pending_.size() - written, PIPE_BUF));
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      if (errno == EAGAIN) break;
      error_ = errno;
      pending_.clear();
      return;
    }
  }
  pending_.erase(0, written);
}

}  // namespace cariama::internal
