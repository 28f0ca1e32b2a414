#include "dtutils/internal/mapping_monitor.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/userfaultfd.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <semaphore>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::internal {
namespace {

constexpr uint64_t kWanted =
    UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
constexpr const char* kRefusalRemedy =
    "allow the system call userfaultfd (the seccomp filter of the container; Linux 5.11 or newer "
    "for unprivileged users), or set RegistrationOptions::invalidation to kExplicit and call "
    "forget() before memory is unmapped";

// The monitor of a process, or why there is none. Never destroyed: its thread runs until exit.
struct Process {
  const std::atomic<uint64_t>* page = make_fork_page();
  std::mutex mutex;
  MappingMonitor* monitor = nullptr;
  absl::Status refusal;
  bool tried = false;
};

// Returns the state of this process. A forked child gets a state of its own, because its parent's
// may be locked by a thread that the child does not have.
Process& process() {
  static std::atomic<Process*> current{nullptr};
  Process* one = current.load(std::memory_order_acquire);
  while (one == nullptr || (one->page != nullptr && !in_registering_process(one->page))) {
    auto* const mine = new Process;
    if (current.compare_exchange_strong(one, mine, std::memory_order_acq_rel)) return *mine;
    delete mine;
  }
  return *one;
}

int open_userfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  const auto open = [](int flags) { return static_cast<int>(syscall(SYS_userfaultfd, flags)); };
  const int restricted = open(kFlags | UFFD_USER_MODE_ONLY);
  if (restricted >= 0 || errno != EINVAL) return restricted;
  return open(kFlags);  // before Linux 5.11
}

}  // namespace

bool is_mapped(std::byte* address, size_t bytes) {
  std::array<unsigned char, 1024> residency;
  const size_t page = base_page();
  for (size_t done = 0; done < bytes; done += residency.size() * page) {
    const size_t part = std::min(bytes - done, residency.size() * page);
    if (mincore(address + done, part, residency.data()) != 0 && errno == ENOMEM) return false;
  }
  return true;
}

bool in_registering_process(const std::atomic<uint64_t>* page) {
  return page->load(std::memory_order_relaxed) != 0;
}

const std::atomic<uint64_t>* make_fork_page() {
  const size_t bytes = base_page();
  void* const page =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
    munmap(page, bytes);
    return nullptr;
  }
  return new (page) std::atomic<uint64_t>(1);
}

void free_fork_page(const std::atomic<uint64_t>* page) {
  munmap(const_cast<std::atomic<uint64_t>*>(page), base_page());
}

MappingMonitor* MappingMonitor::get() {
  Process& one = process();
  const std::lock_guard lock(one.mutex);
  if (std::exchange(one.tried, true)) return one.monitor;
  if (one.page == nullptr) {
    one.refusal = make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                             "no page can be mapped that is cleared at fork", kRefusalRemedy);
    return nullptr;
  }
  std::unique_ptr<MappingMonitor> monitor(new MappingMonitor(one.page));
  one.refusal = monitor->open();
  if (one.refusal.ok()) one.monitor = monitor.release();
  // Descriptors and memory may be free when the next cache asks.
  if (absl::IsResourceExhausted(one.refusal)) one.tried = false;
  return one.monitor;
}

absl::Status MappingMonitor::refusal() {
  Process& one = process();
  const std::lock_guard lock(one.mutex);
  return one.refusal;
}

absl::Status MappingMonitor::open() {
  events_ = FileDescriptor(open_userfaultfd());
  if (!events_.valid()) {
    const bool descriptors = errno == EMFILE || errno == ENFILE;
    return make_errno_error(errno, ErrorScope::kProcess, "userfaultfd is refused",
                            descriptors ? "raise ulimit -n" : kRefusalRemedy);
  }
  const auto negotiate = [this](uint64_t features) {
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = features;
    return ioctl(events_.get(), UFFDIO_API, &api) == 0;
  };
  // A failed negotiation leaves the descriptor usable for another attempt. Write protection of
  // shared memory needs Linux 5.19.
  if (!negotiate(kWanted | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM) &&
      !negotiate(kWanted | UFFD_FEATURE_PAGEFAULT_FLAG_WP)) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "userfaultfd lacks the events of this library", kRefusalRemedy);
  }
  ready_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted{.events = EPOLLIN, .data = {}};
  if (!ready_.valid() || epoll_ctl(ready_.get(), EPOLL_CTL_ADD, events_.get(), &wanted) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "the events of userfaultfd cannot be awaited", "raise ulimit -n");
  }
  // The application's handlers must not run in this thread: they could unmap memory, and wait for
  // it for ever.
  std::binary_semaphore started{0};
  auto thread = start_quiet_thread([this, &started] {
    separate_descriptors();
    started.release();
    read_events();
  });
  if (!thread.ok()) return thread.status();
  started.acquire();
  thread->detach();
  return absl::OkStatus();
}

// Gives the monitor's thread a table of descriptors of its own with only those that it reads. So
// the events still arrive if the program closes all descriptors that it does not know (closefrom(3)
// before it becomes a daemon). Otherwise no event would report that memory was unmapped. Where the
// system refuses close_range(2) (before Linux 5.9, seccomp), the thread shares the program's table.
void MappingMonitor::separate_descriptors() const {
  const auto [low, high] =
      std::minmax({static_cast<unsigned>(events_.get()), static_cast<unsigned>(ready_.get())});
  const auto close_all = [](unsigned first, unsigned last, unsigned flags) {
    return first > last || syscall(SYS_close_range, first, last, flags) == 0;
  };
  // The first call makes the table private; the others must not close the program's descriptors.
  if (!close_all(high + 1, ~0U, CLOSE_RANGE_UNSHARE)) return;
  static_cast<void>(close_all(low + 1, high - 1, 0));
  if (low > 0) static_cast<void>(close_all(0, low - 1, 0));
}

bool MappingMonitor::arm(uintptr_t start, uintptr_t end, int& error) const {
  uffdio_register request{};
  request.range = {start, end - start};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  const bool armed = ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0;
  error = armed ? 0 : errno;
  return armed;
}

absl::StatusOr<MappingMonitor::Watch> MappingMonitor::watch(uintptr_t start, uintptr_t end) {
  const std::lock_guard lock(mutex_);
  uint32_t slot = used_slots_.load(std::memory_order_relaxed);
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slot == kMaxWatches) {
    return make_error(
        absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
        std::to_string(kMaxWatches) + " ranges are watched, the most of a process",
        "lower RegistrationOptions::max_regions and max_idle_ranges, which are the most "
        "ranges that a cache watches");
  }
  const Watch made{slot, ++last_version_};
  // Visible to the monitor's thread before the kernel can report an event on the range.
  slots_[slot].start.store(start, std::memory_order_relaxed);
  slots_[slot].end.store(end, std::memory_order_relaxed);
  slots_[slot].state.store(live(made.version), std::memory_order_seq_cst);
  if (slot == used_slots_.load(std::memory_order_relaxed)) {
    used_slots_.store(slot + 1, std::memory_order_release);
  }
  int error = 0;
  bool armed = arm(start, end, error);
  // Huge pages are watched whole. If nothing is mapped, a larger range would watch its neighbours.
  for (const uint64_t page : {kHugePage, kGiB}) {
    if (armed || error != EINVAL || !is_mapped(reinterpret_cast<std::byte*>(start), end - start))
      break;
    armed = arm(start / page * page, round_up(end, page), error);
  }
  // Sequentially consistent: either this load sees the end of the thread, or the thread marks the
  // watch.
  if (armed && stopped_.load(std::memory_order_seq_cst)) error = EBADF;
  if (error == 0) return made;
  slots_[slot].state.store(0, std::memory_order_release);
  free_.push_back(slot);
  if (error == ENOMEM) return explain_no_memory(query_memory_limits(), end - start);
  return make_errno_error(error, ErrorScope::kOperation,
                          error == EBUSY ? "another userfaultfd watches this memory"
                          : error == EBADF
                              ? "the program has closed the descriptors of the registration cache"
                              : "this memory cannot be watched",
                          "memory that can be watched is anonymous, or of a memfd");
}

void MappingMonitor::unwatch(const Watch& watch) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[watch.slot];
  const uintptr_t start = slot.start.load(std::memory_order_relaxed);
  const uintptr_t end = slot.end.load(std::memory_order_relaxed);
  const bool intact = slot.state.exchange(0, std::memory_order_acq_rel) == live(watch.version);
  free_.push_back(watch.slot);
  if (!intact) return;  // the range was unmapped or changed: it may be watched anew
  // The parts that no other watch covers.
  std::vector<std::pair<uintptr_t, uintptr_t>> others;
  for (uint32_t i = 0; i < used_slots_.load(std::memory_order_relaxed); ++i) {
    if ((slots_[i].state.load(std::memory_order_relaxed) & 1) == 0) continue;
    const uintptr_t from = std::max(slots_[i].start.load(std::memory_order_relaxed), start);
    const uintptr_t to = std::min(slots_[i].end.load(std::memory_order_relaxed), end);
    if (from < to) others.emplace_back(from, to);
  }
  std::sort(others.begin(), others.end());
  others.emplace_back(end, end);
  uintptr_t position = start;
  for (const auto& [from, to] : others) {
    if (position < from) {
      uffdio_range range{position, from - position};
      // Fails if the range is no longer mapped, or is part of a huge page; then it stays watched,
      // which costs an event that hits no watch.
      static_cast<void>(ioctl(events_.get(), UFFDIO_UNREGISTER, &range));
    }
    position = std::max(position, to);
  }
}

MappingMonitor::Unmapping MappingMonitor::wait_for_unmapping() const {
  // While such a change is in progress, from before its effect until its event was read, the kernel
  // refuses each request to a userfaultfd with EAGAIN. Else it refuses a page that is not watched
  // with ENOENT. The descriptor of another file, which may have the same number if the program has
  // closed this one, has other errors.
  uffdio_writeprotect request{};
  request.range = {reinterpret_cast<uintptr_t>(unwatched_), base_page()};
  std::chrono::steady_clock::time_point end;
  for (int tries = 0; ioctl(events_.get(), UFFDIO_WRITEPROTECT, &request) != 0; ++tries) {
    if (errno == ENOENT) return Unmapping::kRead;
    if (errno != EAGAIN) break;
    if (tries < 16) continue;
    const auto now = std::chrono::steady_clock::now();
    if (tries == 16) end = now + kMostWait;
    if (now >= end) return Unmapping::kInProgress;
    std::this_thread::yield();
  }
  return Unmapping::kUnknown;
}

uint64_t MappingMonitor::wait_for_even() const {
  for (int spins = 0;; ++spins) {
    const uint64_t sequence = sequence_.load(std::memory_order_acquire);
    if ((sequence & 1) == 0) return sequence;
    if (spins > 64) std::this_thread::yield();
  }
}

void MappingMonitor::mark(uintptr_t start, uintptr_t end) {
  const uint32_t used = used_slots_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) {
    Slot& slot = slots_[i];
    // The version in the state makes the exchange fail if the slot was given to another range
    // after its bounds were read.
    uint64_t state = slot.state.load(std::memory_order_acquire);
    while ((state & 1) != 0 && slot.start.load(std::memory_order_relaxed) < end &&
           start < slot.end.load(std::memory_order_relaxed)) {
      if (slot.state.compare_exchange_weak(state, state & ~uint64_t{1},
                                           std::memory_order_acq_rel)) {
        break;
      }
    }
  }
}

void MappingMonitor::read_events() {
  std::array<uffd_msg, 16> messages;
  while (true) {
    // Unlike poll, epoll_wait does not fail if the application lowers RLIMIT_NOFILE.
    epoll_event ready{};
    if (epoll_wait(ready_.get(), &ready, 1, -1) < 0 && errno != EINTR) break;
    // Sequentially consistent: the odd number must be visible before the read releases the thread
    // that made the event.
    sequence_.fetch_add(1, std::memory_order_seq_cst);
    const ssize_t got = read(events_.get(), messages.data(), sizeof(messages));
    const bool failed = got < 0 && errno != EAGAIN && errno != EINTR;
    for (size_t i = 0; got > 0 && i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) {
      const uffd_msg& message = messages[i];
      if (message.event == UFFD_EVENT_REMAP) {
        const auto& moved = message.arg.remap;
        mark(moved.from, moved.from + moved.len);
        mark(moved.to, moved.to + moved.len);
      } else if (message.event == UFFD_EVENT_REMOVE || message.event == UFFD_EVENT_UNMAP) {
        mark(message.arg.remove.start, message.arg.remove.end);
      }
    }
    sequence_.fetch_add(1, std::memory_order_release);
    if (failed) break;
  }
  // The thread shares the table of the program, which has closed a descriptor: no event will
  // arrive.
  stopped_.store(true, std::memory_order_seq_cst);
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  mark(0, UINTPTR_MAX);
  sequence_.fetch_add(1, std::memory_order_release);
}

}  // namespace cariama::internal
