#include "dtutils/internal/shared_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace cariama::internal {
namespace {

// As ftruncate(). The kernel sends SIGXFSZ to the calling thread, together with EFBIG.
int set_size(int descriptor, size_t bytes) {
  sigset_t excess;
  sigset_t before;
  sigemptyset(&excess);
  sigaddset(&excess, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &excess, &before);
  const int error = ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  const timespec no_time{};
  if (error == EFBIG) sigtimedwait(&excess, nullptr, &no_time);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace

int create_shared_file(const char* name, size_t bytes, unsigned flags) {
  const int descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (descriptor < 0) return -1;
  int error = set_size(descriptor, bytes);
  // F_SEAL_SEAL: a peer that has the descriptor cannot add seals that restrict other processes.
  if (error == 0 &&
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = errno;
  }
  if (error == 0) return descriptor;
  close(descriptor);
  errno = error;
  return -1;
}

std::string_view shared_file_remedy(int error, std::string_view otherwise) {
  if (error == EMFILE || error == ENFILE) return "raise ulimit -n";
  if (error == EFBIG) return "raise ulimit -f";
  return otherwise;
}

}  // namespace cariama::internal
