// The processes that this one talks to: connections made on first use, send-based messages with
// credits.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_
#define CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/internal/answer_slots.h"
#include "dsfabric/internal/inbox.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/device.h"
#include "dtutils/memory.h"
#include "dtutils/transmitter.h"

namespace cariama::internal {

class Connection;

// What precedes the call in a send-based message.
struct MessageHeader {
  uint32_t destination;  // index of a worker of the receiving process, or kNoThread: its service
  uint32_t source;       // global id of the calling thread, or kNoThread
};
static_assert(sizeof(MessageHeader) == 8);

// A call that has arrived, in the receive unit that it came in or in memory of its own. Goes back
// to where it came from when it has been run.
struct ArrivedMessage : InboxNode {
  Connection* connection = nullptr;  // whose unit it is; nullptr: in memory of its own
  std::byte* bytes = nullptr;        // MessageHeader and call
  uint32_t size = 0;
  uint32_t rank = 0;                 // of the process that sent it
  bool held = false;                 // counted by Connection::hold()
  std::coroutine_handle<> resume{};  // no call, but a coroutine of this process that goes on
};

// One in memory of its own: a call within the process, or one that waits long.
struct OwnMessage : ArrivedMessage {
  OwnMessage(size_t bytes_of_it, uint32_t from)
      : storage(std::make_unique<uint64_t[]>((bytes_of_it + 7) / 8)) {
    bytes = reinterpret_cast<std::byte*>(storage.get());
    size = static_cast<uint32_t>(bytes_of_it);
    rank = from;
  }
  std::unique_ptr<uint64_t[]> storage;
};

// A call about to be sent: how long it is and how to write it. References what it was made from.
struct OutgoingCall {
  FunctionId id;
  uint8_t flags = 0;
  NotifyTarget notify{};  // with kCallNotify or kCallReturn
  size_t bytes = 0;       // of closure and arguments
  const void* call = nullptr;
  void (*write_call)(const void* call, std::byte* at) = nullptr;

  template <typename Call>
  [[nodiscard]] static OutgoingCall of(const Call& call) {
    OutgoingCall out;
    out.id = Call::id();
    out.bytes = call.bytes();
    out.call = &call;
    out.write_call = [](const void* self, std::byte* at) {
      static_cast<const Call*>(self)->write(at);
    };
    return out;
  }

  // Bytes of header, notification and closure.
  [[nodiscard]] size_t total() const {
    return sizeof(CallHeader) + (flags != 0 ? sizeof(NotifyTarget) : 0) + bytes;
  }
  void write(std::byte* at) const {
    const CallHeader header = CallHeader::make(id, total() - sizeof(CallHeader), flags);
    std::memcpy(at, &header, sizeof header);
    at += sizeof header;
    if (flags != 0) {
      std::memcpy(at, &notify, sizeof notify);
      at += sizeof notify;
    }
    write_call(call, at);
  }
};

// What both ends of a connection tell each other before it exists.
struct ConnectionOffer {
  std::string address;          // of the queue pair
  RemoteMemoryLocator credit;   // where the other end writes how many messages it has taken
  RemoteMemoryLocator answers;  // AnswerSlots for results of calls to the other end
  uint32_t receive_units = 0;
  uint32_t receive_unit_bytes = 0;
};

// One queue pair to a process, with its receive units and credits.
//
// Flow control: a sender may have as many messages under way as the receiver has units. The
// receiver writes how many it has finished into the sender's credit word, by RDMA WRITE, when half
// of the units wait to be told (so no message is spent on it). Wake-ups by immediate data use a
// unit as well and count alike.
//
// Thread-safe but for create() and connect(). Nothing here waits.
class Connection {
 public:
  // Makes the queue pair, not connected, with its units posted. Send completions come to `channel`
  // when arm() was called.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Connection>> create(
      uint32_t rank, ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives,
      std::shared_ptr<CompletionChannel> channel, std::shared_ptr<RDMAAllocator> allocator,
      GeneralAllocator& memory, uint32_t units, uint32_t unit_bytes, uint32_t send_depth,
      bool answers_always_attended = false);
  ~Connection();

  [[nodiscard]] ConnectionOffer offer() const;
  [[nodiscard]] absl::Status connect(const ConnectionOffer& theirs, const std::string& peer,
                                     std::chrono::milliseconds ack_timeout);

  enum class Sent : uint8_t {
    kPosted,
    kNoCredit,  // nothing happened: let calls in, and try again
    kFailed,    // see status()
  };

  [[nodiscard]] Sent send(const MessageHeader& header, const OutgoingCall& call);
  // Keeps the message for flush(), behind what is kept already. Returns its bytes.
  size_t defer(const MessageHeader& header, const OutgoingCall& call);
  // Sends what was kept back, as far as credits go. Returns the bytes that are no longer kept.
  size_t flush();
  // Forgets what was kept back: the peer is dead. Returns its bytes.
  size_t drop_deferred();
  // Sends an event: the number of a worker of the other process that is to be woken, or what
  // FabricCore::post_event says.
  [[nodiscard]] Sent wake(uint32_t immediate);

  // Transfers between registered memory and the peer's. `done`, if given, is counted down by
  // whoever polls: the service thread, or poll_sends(). kNoCredit: the send queue is full.
  [[nodiscard]] Sent write(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                           const RemoteMemoryLocator& remote, Synchronizer* done);
  [[nodiscard]] Sent read(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                          const RemoteMemoryLocator& remote, Synchronizer* done);

  // Tells the end of a call by writing 1 + outcome into the 8-byte word at `target`.
  [[nodiscard]] Sent write_outcome(CallOutcome outcome, const RemoteMemoryLocator& target);

  // Whether a transfer with `done` may be under way, so that somebody has to poll.
  [[nodiscard]] bool awaited() const { return awaited_.load(std::memory_order_acquire); }
  void poll_sends();
  // Asks for an event at the next send completion.
  void arm() { static_cast<void>(send_completions_->arm()); }

  // Where the peer has its slots for our answers, if we can store there; slot 1 is the first.
  // nullptr: we cannot.
  [[nodiscard]] AnswerSlot* peer_answers() {
    AnswerSlot* answers = peer_answers_.load(std::memory_order_acquire);
    if (answers != nullptr) [[likely]]
      return answers;
    return map_peer_answers();
  }
  // Slots for the peer's answers to us.
  [[nodiscard]] AnswerSlots& answers() { return *answers_; }

  // A completion of the receive queue: the unit, with its size set. The id must be one of ours.
  [[nodiscard]] ArrivedMessage* unit_of(const Completion& completion);
  // Notes that the unit waits for its thread. True: so many do that this one should be copied and
  // finished instead, so that the others of the connection find units.
  [[nodiscard]] bool hold(ArrivedMessage* unit) {
    unit->held = true;
    return (held_.fetch_add(1, std::memory_order_relaxed) + 1) * 2 > units_.size();
  }
  // A unit's message has been run, dropped, or copied: posts the unit again and returns credits.
  // False: as return_credits().
  [[nodiscard]] bool finish(ArrivedMessage* unit);
  // Tells the sender about finished units, once they are many enough. False: they are, but the send
  // queue has no room. It has to be called again, by somebody who does not wait for the sender: one
  // that has used up its credits sends nothing whose end would call it.
  [[nodiscard]] bool return_credits();
  // Once in a while, when it is quiet: tells it again. A device without order may have let an older
  // count come last.
  void repeat_credits();
  // Sends an empty WRITE if nothing is under way, so that a dead peer shows.
  void probe();

  [[nodiscard]] absl::Status status() const { return queue_->status(); }
  [[nodiscard]] TransmitQueue& queue() { return *queue_; }
  [[nodiscard]] uint32_t rank() const { return rank_; }
  // Bytes of the largest call.
  [[nodiscard]] size_t max_call() const { return peer_unit_bytes_ - sizeof(MessageHeader); }
  // Messages sent or kept that the receiver has not said to have finished. A snapshot.
  [[nodiscard]] uint64_t unfinished() const;
  [[nodiscard]] uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }

 private:
  Connection(uint32_t rank, GeneralAllocator& memory) : rank_(rank), memory_(memory) {}
  // With mutex_ held.
  [[nodiscard]] bool has_credit();
  [[nodiscard]] Sent post(const MessageHeader* header, const OutgoingCall* call,
                          std::string_view ready);
  [[nodiscard]] Sent sent(const absl::Status& posted);
  template <typename Post>
  [[nodiscard]] Sent post_in_any_room(Post&& post);
  [[nodiscard]] bool write_credits(uint64_t finished);
  [[nodiscard]] bool post_unit(ArrivedMessage* unit);
  [[nodiscard]] AnswerSlot* map_peer_answers();

  const uint32_t rank_;
  GeneralAllocator& memory_;
  const ProtectionDomain* domain_ = nullptr;
  std::shared_ptr<CompletionQueue> send_completions_;
  std::unique_ptr<TransmitQueue> queue_;
  std::atomic<bool> awaited_{false};

  // Receiving. Units are posted by whoever finished one.
  uint32_t unit_bytes_ = 0;
  RDMAMemory unit_memory_;
  std::vector<ArrivedMessage> units_;
  std::atomic<uint64_t> finished_{0};
  std::atomic<uint64_t> held_{0};

  // Sending.
  mutable std::mutex mutex_;
  std::optional<Transmitter> transmitter_;
  std::unique_ptr<CircularAllocator> ring_;
  // Line 0: written by the peer; 1: what we write to it; 2: outcomes; then slots for its answers.
  RDMAMemory credit_memory_;
  RemoteMemoryLocator peer_credit_;
  uint32_t peer_units_ = 0;
  uint32_t peer_unit_bytes_ = 0;
  uint64_t sent_ = 0;
  uint64_t finished_by_peer_ = 0;  // the most that the peer has said
  uint64_t returned_ = 0;
  uint64_t repeated_ = 0;
  std::deque<std::string> deferred_;
  std::atomic<uint64_t> writes_{0};

  // Results of calls.
  std::optional<AnswerSlots> answers_;
  RemoteMemoryLocator their_answers_;
  std::atomic<AnswerSlot*> peer_answers_{nullptr};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_
