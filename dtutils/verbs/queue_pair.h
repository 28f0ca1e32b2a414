// Reliable connections over verbs.
#ifndef CARIAMA_DTUTILS_VERBS_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_VERBS_QUEUE_PAIR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/address.h"
#include "dtutils/verbs/completion_queue.h"
#include "dtutils/verbs/connect_attributes.h"
#include "dtutils/verbs/context.h"
#include "dtutils/verbs/domain.h"
#include "dtutils/verbs/handles.h"
#include "dtutils/verbs/shared_receive_queue.h"
#include "dtutils/verbs/spin_lock.h"

namespace cariama::verbs {

// Every operation has a position, counted from 0 in the order of posting, and stays in send_slots_
// until a completion that covers it was polled. RC completes in order, so a completion at position
// p frees all positions up to p.
//
// The state is derived from completions: if a queue pair failed while it was only the target of the
// peer's operations, state() returns kConnected until a request that it posted fails.
class VerbsQueuePair final : public QueuePair {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<VerbsQueuePair>> create(
      std::shared_ptr<const VerbsDomain> domain, const QueuePairOptions& options);
  ~VerbsQueuePair() override;

  [[nodiscard]] std::string address() const override { return encode(own_); }
  [[nodiscard]] absl::Status connect(std::string_view peer_address,
                                     const ConnectOptions& options) override;
  [[nodiscard]] absl::Status repair() override;
  void fail() override;
  using QueuePair::post_receive;
  using QueuePair::post_send;
  [[nodiscard]] PostResult post_send(std::span<const WorkRequest> requests) override;
  [[nodiscard]] PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  [[nodiscard]] QueuePairState state() const override {
    return state_.load(std::memory_order_acquire);
  }
  [[nodiscard]] ArrivalOrder write_order() const override { return write_order_; }

  // Called by completion queues, with their lock held, in the order of completion.
  //
  // Processes a completion that was read from the device's queue.
  void observe(const ibv_wc& work);
  // Passes the completion to the user: frees the slots that it covers and fills `completion`.
  // Returns false if it is not for the user (the marker of repair()).
  bool deliver(const ibv_wc& work, Completion& completion);
  // Discards a completion, because the queue pair is being destroyed.
  void drop(const ibv_wc& work);

 private:
  struct SendSlot {
    uint64_t id = 0;
    CompletionKind kind = CompletionKind::kSend;
  };

  VerbsQueuePair(std::shared_ptr<const VerbsDomain> domain,
                 std::shared_ptr<VerbsCompletionQueue> send_completions,
                 std::shared_ptr<VerbsCompletionQueue> receive_completions,
                 std::shared_ptr<VerbsSharedReceiveQueue> shared_receives);

  [[nodiscard]] absl::Status create_handle(const QueuePairOptions& options);
  [[nodiscard]] absl::Status reserve_completions();
  [[nodiscard]] absl::Status initialize();                                // RESET → INIT
  [[nodiscard]] absl::Status reach(const ConnectAttributes& attributes);  // INIT → RTR → RTS
  [[nodiscard]] absl::Status drain();
  void to_error_state();
  [[nodiscard]] absl::Status modify(ibv_qp_attr attributes, int mask, std::string_view step);
  [[nodiscard]] const Context& context() const { return *owner_->context(); }
  // Posts one batch from the front of `requests`. Requires: send_lock_ is locked.
  [[nodiscard]] PostResult post_batch(std::span<const WorkRequest> requests);

  const std::shared_ptr<const VerbsDomain> owner_;
  const std::shared_ptr<VerbsCompletionQueue> send_completions_;
  const std::shared_ptr<VerbsCompletionQueue> receive_completions_;
  const std::shared_ptr<VerbsSharedReceiveQueue> shared_receives_;  // may be nullptr
  QueuePairHandle handle_;
  Address own_;
  std::optional<ConnectAttributes> connection_;  // attributes computed by connect(), for repair()
  bool complete_ = false;                        // registered with its completion queues
  bool atomics_ = false;                         // both ends support them
  ArrivalOrder write_order_ = ArrivalOrder::kNone;
  std::atomic<bool> closing_{false};
  std::atomic<QueuePairState> state_{QueuePairState::kUnconnected};

  // Sending. Posters write the slot and the tail with the lock held; pollers read them without it.
  std::unique_ptr<SendSlot[]> send_slots_;  // indexed by position & send_mask_
  uint64_t send_mask_ = 0;
  alignas(64) SpinLock send_lock_;
  std::atomic<uint64_t> send_tail_{0};              // number of operations posted
  alignas(64) std::atomic<uint64_t> send_head_{0};  // number of operations whose slots are free
  std::atomic<bool> drained_{false};                // repair()'s marker was flushed

  // Receiving; the same roles as for sending.
  std::unique_ptr<uint64_t[]> receive_ids_;
  uint64_t receive_mask_ = 0;
  alignas(64) SpinLock receive_lock_;
  std::atomic<uint64_t> receive_tail_{0};
  alignas(64) std::atomic<uint64_t> receive_head_{0};
  // Receives whose completions were read from the device.
  std::atomic<uint64_t> receive_observed_{0};
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_QUEUE_PAIR_H_
