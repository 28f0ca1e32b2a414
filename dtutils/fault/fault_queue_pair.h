// Queue pairs of a fault device. Operations wait in a queue of this class, which decides their
// faults. It then posts each operation to the inner queue pair, always signaled. So this class
// accounts for the slots and completions that the user sees, independent of the injected faults.
#ifndef CARIAMA_DTUTILS_FAULT_FAULT_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_FAULT_FAULT_QUEUE_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/fault/core.h"
#include "dtutils/fault/fault_completion_queue.h"
#include "dtutils/fault/fault_receives.h"
#include "dtutils/internal/growing_ring.h"
#include "dtutils/internal/send_slots.h"

namespace cariama::fault {

// Memory for the local segment of the operation that makes both ends fail: see post_poison().
struct Poison {
  alignas(8) std::byte memory[8] = {};
  std::shared_ptr<MemoryRegion> region;
};

class FaultQueuePair final : public QueuePair {
 public:
  // Requires: `options` contains the granted limits and the fault device's objects.
  FaultQueuePair(std::shared_ptr<Core> core, std::shared_ptr<ProtectionDomain> domain,
                 std::shared_ptr<Poison> poison, std::unique_ptr<QueuePair> inner,
                 const QueuePairOptions& options);
  ~FaultQueuePair() override;

  std::string address() const override { return inner_->address(); }
  absl::Status connect(std::string_view peer_address, const ConnectOptions& options) override;
  absl::Status repair() override;
  void fail() override;
  using QueuePair::post_receive;
  using QueuePair::post_send;
  PostResult post_send(std::span<const WorkRequest> requests) override;
  PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  // Returns nullptr, since direct stores could not be delayed or torn.
  std::byte* direct_access(const RemoteMemoryLocator&) override { return nullptr; }
  QueuePairState state() const override { return inner_->state(); }
  ArrivalOrder write_order() const override;

  void progress();
  void inner_completed(const Completion& completion);
  void polled(uint64_t operation) { slots_.polled(operation); }
  [[nodiscard]] bool busy() const;

 private:
  // A part of an operation, posted as one inner operation.
  struct Piece {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t release = 0;  // tick from which it may be posted
  };
  struct Operation {
    WorkRequest request;  // its segments are in the vector below
    std::vector<Segment> segments;
    std::vector<std::byte> inline_data;
    std::vector<Piece> pieces;
    size_t pieces_posted = 0;
    size_t pieces_outstanding = 0;
    bool poisoned = false;
    CompletionStatus fail_with = CompletionStatus::kSuccess;  // status to inject; kSuccess: none
    CompletionStatus status = CompletionStatus::kSuccess;
    uint32_t vendor_error = 0;

    [[nodiscard]] bool posted() const { return pieces_posted == pieces.size(); }
    [[nodiscard]] bool done() const {
      return pieces_outstanding == 0 && (posted() || status != CompletionStatus::kSuccess);
    }
  };

  void take_limits();
  Operation make_operation(const WorkRequest& request, uint64_t bytes);
  [[nodiscard]] std::vector<Piece> cut(const WorkRequest& request, uint64_t bytes);
  void forward_sends();
  // Calls forward_sends() or forward_receives() for requests that were accepted.
  template <typename Forward>
  void forward_accepted(const Forward& forward);
  [[nodiscard]] PostResult post_piece(const Operation& operation, const Piece& piece);
  [[nodiscard]] PostResult post_poison();
  void forward_receives();
  void retire();
  void complete_unposted_as_flushed();
  void complete(const Operation& operation, CompletionStatus status);
  void complete_receive(uint64_t id, CompletionStatus status);
  [[nodiscard]] bool lost();
  void watch_lost_peer();
  [[nodiscard]] uint64_t end() const { return first_ + operations_.size(); }
  [[nodiscard]] Operation& operation(uint64_t number) { return operations_[number - first_]; }

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<ProtectionDomain> domain_owner_;
  const std::shared_ptr<Poison> poison_;
  const std::shared_ptr<FaultCompletionQueue> send_completions_;
  const std::shared_ptr<FaultCompletionQueue> receive_completions_;
  const std::shared_ptr<FaultSharedReceiveQueue> shared_receives_;
  const std::unique_ptr<QueuePair> inner_;
  Dice dice_;

  bool suspended_ = false;  // connect() or repair() of the inner queue pair is in progress
  bool gone_ = false;       // repair() failed
  bool broken_ = false;     // an error was reported: all following operations are flushed
  uint64_t lost_at_ = 0;    // tick at which an operation was first seen pending on a lost peer
  bool lost_counted_ = false;

  internal::SendSlots slots_;
  internal::GrowingRing<Operation> operations_;
  uint64_t first_ = 0;  // number of operations_.front()
  uint64_t next_ = 0;   // number of the first operation that is not completely posted

  FaultReceives receives_;
  std::vector<uint64_t> lost_receives_;  // ids of receives that completed after the peer was lost
};

}  // namespace cariama::fault

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_QUEUE_PAIR_H_
