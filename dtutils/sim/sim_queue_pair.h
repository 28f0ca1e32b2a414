// Queue pairs and shared receive queues of simulated endpoints: the protocol of a reliable
// connection.
//
// The initiator stores the operations that it has not completed and sends them in order. When a
// request is lost or the receiver is not ready, it sends again from the first incomplete operation
// (go-back-N). The target executes only the operation with the next expected number. It drops later
// ones (they will be sent again) and only answers earlier ones again, which are repetitions.
// Locking: see fabric.h.
#ifndef CARIAMA_DTUTILS_SIM_SIM_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_SIM_SIM_QUEUE_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/internal/growing_ring.h"
#include "dtutils/internal/send_slots.h"
#include "dtutils/queue_pair.h"
#include "dtutils/sim/fabric.h"
#include "dtutils/sim/sim_completion_queue.h"

namespace cariama::sim {

struct Receive {
  uint64_t id = 0;
  std::vector<Segment> segments;
};

class SimSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  SimSharedReceiveQueue(std::shared_ptr<Fabric> fabric, const Endpoint* endpoint,
                        const SharedReceiveQueueOptions& options)
      : fabric_(std::move(fabric)), endpoint_(endpoint), options_(options) {}

  using SharedReceiveQueue::post_receive;
  PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  uint32_t depth() const override { return options_.depth; }

  [[nodiscard]] const Endpoint* endpoint() const { return endpoint_; }

 private:
  friend class SimQueuePair;

  const std::shared_ptr<Fabric> fabric_;
  const Endpoint* const endpoint_;
  const SharedReceiveQueueOptions options_;
  internal::GrowingRing<Receive> receives_;
};

class SimQueuePair final : public QueuePair {
 public:
  SimQueuePair(std::shared_ptr<Fabric> fabric, Endpoint* endpoint,
               std::shared_ptr<ProtectionDomain> domain, const QueuePairOptions& options);
  ~SimQueuePair() override;

  std::string address() const override;
  absl::Status connect(std::string_view peer_address, const ConnectOptions& options) override;
  absl::Status repair() override;
  void fail() override;
  using QueuePair::post_receive;
  using QueuePair::post_send;
  PostResult post_send(std::span<const WorkRequest> requests) override;
  PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  std::byte* direct_access(const RemoteMemoryLocator&) override { return nullptr; }
  QueuePairState state() const override;
  ArrivalOrder write_order() const override;

  // --- called by the fabric ---
  [[nodiscard]] Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] bool wants_to_transmit();
  void transmit_next();  // requires: wants_to_transmit()
  // Returns the time at which a request whose last byte arrives at `end` is executed.
  [[nodiscard]] SimTime delivery_time(const Packet& request, SimTime end);
  // Processes a request. Returns false if this queue pair is not connected to the sender, so that
  // the request counts as lost.
  [[nodiscard]] bool receive_request(Packet& request);
  void receive_piece(const Packet& piece);
  void receive_response(const Packet& response);
  // `packet` is the lost request, or the lost response to it.
  void request_lost(const Packet& packet);
  void timer(TimerKind kind, uint64_t argument);
  // --- called by the completion queue ---
  void polled(uint64_t operation) { slots_.polled(operation); }

  // --- used by the fabric only ---
  bool in_turn = false;  // is in the endpoint's `ready` list
  // Of this queue pair's requests at the peer; later requests arrive no earlier.
  SimTime last_arrival{0};

 private:
  struct Operation {
    uint64_t id = 0;
    Opcode opcode = Opcode::kWrite;
    uint8_t flags = 0;
    bool done = false;
    bool sent_before = false;
    CompletionStatus status = CompletionStatus::kSuccess;
    uint32_t immediate = 0;
    uint64_t bytes = 0;
    uint64_t remote_address = 0;
    RemoteKey remote_key;
    uint64_t operand = 0;
    uint64_t swap = 0;
    SimTime sent_at{0};
    std::vector<Segment> segments;
    std::vector<std::byte> inline_data;

    // Returns true if the operation returns data, and so counts as an outstanding read.
    [[nodiscard]] bool fetches() const { return opcode >= Opcode::kRead; }
  };
  // The result of an atomic, stored in case its acknowledgement is lost.
  struct AtomicResult {
    uint64_t psn = 0;
    uint64_t old_value = 0;
  };

  // Initiator.
  [[nodiscard]] Operation& operation(uint64_t number) { return operations_[number - first_]; }
  [[nodiscard]] std::optional<std::vector<std::byte>> gather(const Operation& operation) const;
  [[nodiscard]] bool scatter(std::span<const Segment> segments, std::span<const std::byte> data);
  void finish(Operation& operation, CompletionStatus status);
  void retire();
  void rewind(uint64_t number);
  void retry();
  void start_retry_timer(SimTime time);
  void complete(const Operation& operation, uint64_t number, CompletionStatus status);

  // Target.
  void execute_write(const Packet& request, SimTime* landed);
  void land_in_pieces(const Packet& request, SimTime* landed);
  [[nodiscard]] uint64_t execute_atomic(const Packet& request);
  [[nodiscard]] CompletionStatus receive_message(const Packet& request);
  void respond(const Packet& request, PacketKind kind, CompletionStatus status,
               uint64_t old_value = 0, SimTime not_before = SimTime(0));
  void respond_with_data(const Packet& request);
  [[nodiscard]] internal::GrowingRing<Receive>& receive_queue();
  void complete_receive(uint64_t id, CompletionStatus status, const Packet* request);

  void enter_error();
  void start_connection();

  const std::shared_ptr<Fabric> fabric_;
  Endpoint* const endpoint_;
  const std::shared_ptr<ProtectionDomain> domain_owner_;
  const std::shared_ptr<SimCompletionQueue> send_completions_;
  const std::shared_ptr<SimCompletionQueue> receive_completions_;
  const std::shared_ptr<SimSharedReceiveQueue> shared_receives_;

  QueuePairState state_ = QueuePairState::kUnconnected;
  uint32_t peer_number_ = 0;  // 0: never connected
  ConnectOptions connect_options_;
  // stamp(): packets with a smaller stamp belong to an earlier connection.
  uint64_t connected_at_ = 0;

  // Initiator. Operations are numbered in the order of posting; the PSN counts from `base_`.
  internal::SendSlots slots_;
  internal::GrowingRing<Operation> operations_;  // operations that have not completed
  uint64_t first_ = 0;                           // number of operations_.front()
  uint64_t next_ = 0;                            // number of the next operation to be sent
  uint64_t base_ = 0;
  uint32_t outstanding_reads_ = 0;
  uint32_t retries_ = 0;
  uint32_t receiver_retries_ = 0;
  bool receiver_wait_ = false;
  bool retry_timer_ = false;

  // Target.
  uint64_t expected_ = 0;
  SimTime last_delivery_{0};
  SimTime last_piece_{0};  // time at which the last piece of the WRITEs executed so far lands
  SimTime landed_{0};      // time at which all pieces of earlier WRITEs are in place
  internal::GrowingRing<Receive> receives_;
  std::vector<AtomicResult> atomic_results_;  // results of the last max_outstanding_reads atomics
};

}  // namespace cariama::sim

#endif  // CARIAMA_DTUTILS_SIM_SIM_QUEUE_PAIR_H_
