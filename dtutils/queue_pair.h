// Queue pairs: the thin layer, with manual signaling. On every transport the semantics are those of
// a verbs reliable connection:
//
//  - Operations of one queue pair are executed in the order of posting. READ and atomics may be
//    overtaken by later SENDs and WRITEs unless these carry kFence.
//  - A signaled operation yields one completion in the send completion queue; its success means
//    that every operation posted before it on this queue pair has completed too. An unsignaled one
//    yields a completion only if it fails.
//  - The local buffer of a WRITE or SEND may be reused, and the result of a READ or atomic may be
//    read, once its completion (or that of a later signaled operation) was polled. The buffer of
//    inline data may be reused as soon as post_send returns.
//  - The send queue holds send_depth operations. A slot is free again when a completion that covers
//    it was POLLED; until then post_send reports kQueueFull. Signal at least one operation in
//    send_depth. Transmitter (transmitter.h) does this automatically.
//  - After an error completion the queue pair is in the error state: outstanding and later
//    operations, signaled or not, and posted receives complete with kFlushed (receives of a shared
//    receive queue stay posted). repair() on both sides restores the connection.
//
// Arrival. The target of a WRITE without immediate sees no event. It may poll memory only as far as
// write_order() guarantees an order: see ArrivalOrder and docs/dtutils.md.
#ifndef CARIAMA_DTUTILS_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_QUEUE_PAIR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

class CompletionQueue;
class ProtectionDomain;
class SharedReceiveQueue;

// The operation of a work request.
enum class Opcode : uint8_t {
  kSend,
  kSendImmediate,  // the target's completion carries 32 bits of immediate data
  kWrite,
  kWriteImmediate,  // 0 bytes allowed; consumes a receive request of the target
  kRead,
  kFetchAdd,     // 8 bytes, remote address 8-byte aligned
  kCompareSwap,  // 8 bytes, remote address 8-byte aligned
};

// Flags of a work request, which may be combined by |. kSignaled: yield a completion.
inline constexpr uint8_t kSignaled = 1;
// kInline: copy the data at post time, at most max_inline bytes; no local key is needed.
inline constexpr uint8_t kInline = 2;
// kFence: start after all earlier READs and atomics of this queue pair.
inline constexpr uint8_t kFence = 4;
// kSolicited: wake a receiver that armed its queue for solicited events.
inline constexpr uint8_t kSolicited = 8;
// kWakesReceiver, of a SEND: `operand` is the address of ReceiverDoorbells (doorbell.h) in memory
// of the receiver that direct_access() has mapped. When the message has arrived, the sender wakes
// the thread that has armed them. Then the receiver gets no event for this message, and the thread
// must poll the completion queue. If no thread has armed them, the receiver gets the event that it
// has requested. The doorbells must stay mapped until the SEND has completed. A transport whose
// direct_access() returns nullptr ignores the flag.
inline constexpr uint8_t kWakesReceiver = 16;

// A piece of local memory. `length` may be 0. With kInline the key is ignored.
struct Segment {
  void* address = nullptr;
  uint32_t length = 0;  // bytes
  LocalKey key{};
};

// One operation. post_send reads `segments` only during the call.
//
// SEND and WRITE gather from the segments; READ scatters into them; an atomic stores the 8-byte old
// value into its single segment. A request without segments transfers 0 bytes.
struct WorkRequest {
  uint64_t id = 0;  // returned in the completion
  Opcode opcode = Opcode::kWrite;
  uint8_t flags = 0;
  uint16_t segment_count = 0;
  uint32_t immediate = 0;
  const Segment* segments = nullptr;
  uint64_t remote_address = 0;  // WRITE, READ, atomics
  RemoteKey remote_key{};
  // FETCH_ADD: the addend; COMPARE_SWAP: the expected value; SEND: see kWakesReceiver
  uint64_t operand = 0;
  uint64_t swap = 0;  // COMPARE_SWAP: the new value
};
static_assert(sizeof(WorkRequest) == 56);

// A buffer for one incoming SEND, or a slot for the event of one WRITE_WITH_IMM (which uses no
// buffer). post_receive reads `segments` only during the call.
struct ReceiveRequest {
  uint64_t id = 0;
  const Segment* segments = nullptr;
  uint32_t segment_count = 0;
};

// Why a list was not posted completely. Requests are processed in order. The first refused request
// stops the list; the requests before it are posted. A refused request changes nothing.
enum class PostError : uint8_t {
  kNone,
  kQueueFull,         // poll completions, then try again
  kNotConnected,      // connect() has not been called, or repair() failed
  kTooManySegments,   // more than max_send_segments (max_receive_segments)
  kInlineTooLarge,    // more than max_inline bytes with kInline, or kInline on READ or an atomic
  kMessageTooLarge,   // more than max_message bytes: split it
  kMisalignedAtomic,  // the remote address is not a multiple of 8, or the segment is not 8 bytes
  kUnsupported,       // the device has no such operation (atomics on some)
  kDeviceError,       // the driver refused the request, see system_error
};

struct PostResult {
  uint32_t posted = 0;  // number of requests of the list that were posted
  PostError error = PostError::kNone;
  uint16_t system_error = 0;  // errno of kDeviceError

  [[nodiscard]] bool ok() const { return error == PostError::kNone; }
};
static_assert(sizeof(PostResult) == 8);  // returned in one register

// Converts a PostResult to a Status: OK, or an error that names operation, peer, reason and remedy.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status to_status(const PostResult& result,
                                                            std::string_view peer);

// The order in which the data of one WRITE, and of successive WRITEs of one queue pair, becomes
// visible to loads of the target's CPU. On every transport all earlier WRITEs are visible before a
// WRITE_WITH_IMM or SEND completes at the target.
enum class ArrivalOrder : uint8_t {
  kNone,  // only completions give an order: use WRITE_WITH_IMM
  // WRITEs become visible in the order of posting; the bytes within one WRITE in any order. An
  // aligned 8-byte WRITE becomes visible as a whole.
  kWrites,
  // In addition to kWrites, bytes within one WRITE become visible in ascending order of address.
  kBytes,
  // Bytes within one WRITE become visible in ascending order of address, but successive WRITEs are
  // not ordered: this is all that ibv_query_qp_data_in_order(3) guarantees.
  kWithinWrite,
  // Bytes become visible in ascending order of address within each aligned block of 128 bytes of a
  // WRITE. Neither blocks nor successive WRITEs are ordered. Only `sim` returns this value: a card
  // that guarantees only this order returns kNone.
  kWithinBlocks,
};
// Returns true if the last byte of a WRITE becomes visible last.
[[nodiscard]] constexpr bool orders_bytes(ArrivalOrder order) {
  return order == ArrivalOrder::kBytes || order == ArrivalOrder::kWithinWrite;
}
// Returns true if a later WRITE becomes visible later.
[[nodiscard]] constexpr bool orders_writes(ArrivalOrder order) {
  return order == ArrivalOrder::kWrites || order == ArrivalOrder::kBytes;
}

// Effective limits of a queue pair, after the device's limits were applied. connect() reduces a
// limit that both ends share to the smaller of both values. Sizes in bytes.
struct QueuePairLimits {
  uint32_t send_depth = 0;
  uint32_t receive_depth = 0;  // 0 with a shared receive queue
  uint32_t max_send_segments = 0;
  uint32_t max_receive_segments = 0;
  uint32_t max_inline = 0;
  // READs and atomics in flight; further ones wait in the send queue.
  uint32_t max_outstanding_reads = 0;
  uint32_t mtu = 0;
  uint64_t max_message = 0;  // of one work request
};

// Requested properties of a queue pair. The device may grant more or less: see limits().
struct QueuePairOptions {
  std::shared_ptr<CompletionQueue> send_completions{};     // required
  std::shared_ptr<CompletionQueue> receive_completions{};  // required; may be the same
  // Optional; with it receive_depth is unused.
  std::shared_ptr<SharedReceiveQueue> shared_receives{};
  uint32_t send_depth = 1024;
  uint32_t receive_depth = 128;
  uint32_t max_send_segments = 4;
  uint32_t max_receive_segments = 4;
  uint32_t max_inline = 64;
};

// Behaviour of a connection when the peer does not acknowledge.
struct ConnectOptions {
  std::string peer = "peer";  // the label that error texts use ("rank 3 on node1")
  // Retransmissions before kRetryExceeded: 0 to 6. (7 never ends on soft-RoCE and is refused.)
  uint32_t retry_count = 6;
  // Time until one retransmission, rounded up to a value that the device supports.
  std::chrono::microseconds ack_timeout{67'000};
  // Attempts when the peer posted no receive, 0 to 7. 7 retries without end (until the peer dies).
  uint32_t receiver_retry_count = 7;
  // Pause between these attempts, rounded up to a value that the device supports.
  std::chrono::microseconds receiver_retry_delay{640};
};

enum class QueuePairState : uint8_t { kUnconnected, kConnected, kError };

// A region of the peer into which this process stores WRITEs itself, without a request. For code
// that issues many small WRITEs (Transmitter). QueuePair::open_direct_writer() sets it.
//
// Thread-compatible: one thread at a time. Copyable. Requires: it is not used after its queue pair
// was destroyed.
class DirectWriter {
 public:
  // How this process reaches the region. Filled by the transport that makes the writer.
  struct Mapping {
    uint64_t key = 0;
    uint64_t base = 0;    // in the owner's addresses
    uint64_t length = 0;  // bytes
    uint64_t delta = 0;   // owner's address + delta = address in this process (modulo 2^64)
    // A WRITE may be executed while *state == *usable (the queue pair is connected, and no
    // operation waits) and *registered == key (the owner's table of keys still has the region).
    const std::atomic<uint64_t>* state = nullptr;
    const std::atomic<uint64_t>* usable = nullptr;
    const std::atomic<uint64_t>* registered = nullptr;
    // write() uses it for everything but one aligned 8-byte word.
    void (*copy)(std::byte* to, const std::byte* from, size_t bytes) = nullptr;
  };

  // Creates an empty writer: write() returns false.
  DirectWriter() = default;
  // Requires: all pointers of `mapping` are valid as long as the queue pair lives.
  explicit DirectWriter(const Mapping& mapping) : at_(mapping) {}

  // Executes one unsignaled WRITE of [local, local + bytes) to `address` of the region of `key`.
  // Returns true if it was executed: the operation counts as posted, and the local buffer may be
  // reused. Returns false if nothing was done: the writer has another key, the bytes leave the
  // region, the registration has ended, or the queue pair is not connected or has operations that
  // wait. Then post_send() posts the WRITE or reports the error. Does not block.
  [[nodiscard, gnu::always_inline]] bool write(const std::byte* local, uint64_t bytes,
                                               uint64_t address, RemoteKey key) {
    uint64_t end = 0;  // offset behind the last byte, relative to at_.base
    if (key.value != at_.key || __builtin_add_overflow(address - at_.base, bytes, &end) ||
        end > at_.length ||
        at_.state->load(std::memory_order_acquire) != at_.usable->load(std::memory_order_acquire) ||
        at_.registered->load(std::memory_order_acquire) != at_.key) [[unlikely]] {
      return false;
    }
    std::byte* const to = reinterpret_cast<std::byte*>(address + at_.delta);
    if (bytes == sizeof(uint64_t) && reinterpret_cast<uintptr_t>(to) % sizeof(uint64_t) == 0) {
      uint64_t word;
      std::memcpy(&word, local, sizeof word);
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to))
          .store(word, std::memory_order_release);
    } else {
      at_.copy(to, local, bytes);
    }
    return true;
  }

 private:
  // The words that an empty writer compares. They differ.
  static constexpr std::atomic<uint64_t> kClosed[2]{0, 1};

  Mapping at_{.state = &kClosed[0], .usable = &kClosed[1]};
};

// One end of a reliable connection.
//
// Thread-safety: any thread may call any function, except that connect() and repair() must not
// overlap any other call. Concurrent lists are posted one after the other. The post functions do
// not block. On shm connect() waits until the peer's service thread answers, at most 10 s. The
// destructor drops outstanding requests without completions, and completions that have not been
// polled: a poll() that begins afterwards returns none of this queue pair.
class CARIAMA_DTUTILS_EXPORT QueuePair {
 public:
  virtual ~QueuePair() = default;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // Returns the bytes that the peer's connect() needs. The caller transports them over any channel.
  // Constant for the life of the queue pair.
  [[nodiscard]] virtual std::string address() const = 0;

  // Connects to the queue pair with the address `peer_address`; the peer must connect to this queue
  // pair's address. Receives may be posted before connect(). Data may be sent when connect() has
  // returned at both ends. Errors: INVALID_ARGUMENT (not an address, another transport, an option
  // out of range), FAILED_PRECONDITION (connected already), UNAVAILABLE (the peer is gone or
  // unreachable).
  [[nodiscard]] virtual absl::Status connect(std::string_view peer_address,
                                             const ConnectOptions& options) = 0;

  // After an error: blocks until the device has ended all outstanding requests (the kFlushed
  // completion of each request is then in its completion queue), at most 2 s on shm and 10 s on
  // verbs, and reconnects to the same peer. Both ends must call it, and neither may send data
  // before repair() has returned at both. Also valid on a connection without error. Errors:
  // UNAVAILABLE (shm, sim: the peer is dead, create a new queue pair; shm: the peer is stopped in
  // the middle of a message, call repair() again), INTERNAL (verbs: the device has not flushed all
  // requests, create a new queue pair), FAILED_PRECONDITION (never connected). On verbs repair()
  // may return OK although the peer is dead; then the next operation fails.
  [[nodiscard]] virtual absl::Status repair() = 0;

  // Moves the queue pair to the error state: outstanding requests complete with kFlushed.
  virtual void fail() = 0;

  // Posts a list of requests by one call. Does not block.
  [[nodiscard]] virtual PostResult post_send(std::span<const WorkRequest> requests) = 0;
  [[nodiscard]] PostResult post_send(const WorkRequest& request) { return post_one(request); }

  // Sets `writer` to the region of `key`, if this process can store into it directly (shm, mapped
  // memory, remote write access) and this process has accessed the region before. Returns false,
  // and leaves `writer` as it was, otherwise. Does not block.
  [[nodiscard]] virtual bool open_direct_writer(RemoteKey key, DirectWriter& writer);

  // Posts receives. With a shared receive queue it returns kUnsupported. Does not block.
  [[nodiscard]] virtual PostResult post_receive(std::span<const ReceiveRequest> requests) = 0;
  [[nodiscard]] PostResult post_receive(const ReceiveRequest& request) {
    return post_receive(std::span(&request, 1));
  }

  // Returns a pointer through which this process may load and store `remote` directly, or nullptr
  // if the transport or that memory does not support it (verbs; user memory on shm). A release
  // store through it orders as on any shared memory. Valid while this queue pair is connected and
  // the region is registered. For code that builds a message in its destination. Requires both
  // remote read and remote write access.
  [[nodiscard]] virtual std::byte* direct_access(const RemoteMemoryLocator& remote) {
    static_cast<void>(remote);
    return nullptr;
  }

  [[nodiscard]] virtual QueuePairState state() const = 0;
  [[nodiscard]] virtual ArrivalOrder write_order() const = 0;
  [[nodiscard]] const QueuePairLimits& limits() const { return limits_; }
  [[nodiscard]] const ProtectionDomain* domain() const { return domain_; }
  [[nodiscard]] uint32_t number() const { return number_; }        // unique within its device
  [[nodiscard]] const std::string& peer() const { return peer_; }  // the label given to connect()

 protected:
  QueuePair() = default;

  // Posts one request. A transport overrides it if one request takes it fewer steps than a list.
  [[nodiscard]] virtual PostResult post_one(const WorkRequest& request);

  QueuePairLimits limits_;
  const ProtectionDomain* domain_ = nullptr;
  uint32_t number_ = 0;
  std::string peer_ = "(unconnected)";
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_QUEUE_PAIR_H_
