#include "bdd/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "dtutils/error.h"
#include "dtutils/file_descriptor.h"

namespace cariama::bdd {
namespace {

absl::Status file_error(const std::string& what) {
  return make_errno_error(errno, ErrorScope::kProcess, what);
}

absl::Status write_all(const std::string& path, std::string_view bytes, bool flush) {
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode_t{0666}));
  if (!file.valid()) return file_error("cannot create " + path);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error("cannot write " + path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (flush && ::fsync(file.get()) != 0) {
    return file_error("cannot flush " + path + " to its disk");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> read_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return file_error("cannot open " + path);
  std::string bytes;
  std::array<char, 1 << 16> part;
  for (;;) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got == 0) return bytes;
    if (got > 0) {
      bytes.append(part.data(), static_cast<size_t>(got));
    } else if (errno != EINTR) {
      return file_error("cannot read " + path);
    }
  }
}

absl::Status write_file(const std::string& path, std::string_view bytes) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return write_all(path, bytes, false);
  }
  const std::string fresh = path + ".new";
  absl::Status written = write_all(fresh, bytes, true);
  if (written.ok() && std::rename(fresh.c_str(), path.c_str()) != 0) {
    written = file_error("cannot rename " + fresh);
  }
  if (!written.ok()) {
    ::unlink(fresh.c_str());
    return written;
  }
  // The rename is on the disk when the folder is.
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid() || ::fsync(opened.get()) != 0) {
    return file_error("cannot flush the folder of " + path + " to its disk");
  }
  return absl::OkStatus();
}

}  // namespace cariama::bdd
