// A connection to another process: one queue pair, and send-based messages with credits.
#ifndef CARIAMA_DSFABRIC_PEERS_CONNECTION_H_
#define CARIAMA_DSFABRIC_PEERS_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/peers/answer_slots.h"
#include "dsfabric/peers/arrived_message.h"
#include "dsfabric/peers/receive_units.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/device.h"
#include "dtutils/doorbell.h"
#include "dtutils/memory.h"
#include "dtutils/transmitter.h"

namespace cariama::internal {

// Returns the error of a failed operation on a connection to `peer`, a label. The text names the
// process that cannot be reached, the failed operation, and the remedy. (to_status() of dtutils
// explains the failure to users of queue pairs.)
[[nodiscard]] absl::Status connection_failure(const Completion& completion, std::string_view peer);

// The data that both ends exchange before they connect.
struct ConnectionOffer {
  std::string address;  // of the queue pair
  // Two words that the other end writes: its credits, and its sign of life.
  RemoteMemoryLocator credit;
  RemoteMemoryLocator answers;  // AnswerSlots for results of calls to the other end
  // Of the threads that run calls (call_doorbells.h), in the order of their workers. Empty: the
  // other end wakes service threads only.
  RemoteMemoryLocator doorbells;
  uint32_t receive_units = 0;  // posted from the start to the end of the connection
  uint32_t receive_unit_bytes = 0;
};

// One queue pair to a process, with its receive units and credits.
//
// Flow control: a sender may have as many messages in flight as the receiver has units. The
// receiver WRITEs its counts of finished and of posted units into the sender's credit word whenever
// half of the units have been posted since the last WRITE; so credits cost no messages. An event
// sent as immediate data takes a unit, and counts as a message.
//
// Each of these WRITEs doubles the number of units, as far as their limit and the budget of the
// process allow (receive_units.h). A posted unit cannot be taken out of a receive queue, so only
// messages remove units: a sender that is idle uses up its credits for the units that are not
// reserved, by an empty message for each (return_idle_units()).
//
// Thread-safe, except for create() and connect(). No function blocks.
class Connection {
 public:
  // Creates an unconnected queue pair and posts its reserved receive units. After arm(), send
  // completions are signaled on `channel`. `budget` must outlive the connection.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Connection>> create(
      uint32_t rank, ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives,
      std::shared_ptr<CompletionChannel> channel, std::shared_ptr<RDMAAllocator> allocator,
      GeneralAllocator& memory, UnitBudget& budget, const ReceiveUnitLimits& units,
      uint32_t send_depth, bool answers_always_polled = false,
      std::shared_ptr<UserMemory> user_memory = nullptr);
  ~Connection();
  // Sets the numbers by which both ends name the two directions of the connection in a trace.
  // Called before connect().
  void set_trace_streams(uint64_t out, uint64_t in) {
    trace_out_ = out;
    trace_in_ = in;
  }

  // Sets the doorbells of this process that offer() names. Called before it.
  void set_doorbells(const RDMAMemory& doorbells) { doorbells_ = &doorbells; }

  [[nodiscard]] ConnectionOffer offer() const;
  [[nodiscard]] absl::Status connect(const ConnectionOffer& theirs, const std::string& peer,
                                     std::chrono::milliseconds ack_timeout);

  enum class Sent : uint8_t {
    kPosted,
    kNoCredit,  // nothing was sent: receive messages, then try again
    kFailed,    // see status()
  };

  [[nodiscard]] Sent send(const MessageHeader& header, const OutgoingCall& call);
  // Defers the message until send_deferred(), behind the messages deferred before. Returns its size
  // in bytes.
  size_t defer(const MessageHeader& header, const OutgoingCall& call);
  // Sends deferred messages as far as credits allow. Returns the bytes that are no longer deferred.
  // Throws std::bad_alloc only if it has sent none.
  size_t send_deferred();
  // Drops the deferred messages of a failed peer. Returns their bytes.
  size_t drop_deferred();
  // The immediate data of a message that returns its receive unit to the budget of its receiver.
  static constexpr uint32_t kReturnsUnit = 0x7fff'ffff;
  // Sends an event as immediate data: the index of a worker of the peer to wake, or an event of a
  // call source registry (see CallSender::post_event); not kReturnsUnit.
  [[nodiscard]] Sent wake(uint32_t immediate);

  // Transfers between registered memory and the peer's. `done`, if given, is counted down by the
  // thread that polls: the service thread, or a caller of poll_sends(). kNoCredit: the send queue
  // is full.
  [[nodiscard]] Sent write(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                           const RemoteMemoryLocator& remote, Synchronizer* done);
  [[nodiscard]] Sent read(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                          const RemoteMemoryLocator& remote, Synchronizer* done);

  // Reports the end of a call by a WRITE of 1 + outcome into the 8-byte word at `target`.
  [[nodiscard]] Sent write_outcome(CallOutcome outcome, const RemoteMemoryLocator& target);

  // Returns true if a transfer with `done` may be in flight, so that a thread must poll for its
  // completion. A hint for sleepers: false for a moment while another thread polls. It does not
  // prove that nothing is in flight; TransmitQueue::has_outstanding() does.
  [[nodiscard]] bool awaited() const { return awaited_.load(std::memory_order_acquire); }
  void poll_sends();
  // Arms the completion queue: the next send completion signals the channel.
  void arm() { static_cast<void>(send_completions_->arm()); }

  // Returns the peer's slots for this process's answers (slot 1 is the first), or nullptr if this
  // process cannot store into the peer's memory.
  [[nodiscard]] AnswerSlot* peer_answers() {
    AnswerSlot* answers = peer_answers_.load(std::memory_order_acquire);
    if (answers != nullptr) [[likely]]
      return answers;
    return map_peer_answers();
  }
  // The slots for the peer's answers to this process.
  [[nodiscard]] AnswerSlots& answers() { return *answers_; }

  // Returns the unit of a receive completion, with its size and arrow set. Requires: the completion
  // is of a unit of this connection. Called once for each, in their order.
  [[nodiscard]] ArrivedMessage* unit_of(const Completion& completion);
  // Counts the unit as waiting for its destination thread. Returns true if more than half of the
  // units wait. The caller should then copy this message and finish the unit, so that the
  // connection does not run out of units.
  [[nodiscard]] bool mark_waiting(ArrivedMessage* unit) {
    unit->waits = true;
    return (waiting_.fetch_add(1, std::memory_order_relaxed) + 1) * 2 > units_->count();
  }
  // Called when a unit's message has been run, dropped, or copied: posts the unit again and returns
  // credits. `returned`: the message returned its unit, which is therefore freed unless it is
  // reserved. Result: as return_credits(); false also if the transport has no memory for one of the
  // two, which return_credits() then repeats.
  [[nodiscard]] bool finish(ArrivedMessage* unit, bool returned = false) noexcept;
  // Called for a unit that a failed queue pair did not fill: frees it unless it is reserved.
  void drop(const ArrivedMessage* unit);
  // Writes the credits to the sender if half of the units have been posted since the last write.
  // Returns false if a write is due but the send queue has no room. Then it must be called again by
  // a thread that does not depend on the sender: a sender without credits sends no message whose
  // end would call this function. It must be called again also after std::bad_alloc.
  [[nodiscard]] bool return_credits();
  // Writes the last credits again. Called periodically, because on a transport that does not order
  // WRITEs older credits may have arrived last.
  void repeat_credits();
  // Called periodically with the time of the steady clock. If this end has sent no message for
  // `after`, and the peer has finished all, sends the messages that return the units of the peer
  // that are not reserved.
  void return_idle_units(Deadline now, std::chrono::milliseconds after);
  // Bytes of the receive units.
  [[nodiscard]] uint64_t receive_bytes() const {
    return uint64_t{units_->count()} * units_->limits().bytes;
  }
  // Sends an empty WRITE if no operation is in flight, so that a dead peer is detected.
  void probe();
  // Called at each heartbeat while FabricOptions::lease is set. Returns the number of successive
  // calls that have found no new sign of life of the peer. With `may_write`, also writes a sign of
  // life to the peer. Requires for `may_write`: the queue pairs of both ends are connected.
  [[nodiscard]] uint64_t exchange_signs(bool may_write);
  // Sets the number of signs of life that count as written. For tests of the wrap of this number.
  void set_signs(uint64_t signs) { signs_ = signs; }
  // Sets the number of messages that count as sent and finished, in both directions. For tests of
  // the wrap of this number. Requires: both ends are connected, have their reserved units only, and
  // have finished all messages.
  void set_messages(uint64_t count);
  // Ends all traffic of the connection in both directions: operations in flight complete with an
  // error, and the peer cannot access this process's memory through the connection any more. Frees
  // the units that are not posted.
  void cut();

  // Cuts a connection that was never used, and that the peer no longer uses. Its failure says
  // nothing about the peer.
  void abandon() {
    abandoned_.store(true, std::memory_order_release);
    cut();
  }
  [[nodiscard]] bool is_abandoned() const { return abandoned_.load(std::memory_order_acquire); }

  [[nodiscard]] absl::Status status() const { return queue_->status(); }
  [[nodiscard]] TransmitQueue& queue() { return *queue_; }
  [[nodiscard]] uint32_t rank() const { return rank_; }
  // Bytes of the largest call.
  [[nodiscard]] size_t max_call() const { return peer_unit_bytes_ - sizeof(MessageHeader); }
  // Returns the number of messages that are sent or deferred and that the receiver has not reported
  // as finished. A snapshot.
  [[nodiscard]] uint64_t unfinished() const;
  [[nodiscard]] uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }

 private:
  Connection(uint32_t rank, GeneralAllocator& memory) : rank_(rank), memory_(memory) {}
  // The functions below require that mutex_ is held.
  [[nodiscard]] bool has_credit();
  [[nodiscard]] Sent post(const MessageHeader* header, const OutgoingCall* call,
                          std::string_view ready);
  [[nodiscard]] Sent sent(const absl::Status& posted);
  template <typename Post>
  [[nodiscard]] Sent post_in_any_room(Post&& post);
  [[nodiscard]] bool write_due_credits(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool write_credits();
  [[nodiscard]] uint64_t credit_word() const;
  // Returns the doorbells of the thread to which the message goes, if this process maps them; else
  // nullptr.
  [[nodiscard]] ReceiverDoorbells* receiver_of(const MessageHeader& header);
  void map_peer_doorbells();
  // Unlocks mutex_ for a while.
  void add_units(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool post_unit(ArrivedMessage* unit);
  void post_unposted();
  [[nodiscard]] AnswerSlot* map_peer_answers();

  const uint32_t rank_;
  uint64_t trace_out_ = 0;
  uint64_t trace_in_ = 0;
  GeneralAllocator& memory_;
  const ProtectionDomain* domain_ = nullptr;
  const RDMAMemory* doorbells_ = nullptr;
  std::shared_ptr<CompletionQueue> send_completions_;
  std::unique_ptr<TransmitQueue> queue_;
  std::atomic<bool> awaited_{false};
  std::atomic<bool> abandoned_{false};

  // Receiving. The thread that finishes a unit posts it again.
  std::optional<ReceiveUnits> units_;  // changed with mutex_ locked, like the counts below
  uint64_t finished_ = 0;
  uint64_t posted_ = 0;    // receives; minus finished_: the number of units
  uint64_t told_ = 0;      // posted_ in the latest write of credits
  uint64_t repeated_ = 0;  // credit word that was repeated last
  std::atomic<uint64_t> waiting_{0};
  uint64_t received_ = 0;  // the peer's sent_; written by the thread that polls the port
  // Units that the transport had no memory to post, linked by InboxNode::next; guarded by mutex_.
  ArrivedMessage* unposted_ = nullptr;
  bool adds_units_ = false;  // a thread is inside add_units(); guarded by mutex_

  // Sending.
  mutable std::mutex mutex_;
  std::optional<Transmitter> transmitter_;
  std::unique_ptr<CircularAllocator> ring_;
  // Bytes 0: credits and sign of life, written by the peer; 64: the same two words of this process,
  // which are written to the peer; 128: the outcome words; 192: slots for the peer's answers.
  RDMAMemory credit_memory_;
  RemoteMemoryLocator peer_credit_;
  RemoteMemoryLocator their_doorbells_;
  std::byte* peer_doorbells_ = nullptr;  // nullptr: not mapped
  bool tried_to_map_doorbells_ = false;
  uint32_t peer_reserved_units_ = 0;
  uint32_t peer_unit_bytes_ = 0;
  uint64_t sent_ = 0;
  // The largest counts that the peer has reported.
  uint64_t finished_by_peer_ = 0;
  uint64_t posted_by_peer_ = 0;
  uint64_t idle_sent_ = 0;     // sent_ when return_idle_units() last found a new message
  Deadline idle_since_{};      // the time of that call
  uint64_t signs_ = 0;         // the latest sign of life that this process has written
  uint64_t last_sign_ = 0;     // the peer's latest sign of life
  uint64_t silent_beats_ = 0;  // heartbeats since then
  std::deque<std::string> deferred_;
  std::atomic<uint64_t> writes_{0};

  // Results of calls.
  std::optional<AnswerSlots> answers_;
  RemoteMemoryLocator their_answers_;
  std::atomic<AnswerSlot*> peer_answers_{nullptr};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_CONNECTION_H_
