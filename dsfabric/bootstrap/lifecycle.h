// The phases of one process's fabric, which all its parts read:
//
//   running -> finalizing   Fabric::finalize() was called
//   finalizing -> running   finalize() has reached its deadline
//   any -> closed           finalize() has seen the job end, the fabric is being destroyed, or this
//                           process is a child of fork()
//   closed -> stopping      the threads of the fabric must end
//
// In the closed phase no call is accepted, and a peer that disconnects is not considered failed.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_LIFECYCLE_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_LIFECYCLE_H_

#include <atomic>

#include "absl/status/status.h"

namespace cariama::internal {

// Thread-safe. fork() marks every living object of the child as closed and inherited. The child
// must not change more than these marks, because other threads may hold any lock at the fork.
class Lifecycle {
 public:
  Lifecycle();
  ~Lifecycle();
  Lifecycle(const Lifecycle&) = delete;
  Lifecycle& operator=(const Lifecycle&) = delete;

  // Returns true in a child of fork(): the fabric belongs to its parent.
  [[nodiscard]] bool is_inherited() const { return inherited_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_finalizing() const { return finalizing_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool is_closed() const { return closed_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool is_stopping() const { return stopping_.load(std::memory_order_seq_cst); }
  // Returns the reason why no call is accepted. Requires: is_closed().
  [[nodiscard]] absl::Status closed_error() const;

  // Returns false if the fabric is finalizing already, or was finalized.
  [[nodiscard]] bool begin_finalize() {
    return !finalizing_.exchange(true, std::memory_order_seq_cst);
  }
  void abandon_finalize() { finalizing_.store(false, std::memory_order_seq_cst); }
  void close() { closed_.store(true, std::memory_order_seq_cst); }
  // Begins the phase "stopping". The caller must then wake the threads of the fabric, so that they
  // end.
  void stop() { stopping_.store(true, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> inherited_{false};
  std::atomic<bool> finalizing_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> stopping_{false};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_LIFECYCLE_H_
