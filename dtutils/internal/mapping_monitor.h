// Notices that memory was unmapped, discarded or moved, so that a registration of it is not used
// again. One monitor serves the process, since the kernel lets one userfaultfd watch a range.
//
// Notification: userfaultfd in write-protect mode with no page protected. It raises no fault, so no
// access to the memory is slower or fails, and needs no privilege (UFFD_USER_MODE_ONLY). munmap,
// mremap, mmap over the range, a shrinking brk and madvise (DONTNEED, FREE, REMOVE) raise an event.
// The thread that made the call waits until the monitor's thread has READ the event, not until it
// has processed it.
//
// Hence the protocol. The monitor's thread makes the sequence odd before it reads events, marks the
// watches that they hit, and makes the sequence even. After munmap() has returned, a thread
// therefore sees either an odd number, and waits, or a later even number, after which the marks are
// visible. processed_sequence() does that. The read orders both: the kernel's lock passes the
// monitor's store of the odd number to the thread that it releases.
//
// The kernel removes the mapping first, releases its lock of the address space, and only then
// queues the event. So another thread may map memory at the same address, and look at the watch,
// before the event exists. The monitor covers what happens after the call has returned, nothing
// before.
//
// The monitor's thread takes no lock and does not allocate. Its only system calls are epoll_wait,
// which works under any limit of open files, and read. The application may therefore unmap memory
// while it holds any lock, including those of malloc. The thread has a table of descriptors of its
// own, so that the program may close all descriptors: the memory that is watched stays watched,
// and other memory cannot be watched any more.
#ifndef CARIAMA_DTUTILS_INTERNAL_MAPPING_MONITOR_H_
#define CARIAMA_DTUTILS_INTERNAL_MAPPING_MONITOR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// Returns false in a process that was forked from the one in which the first call was made: there
// neither the monitor's thread nor the kernel's registrations exist. One load. A page that the
// kernel clears at fork holds the answer, so that it is right also after a bare clone(2).
[[nodiscard]] bool in_registering_process(const std::atomic<uint64_t>* page);
// Returns a new page for in_registering_process(), or nullptr if none can be mapped.
[[nodiscard]] const std::atomic<uint64_t>* make_fork_page();
void free_fork_page(const std::atomic<uint64_t>* page);

// Returns true if every page of the range is mapped. Ignores the residency that mincore(2) also
// reports.
[[nodiscard]] bool is_mapped(std::byte* address, size_t bytes);

class MappingMonitor {
 public:
  // Watched ranges of all caches of the process.
  static constexpr uint32_t kMaxWatches = 16384;
  static constexpr uint32_t kNoWatch = UINT32_MAX;

  // Names a watch; a slot is reused with another version.
  struct Watch {
    uint32_t slot = kNoWatch;
    uint64_t version = 0;
  };

  // Returns the monitor of this process, started by the first call; nullptr if the system refuses
  // userfaultfd (then refusal() says why). A forked child gets a monitor of its own.
  [[nodiscard]] static MappingMonitor* get();
  [[nodiscard]] static absl::Status refusal();

  // Starts to watch whole pages. Errors: RESOURCE_EXHAUSTED (kMaxWatches; vm.max_map_count: the
  // text names it), FAILED_PRECONDITION (this memory cannot be watched: it is backed by a file on
  // disk, or another userfaultfd watches it). Thread-safe; takes a lock.
  [[nodiscard]] absl::StatusOr<Watch> watch(uintptr_t start, uintptr_t end);
  // Ends a watch. Thread-safe; takes a lock.
  void unwatch(const Watch& watch);

  // Returns true if no event has hit the watch. Call processed_sequence() first. Wait-free.
  [[nodiscard]] bool is_intact(const Watch& watch) const {
    // Acquire: pairs with the release in mark().
    return slots_[watch.slot].state.load(std::memory_order_acquire) == live(watch.version);
  }

  // What wait_for_unmapping() has found.
  enum class Unmapping : uint8_t {
    kRead,        // the events of all changes before the call
    kInProgress,  // threads change watched memory all the time
    kUnknown,     // the program has closed the descriptor: nothing can tell
  };
  // Waits, for kMostWait at most, until the monitor's thread has read the event of each change of
  // watched memory that other threads can see. (A thread that unmaps memory makes the addresses
  // free before the kernel queues the event.) Call it before processed_sequence(). One system call.
  static constexpr std::chrono::microseconds kMostWait{100};
  [[nodiscard]] Unmapping wait_for_unmapping() const;

  // Returns the number of the last processed batch of events. Waits while the monitor's thread
  // processes one, which takes it microseconds.
  [[nodiscard]] uint64_t processed_sequence() const {
    const uint64_t sequence = sequence_.load(std::memory_order_acquire);
    if ((sequence & 1) == 0) [[likely]] {
      return sequence;
    }
    return wait_for_even();
  }

 private:
  struct Slot {
    std::atomic<uint64_t> state{0};  // version * 2 + 1 while intact
    std::atomic<uintptr_t> start{0};
    std::atomic<uintptr_t> end{0};
  };
  static constexpr uint64_t live(uint64_t version) { return version * 2 + 1; }

  explicit MappingMonitor(const void* unwatched) : unwatched_(unwatched) {}

  [[nodiscard]] absl::Status open();
  [[nodiscard]] bool arm(uintptr_t start, uintptr_t end, int& error) const;
  [[nodiscard]] uint64_t wait_for_even() const;
  void separate_descriptors() const;
  void read_events();
  void mark(uintptr_t start, uintptr_t end);

  alignas(64) std::atomic<uint64_t> sequence_{0};
  alignas(64) FileDescriptor events_;
  const void* const unwatched_;  // a page
  FileDescriptor ready_;         // an epoll of events_
  std::unique_ptr<Slot[]> slots_ = std::make_unique<Slot[]>(kMaxWatches);
  std::atomic<uint32_t> used_slots_{0};  // slots beyond were never used
  std::atomic<bool> stopped_{false};     // the thread reads no more events
  std::mutex mutex_;                     // never taken by the monitor's thread
  std::vector<uint32_t> free_;
  uint64_t last_version_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_MAPPING_MONITOR_H_
