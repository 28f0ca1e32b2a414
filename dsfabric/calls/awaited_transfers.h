// Transfers whose end the fabric handles: no thread waits for them in a function.
#ifndef CARIAMA_DSFABRIC_CALLS_AWAITED_TRANSFERS_H_
#define CARIAMA_DSFABRIC_CALLS_AWAITED_TRANSFERS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/workers.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// A transfer in flight, and the work to be done at its end. It is destroyed after that work.
class AwaitedTransfer {
 public:
  virtual ~AwaitedTransfer() = default;
  // Polls for the end of the transfer. Returns true if finish() may run now. Called by one thread
  // at a time, with a lock held: it does not block, and it adds no transfer.
  [[nodiscard]] virtual bool ended() = 0;
  // Called once, in the thread that called ended(), without a lock. After std::bad_alloc, ended()
  // and finish() are called again.
  virtual void finish() = 0;
  // Called in place of finish() if the fabric ends before the transfer, because of `why`.
  virtual void drop(const absl::Status& why) = 0;

 private:
  friend class AwaitedTransfers;
  std::unique_ptr<AwaitedTransfer> next_;
};

// Polls `queue`, and returns true if `done`, which counts transfers of that queue, has no operation
// left. If the queue has failed and nothing is in flight any more, fails `done`.
[[nodiscard]] bool has_ended(TransmitQueue& queue, Synchronizer& done);

// Thread-safe, except for stop(). Lock order: its mutex comes before those of connections.
//
// If the fabric has service threads, a thread of this object polls the transfers; otherwise the
// threads that poll for calls do. The first prepare() creates that thread. It does not sleep while
// a transfer is in flight: the completion of a transfer wakes no thread.
class AwaitedTransfers {
 public:
  // Both arguments must outlive this object.
  AwaitedTransfers(const FabricJob& job, Workers& workers) : job_(job), workers_(workers) {}
  ~AwaitedTransfers();
  AwaitedTransfers(const AwaitedTransfers&) = delete;
  AwaitedTransfers& operator=(const AwaitedTransfers&) = delete;

  // Creates the thread. Call it before the transfer starts: add() cannot fail then. Errors:
  // UNAVAILABLE (the fabric has ended), RESOURCE_EXHAUSTED (the thread cannot be created).
  [[nodiscard]] absl::Status prepare();
  // Drops the transfer if stop() was called.
  void add(std::unique_ptr<AwaitedTransfer> transfer) noexcept;
  // Finishes the transfers that have ended. Returns their number.
  size_t run_ended();
  // Ends the thread, and drops the transfers that have not ended. Their objects live until this
  // object is destroyed, because the queues refer to them until then. Requires: Lifecycle::stop()
  // was called.
  void stop();

 private:
  // A list in the order of append().
  struct List {
    void append(std::unique_ptr<AwaitedTransfer> transfer) noexcept;
    void clear() noexcept;
    // Returns nullptr if the list is empty.
    [[nodiscard]] std::unique_ptr<AwaitedTransfer> take_first() noexcept;
    std::unique_ptr<AwaitedTransfer> first;
    AwaitedTransfer* last = nullptr;
  };

  void run_until_stopped();
  [[nodiscard]] absl::Status stopped_error() const;

  const FabricJob& job_;
  Workers& workers_;

  std::mutex mutex_;
  List transfers_;
  List dropped_;
  bool stopped_ = false;          // stop() has dropped the transfers
  std::atomic<size_t> count_{0};  // of the transfers that are not finished
  Doorbell wake_;
  std::thread thread_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_AWAITED_TRANSFERS_H_
