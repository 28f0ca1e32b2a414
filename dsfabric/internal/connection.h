// The processes that this one talks to: connections made on first use, send-based messages with credits.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_
#define CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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

// A call that has arrived, in the receive unit that it came in or in memory of its own (calls within the
// process). Goes back to where it came from when it has been run.
struct ArrivedMessage : InboxNode {
  Connection* connection = nullptr;  // nullptr: from this process
  std::byte* bytes = nullptr;        // MessageHeader and call
  uint32_t size = 0;
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
  std::string address;         // of the queue pair
  RemoteMemoryLocator credit;  // where the other end writes how many messages it has taken
  uint32_t receive_units = 0;
  uint32_t receive_unit_bytes = 0;
};

// One queue pair to a process, with its receive units and credits.
//
// Flow control: a sender may have as many messages under way as the receiver has units. The receiver
// writes how many it has finished into the sender's credit word, by RDMA WRITE, when half of the units
// wait to be told (so no message is spent on it). Wake-ups by immediate data use a unit as well and
// count alike.
class Connection {
 public:
  // Makes the queue pair, not connected, with its units posted.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Connection>> create(
      uint32_t rank, ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives,
      std::shared_ptr<RDMAAllocator> allocator, GeneralAllocator& memory, uint32_t units,
      uint32_t unit_bytes, uint32_t send_depth);
  ~Connection();

  [[nodiscard]] ConnectionOffer offer() const;
  [[nodiscard]] absl::Status connect(const ConnectionOffer& theirs, const std::string& peer);

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
  // Wakes worker `index` of the other process with an event.
  [[nodiscard]] Sent wake(uint32_t index);

  // A unit's message has been run (or dropped): posts the unit again and returns credits.
  void finish(ArrivedMessage* unit);
  // Tells the sender about every finished unit now.
  void return_credits(bool all);

  // A completion of the receive queue: the unit, with its size set. The id must be one of ours.
  [[nodiscard]] ArrivedMessage* unit_of(const Completion& completion);

  [[nodiscard]] absl::Status status() const { return queue_->status(); }
  [[nodiscard]] TransmitQueue& queue() { return *queue_; }
  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t number() const { return queue_->queue_pair().number(); }
  // Bytes of the largest call.
  [[nodiscard]] size_t max_call() const { return peer_unit_bytes_ - sizeof(MessageHeader); }
  // Sends an empty WRITE if nothing is under way, so that a dead peer shows.
  void probe();
  // Messages sent that the receiver has not said to have finished. A snapshot.
  [[nodiscard]] uint64_t unfinished() const;
  [[nodiscard]] uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }

 private:
  Connection(uint32_t rank, GeneralAllocator& memory) : rank_(rank), memory_(memory) {}
  [[nodiscard]] uint64_t finished_by_peer() const;
  [[nodiscard]] Sent post_locked(const MessageHeader* header, const OutgoingCall* call,
                                 std::string_view ready);
  [[nodiscard]] bool post_unit(ArrivedMessage* unit);

  const uint32_t rank_;
  GeneralAllocator& memory_;
  const ProtectionDomain* domain_ = nullptr;
  std::unique_ptr<TransmitQueue> queue_;

  // Receiving. Units are posted by whoever finished one.
  uint32_t unit_bytes_ = 0;
  RDMAMemory unit_memory_;
  std::vector<ArrivedMessage> units_;
  std::atomic<uint64_t> finished_{0};

  // Sending.
  mutable std::mutex mutex_;
  std::optional<Transmitter> transmitter_;
  std::unique_ptr<CircularAllocator> ring_;
  RDMAMemory credit_memory_;  // word 0: written by the peer; word 1: what we write to it
  RemoteMemoryLocator peer_credit_;
  uint32_t peer_units_ = 0;
  uint32_t peer_unit_bytes_ = 0;
  uint64_t sent_ = 0;
  uint64_t returned_ = 0;
  std::deque<std::string> deferred_;
  std::atomic<uint64_t> writes_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CONNECTION_H_
