#include "dsfabric/bootstrap/host_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "dtutils/diagnostics.h"
#include "dtutils/internal/shared_file.h"
#include "dtutils/system_info.h"

namespace cariama::internal {
namespace {

// Returns true if the file has the size of a board and cannot shrink: an access never raises
// SIGBUS.
bool is_board(int descriptor) {
  struct stat file {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &file) == 0 &&
         file.st_size == static_cast<off_t>(sizeof(HelperBoard));
}

}  // namespace

HostBoard::HostBoard()
    : file_(create_shared_file("cariama-helper-board", sizeof(HelperBoard))),
      file_error_(file_.valid() ? 0 : errno) {}

HostBoard::Offer HostBoard::offer(uint32_t busy_threads) const {
  Offer mine{.pid = static_cast<uint32_t>(getpid()),
             .descriptor = file_.get(),
             .busy_threads = busy_threads};
  for (const int cpu : usable_cpus()) {
    const auto word = static_cast<size_t>(cpu) / 64;
    if (mine.cpus.size() <= word) mine.cpus.resize(word + 1);
    mine.cpus[word] |= uint64_t{1} << (static_cast<size_t>(cpu) % 64);
  }
  return mine;
}

void HostBoard::add(const Offer& offer, bool is_this_process) {
  if (is_this_process) number_ = processes_;
  ++processes_;
  busy_threads_ += offer.busy_threads;
  cpus_.resize(std::max(cpus_.size(), offer.cpus.size()));
  for (size_t i = 0; i < offer.cpus.size(); ++i) cpus_[i] |= offer.cpus[i];
  if (chosen_.descriptor >= 0 || offer.descriptor < 0) return;
  chosen_ = offer;
  is_mine_ = is_this_process;
}

void HostBoard::open() {
  FileDescriptor other;
  int error = file_error_;
  if (chosen_.descriptor >= 0 && !is_mine_) {
    file_.reset();
    other = FileDescriptor(
        ::open(absl::StrCat("/proc/", chosen_.pid, "/fd/", chosen_.descriptor).c_str(),
               O_RDWR | O_CLOEXEC | O_NONBLOCK));
    error = other.valid() ? 0 : errno;
    // ENOENT: the process that made the board has ended. The job reports its end.
    if (error == ENOENT) return;
  }
  const int descriptor = is_mine_ ? file_.get() : other.get();
  void* memory = MAP_FAILED;
  if (descriptor >= 0 && is_board(descriptor)) {
    memory = mmap(nullptr, sizeof(HelperBoard), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    error = errno;
  }
  if (memory == MAP_FAILED) {
    file_.reset();
    const std::string_view effect = "each process runs its helper, whether or not a core is idle";
    const std::string_view remedy = shared_file_remedy(error, "");
    report_once("registration.board",
                absl::StrCat("the processes of this host share no board of their registration "
                             "helpers",
                             error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error)),
                remedy.empty()
                    ? std::string(effect)
                    : absl::StrCat(std::string(remedy), "; until then ", std::string(effect)));
    return;
  }
  if (processes_ == 1) file_.reset();
  // The kernel gives zeroed memory, which is an empty board.
  board_ = std::shared_ptr<HelperBoard>(static_cast<HelperBoard*>(memory), [](HelperBoard* board) {
    munmap(static_cast<void*>(board), sizeof(HelperBoard));
  });
}

HelperPlace HostBoard::place(uint32_t device) const {
  int count = 0;
  for (const uint64_t word : cpus_) count += std::popcount(word);
  const auto all = static_cast<double>(count);
  const double usable = std::floor(std::min(all, query_system_info().cgroup.cpus.value_or(all)));
  const double idle = std::max(0.0, usable - static_cast<double>(busy_threads_));
  return {.board = board_,
          .helper = number_ + device * processes_,
          .idle_cores = static_cast<uint32_t>(idle)};
}

}  // namespace cariama::internal
