#include "bdd/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "bdd/internal/byte_reader.h"
#include "bdd/internal/file_lock.h"
#include "dtutils/error.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/read_file.h"
#include "dtutils/internal/sync_folder.h"

namespace cariama::bdd {
namespace {

absl::Status file_error(const std::string& what) {
  return make_errno_error(errno, ErrorScope::kProcess, what);
}

// A file that is not a regular file may be endless. Models of the literature have up to some 10
// MiB.
constexpr uint64_t kMostOfStream = uint64_t{256} << 20;

absl::Status write_all(const FileDescriptor& file, const std::string& path,
                       std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error("cannot write " + path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status write_fresh(const FileDescriptor& file, const std::string& path,
                         std::string_view bytes) {
  // A process that was killed may have left a part of a file.
  if (::ftruncate(file.get(), 0) != 0) return file_error("cannot write " + path);
  if (absl::Status written = write_all(file, path, bytes); !written.ok()) return written;
  if (::fsync(file.get()) != 0) return file_error("cannot write " + path + " to its disk (fsync)");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> read_file(const std::string& path) {
  return cariama::internal::read_file(path, kMostOfStream);
}

absl::Status write_file(const std::string& path, std::string_view bytes) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.valid()) return file_error("cannot open " + path);
    return write_all(file, path, bytes);
  }
  const std::string fresh = path + ".new";
  const absl::StatusOr<FileDescriptor> file =
      internal::lock_file(fresh, "another process is writing " + path);
  if (!file.ok()) return file.status();
  absl::Status written = write_fresh(*file, fresh, bytes);
  if (written.ok() && std::rename(fresh.c_str(), path.c_str()) != 0) {
    written = file_error("cannot rename " + fresh);
  }
  if (!written.ok()) {
    ::unlink(fresh.c_str());
    return written;
  }
  return cariama::internal::sync_folder_of(path);
}

uint64_t checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  };
  internal::ByteReader in(bytes, 0);
  uint64_t word = 0;
  while (in.read(word)) add(word);
  for (const char last : in.take(in.left())) add(static_cast<unsigned char>(last));
  add(bytes.size());
  return hash;
}

}  // namespace cariama::bdd
