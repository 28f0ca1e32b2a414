// Queue pairs of the shm transport. The post functions themselves execute one-sided operations
// without a lock, on the peer's mapped memory (or through the kernel where it cannot be mapped).
// Messages are copied directly into the receive buffer that the peer posted, under this queue
// pair's mutex.
#ifndef CARIAMA_DTUTILS_SHM_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_SHM_QUEUE_PAIR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/shm/completion_queue.h"
#include "dtutils/shm/device_core.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/link.h"
#include "dtutils/shm/load_word.h"
#include "dtutils/shm/receive_queue.h"
#include "dtutils/shm/writable_regions.h"

namespace cariama::shm {

// The result of an executed operation.
struct OperationResult {
  CompletionStatus status = CompletionStatus::kSuccess;
  uint32_t vendor_error = 0;  // errno of cross-memory attach
  [[nodiscard]] bool ok() const { return status == CompletionStatus::kSuccess; }
};

class ShmQueuePair final : public QueuePair, public ReceiveSource {
 public:
  // Requires: `options` are valid. Error: RESOURCE_EXHAUSTED when the control segment or a table is
  // full.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<QueuePair>> create(
      std::shared_ptr<ShmDevice> device, std::shared_ptr<ProtectionDomain> domain,
      uint32_t domain_number, const QueuePairOptions& options,
      std::shared_ptr<ShmCompletionQueue> send_completions,
      std::shared_ptr<ShmCompletionQueue> receive_completions,
      std::shared_ptr<ReceiveQueue> receives, bool shared_receives);
  ~ShmQueuePair() override;

  std::string address() const override;
  absl::Status connect(std::string_view peer_address, const ConnectOptions& options) override;
  absl::Status repair() override;
  void fail() override;
  PostResult post_send(std::span<const WorkRequest> requests) override;
  bool open_direct_writer(RemoteKey key, DirectWriter& writer) override;
  PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  std::byte* direct_access(const RemoteMemoryLocator& remote) override;
  QueuePairState state() const override;
  ArrivalOrder write_order() const override { return ArrivalOrder::kWrites; }

  size_t drain_receives(std::span<Completion> completions) override;

  // Called by the device, which has locked queue_pairs_mutex_:
  [[nodiscard]] const Link* link() const { return bound_link_; }
  void set_link(const Link* link) { bound_link_ = link; }
  [[nodiscard]] const ShmCompletionQueue* send_completions() const {
    return send_completions_.get();
  }
  // Retries the deferred operations. Does nothing if another thread has locked the queue pair.
  void progress();
  // Called when the peer process died (`died`) or closed its device.
  void peer_ended(bool died);
  // Called after peer_ended(), which a process that has written the peer's lock may have caused
  // while the peer lives: ends the peer's queue pair, too, so that its operations do not reach
  // memory that this process reuses. Requires: link() is set.
  void end_peer();
  // Called when the peer process has ended: completes the receives that it had claimed and will not
  // finish. After std::bad_alloc, a further call completes those that are left.
  void recover_receives();

 protected:
  PostResult post_one(const WorkRequest& request) override;

 private:
  // A deferred operation: it waits for a posted receive, or behind an operation that does.
  struct Waiting {
    WorkRequest request;
    std::vector<Segment> segments;
    std::vector<std::byte> inline_data;
    // For its completion: without it, an operation that was executed would be executed again.
    ShmCompletionQueue::Spare spare;
  };
  // The peer's queue pair, checked at connect().
  struct Peer {
    QueuePairHeader* header = nullptr;
    uint32_t serial = 0;
    uint32_t domain = 0;
    uint32_t claimant = 0;  // identifies this queue pair in the peer's receive queue
    ReceiveQueueView receives;
    ReceiveRingEntry* ring = nullptr;
    uint32_t ring_mask = 0;
    SharedCompletionQueue* completions = nullptr;
    SharedChannel* channel = nullptr;
    uint32_t ready_bit = 0;
  };

  ShmQueuePair() = default;

  // Hot path (queue_pair.cc).
  [[nodiscard]] bool usable() const {
    return equals(header_->status, expected_.load(std::memory_order_acquire));
  }
  [[nodiscard]] bool readable(const void* address, uint64_t bytes, LocalKey key) const;
  [[nodiscard]] PostResult post_write(const WorkRequest& request);
  [[nodiscard]] PostResult post_list_of(const WorkRequest& request);
  [[nodiscard]] PostResult post_list(std::span<const WorkRequest> requests);
  [[nodiscard]] uint32_t post_plain_writes(std::span<const WorkRequest> requests, uint32_t first);
  [[nodiscard]] PostResult post_any(std::span<const WorkRequest> requests, uint32_t first);
  [[nodiscard]] bool reserve(bool in_ring);
  [[nodiscard]] OperationResult execute_one_sided(const WorkRequest& request);
  [[nodiscard]] bool check_local(const Segment& segment, bool written) const;
  [[nodiscard]] OperationResult attach_copy(const WorkRequest& request, uint64_t bytes);
  // With `spare`, which it uses up, the function and those below that have the parameter do not
  // throw std::bad_alloc.
  void complete(const WorkRequest& request, OperationResult result,
                ShmCompletionQueue::Spare* spare = nullptr);

  // Operations that need the mutex (queue_pair_message.cc). Requires: mutex_ is locked, except for
  // the first two functions.
  [[nodiscard]] PostResult post_slow(std::span<const WorkRequest> requests, uint32_t first);
  void fail_unlocked(const WorkRequest& request, OperationResult result);
  [[nodiscard]] std::optional<OperationResult> attempt(const WorkRequest& request);
  [[nodiscard]] std::optional<OperationResult> send_message(const WorkRequest& request);
  [[nodiscard]] OperationResult deliver(const WorkRequest& request, uint64_t bytes, uint32_t slot);
  [[nodiscard]] OperationResult copy_message(const WorkRequest& request, ReceiveSlot* slot);
  void publish_receive(uint32_t slot, CompletionStatus status, const WorkRequest& request,
                       uint64_t bytes);
  void finish(const WorkRequest& request, OperationResult result,
              ShmCompletionQueue::Spare* spare = nullptr);
  void complete_as_flushed(const WorkRequest& request, ShmCompletionQueue::Spare* spare = nullptr);
  void wait_for_receiver(const WorkRequest& request);
  void progress_locked();
  void set_waiting(bool waiting);

  // Life cycle of the connection (queue_pair_connection.cc). Requires: mutex_ is locked.
  [[nodiscard]] QueuePairStatus status() const { return QueuePairStatus(header_->status.load()); }
  [[nodiscard]] absl::Status resolve_peer(uint32_t index, uint32_t serial, uint64_t nonce);
  void try_ready();
  void break_connection();
  [[nodiscard]] bool peer_is_ours() const;
  void announce_to_peer();
  [[nodiscard]] absl::Status drain_for_repair();
  void move_receives_to_queue();
  void announce_receives() { receive_completions_->announce(ready_bit_); }

  // Read by every operation.
  QueuePairHeader* header_ = nullptr;  // this queue pair's header
  Link* link_ = nullptr;
  const LocalRegion* local_regions_ = nullptr;
  const WritableCell* writable_regions_ = nullptr;  // those of link_ for peer_domain_
  uint32_t domain_number_ = 0;
  uint32_t peer_domain_ = 0;
  ShmCompletionQueue* send_queue_ = nullptr;
  CompletionAccount* account_ = nullptr;
  // The status word (ready, this generation) while one-sided operations may be executed
  // immediately. All ones otherwise (not connected, or operations are deferred and later ones must
  // stay behind them).
  std::atomic<uint64_t> expected_{~uint64_t{0}};

  // Set at creation.
  std::shared_ptr<ShmDevice> device_;
  std::shared_ptr<ProtectionDomain> domain_owner_;
  std::shared_ptr<ShmCompletionQueue> send_completions_;
  std::shared_ptr<ShmCompletionQueue> receive_completions_;
  std::shared_ptr<ReceiveQueue> receives_;
  bool shared_receives_ = false;
  uint32_t index_ = 0;
  uint32_t serial_ = 0;
  uint32_t ready_bit_ = ~0u;  // ~0u: not attached
  ControlBlock ring_block_;
  ReceiveRingEntry* ring_ = nullptr;
  uint32_t ring_mask_ = 0;

  std::mutex mutex_;  // guards all members below, except where noted
  bool connected_ = false;
  ConnectOptions options_;
  std::shared_ptr<Link> link_owner_;
  Peer remote_;
  uint32_t generation_ = 0;
  uint64_t produced_ = 0;  // number of receive completions written to the peer
  bool send_failure_reported_ = false;
  std::deque<Waiting> waiting_;
  std::atomic<bool> has_waiting_{false};
  Deadline head_deadline_ = kForever;
  CompletionStatus head_failure_ = CompletionStatus::kReceiverNotReady;

  const Link* bound_link_ = nullptr;  // guarded by the device's queue_pairs_mutex_

  // Guarded by the receive completion queue's drain_mutex():
  // Counts receives pushed to the completion queue's ring.
  CompletionAccount* receive_account_ = nullptr;
  uint64_t consumed_ = 0;
  bool receive_failure_reported_ = false;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_QUEUE_PAIR_H_
