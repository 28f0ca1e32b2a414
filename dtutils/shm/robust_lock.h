// How a process learns at once that another one has died, however much memory that one holds.
//
// The service thread of every device holds a robust futex in the control segment for its whole life
// (the kernel ABI behind robust mutexes: Documentation/locking/robust-futex-ABI). When it dies, the
// kernel marks the word and wakes a sleeper before it tears the address space down: 0.2 ms after
// the kill, where a pidfd or a socket needs 40 ms and more for a process that touched 1 GiB.
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

#include "dtutils/shm/link.h"

namespace cariama::shm {

// Holds the owner_lock of a control segment from construction to destruction, both in one thread,
// which must not use robust mutexes meanwhile (a thread has one robust list, and it is borrowed).
class RobustLock {
 public:
  explicit RobustLock(ControlHeader* header);
  ~RobustLock();  // marks the device closed, and wakes everybody who watches
  RobustLock(const RobustLock&) = delete;
  RobustLock& operator=(const RobustLock&) = delete;

 private:
  ControlHeader* header_;
  robust_list node_{};
  robust_list_head head_{};
  robust_list_head* previous_ = nullptr;
  size_t previous_length_ = 0;
};

// Watches the owner locks of peers. One thread serves 127 peers (futex_waitv); it sleeps untimed
// where the kernel has futex_waitv (5.16), else it looks every 5 ms.
class PeerWatch {
 public:
  // `ended` is called by a watching thread, once per link, after link->state was set.
  explicit PeerWatch(std::function<void(const std::shared_ptr<Link>&)> ended)
      : ended_(std::move(ended)) {}
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  void add(const std::shared_ptr<Link>& link);
  // The callback may still be running, or run once more, when this returns.
  void remove(const Link* link);

 private:
  struct Group {
    std::atomic<uint32_t> changes{0};  // futex: bumped whenever the thread has to look again
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

// Starts a thread with a small stack that blocks all signals: handlers are the application's.
[[nodiscard]] std::thread start_quiet_thread(std::function<void()> body);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_ROBUST_LOCK_H_
