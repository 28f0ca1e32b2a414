// Detects the death of another process immediately, independent of the amount of its memory.
//
// The service thread of every device holds a robust futex in the control segment for its whole life
// (the kernel ABI behind robust mutexes: Documentation/locking/robust-futex-ABI). When the thread
// dies, the kernel marks the word and wakes a sleeper before it frees the address space: 0.2 ms
// after the kill, whereas a pidfd or a socket needs 40 ms and more for a process that touched 1
// GiB.
//
// Each process that has connected to the device maps the word, and can write it. A word that is set
// free ends the connections to the device with an error at both ends, as the loss of a link does. A
// word that is held by another thread, or that changes all the time, hides neither the death of the
// process, which the service thread also gets from the pidfd, nor the close of the device, which it
// gets from the end of the connection.
#ifndef CARIAMA_DTUTILS_SHM_ROBUST_LOCK_H_
#define CARIAMA_DTUTILS_SHM_ROBUST_LOCK_H_

#include <linux/futex.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/shm/link.h"

namespace cariama::shm {

// Holds the owner_lock of a control segment from construction to destruction. Requires: both happen
// in one thread, which must not use robust mutexes meanwhile (a thread has only one robust list,
// which this object replaces).
class RobustLock {
 public:
  explicit RobustLock(ControlHeader* header);
  ~RobustLock();  // marks the device closed, and wakes all watching threads
  RobustLock(const RobustLock&) = delete;
  RobustLock& operator=(const RobustLock&) = delete;

 private:
  ControlHeader* header_;
  robust_list node_{};
  robust_list_head head_{};
  robust_list_head* previous_ = nullptr;
  size_t previous_length_ = 0;
};

// Watches the owner locks of peers. One thread serves 127 peers. Where the kernel has futex_waitv
// (5.16) the thread sleeps without a timeout, else it polls every 5 ms.
class PeerWatch {
 public:
  // `ended` is called by a watching thread, once per link, after link->state was set; again after
  // std::bad_alloc.
  explicit PeerWatch(std::function<void(const std::shared_ptr<Link>&)> ended)
      : ended_(std::move(ended)) {}
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Error: RESOURCE_EXHAUSTED (threads).
  [[nodiscard]] absl::Status add(const std::shared_ptr<Link>& link);
  // Stops watching the link. The callback may still be running, or run once more, after the return.
  void remove(const Link* link);

 private:
  struct Group {
    std::atomic<uint32_t> changes{0};  // futex word: changed whenever the thread must re-check
    std::atomic<bool> stop{false};
    std::vector<std::shared_ptr<Link>> links;  // guarded by mutex_
    std::thread thread;
  };
  void run(Group& group);
  static void bump(Group& group);

  std::function<void(const std::shared_ptr<Link>&)> ended_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_ROBUST_LOCK_H_
