// Queue pairs: the thin layer, with manual signaling. The semantics are those of a verbs reliable
// connection, on every transport:
//
//  - Operations of one queue pair are executed in the order of posting. READ and atomics may be
//    overtaken by later SENDs and WRITEs unless these carry kFence.
//  - A signaled operation yields one completion in the send completion queue; its success means
//    that every operation posted before it on this queue pair has completed too. An unsignaled one
//    yields a completion only if it fails.
//  - A WRITE's or SEND's local buffer may be reused, a READ's or atomic's result be read, once its
//    completion (or that of a later signaled operation) was polled; inline data at once.
//  - The send queue holds send_depth operations. A slot is free again when a completion that covers
//    it was POLLED; until then post_send reports kQueueFull. Signal at least one operation in
//    send_depth. Transmitter (transmitter.h) does all of this by itself.
//  - After an error completion the queue pair is in the error state: outstanding and later
//    operations complete with kFlushed, also unsignaled ones, also posted receives (those of a
//    shared receive queue stay there). repair() on both sides brings it back.
//
// Arrival. The target of a WRITE without immediate sees no event. It may poll memory only where
// write_order() says what is ordered: see ArrivalOrder and docs/dtutils.md.
#ifndef CARIAMA_DTUTILS_QUEUE_PAIR_H_
#define CARIAMA_DTUTILS_QUEUE_PAIR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
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

enum class Opcode : uint8_t {
  kSend,
  kSendImmediate,
  kWrite,
  kWriteImmediate,  // 0 bytes allowed; consumes a receive request of the target
  kRead,
  kFetchAdd,     // 8 bytes, remote address 8-byte aligned
  kCompareSwap,  // 8 bytes, remote address 8-byte aligned
};

// Flags of a work request, or-ed.
// Yield a completion.
inline constexpr uint8_t kSignaled = 1;
// Copy the data at post time: no local key needed, at most max_inline bytes.
inline constexpr uint8_t kInline = 2;
// Start after all earlier READs and atomics of this queue pair.
inline constexpr uint8_t kFence = 4;
// Wake a receiver that armed its queue for solicited events.
inline constexpr uint8_t kSolicited = 8;

// A piece of local memory. `length` may be 0. With kInline the key is not looked at.
struct Segment {
  void* address = nullptr;
  uint32_t length = 0;  // bytes
  LocalKey key{};
};

// One operation. `segments` is read during post_send only.
//
// SEND, WRITE gather from the segments; READ scatters into them; an atomic puts the 8-byte old
// value into its single segment. A list without segments is a transfer of 0 bytes.
struct WorkRequest {
  uint64_t id = 0;  // returned in the completion
  Opcode opcode = Opcode::kWrite;
  uint8_t flags = 0;
  uint16_t segment_count = 0;
  uint32_t immediate = 0;
  const Segment* segments = nullptr;
  uint64_t remote_address = 0;  // WRITE, READ, atomics
  RemoteKey remote_key{};
  uint64_t operand = 0;  // FETCH_ADD: the addend; COMPARE_SWAP: the expected value
  uint64_t swap = 0;     // COMPARE_SWAP: the new value
};
static_assert(sizeof(WorkRequest) == 56);

// A place for one incoming SEND, or for the event of one WRITE_WITH_IMM (which uses no buffer).
// `segments` is read during post_receive only.
struct ReceiveRequest {
  uint64_t id = 0;
  const Segment* segments = nullptr;
  uint32_t segment_count = 0;
};

// Why a list was not posted whole. Requests are taken in order; the first that is refused stops the
// list, and what stands before it is posted. A refused request changes nothing.
enum class PostError : uint8_t {
  kNone,
  kQueueFull,         // poll completions, then try again
  kNotConnected,      // connect() has not been called, or repair() failed
  kTooManySegments,   // more than max_send_segments (max_receive_segments)
  kInlineTooLarge,    // more than max_inline bytes with kInline, or kInline on READ or an atomic
  kMessageTooLarge,   // more than max_message bytes: split it
  kMisalignedAtomic,  // the remote address is not a multiple of 8, or the segment is not 8 bytes
  kUnsupported,       // the device has no such operation (atomics on some)
  kDeviceError,       // the driver refused, see system_error
};

struct PostResult {
  uint32_t posted = 0;  // how many requests of the list were posted
  PostError error = PostError::kNone;
  int32_t system_error = 0;  // errno of kDeviceError

  [[nodiscard]] bool ok() const { return error == PostError::kNone; }
};

// The Status for a PostResult: OK, or operation, peer, reason and remedy.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status to_status(const PostResult& result,
                                                            std::string_view peer);

// How data of one WRITE, and of successive WRITEs of one queue pair, becomes visible to loads of
// the target's CPU. A completed WRITE_WITH_IMM or SEND is always preceded by all earlier WRITEs.
enum class ArrivalOrder : uint8_t {
  kNone,         // only completions order anything: use WRITE_WITH_IMM
  kWrites,       // WRITEs become visible in the order of posting; bytes within one in any order. An
                 // aligned 8-byte WRITE is visible whole
  kBytes,        // in addition, bytes within one WRITE become visible in ascending order of address
  kWithinWrite,  // bytes within one WRITE in ascending order of address, but nothing is said of one
                 // WRITE and the next: all that ibv_query_qp_data_in_order(3) promises
};
// What a poller may rely on: that the last byte of a WRITE comes last; that a later WRITE comes
// later.
[[nodiscard]] constexpr bool orders_bytes(ArrivalOrder order) {
  return order == ArrivalOrder::kBytes || order == ArrivalOrder::kWithinWrite;
}
[[nodiscard]] constexpr bool orders_writes(ArrivalOrder order) {
  return order == ArrivalOrder::kWrites || order == ArrivalOrder::kBytes;
}

// What the queue pair has after the device's limits were applied; negotiated with the peer's at
// connect() (each the smaller of both ends where the peer matters). Sizes in bytes.
struct QueuePairLimits {
  uint32_t send_depth = 0;
  uint32_t receive_depth = 0;  // 0 with a shared receive queue
  uint32_t max_send_segments = 0;
  uint32_t max_receive_segments = 0;
  uint32_t max_inline = 0;
  uint32_t max_outstanding_reads = 0;  // READs and atomics in flight; more wait in the queue
  uint32_t mtu = 0;
  uint64_t max_message = 0;  // of one work request
};

// What a queue pair is asked to be. The device may give more or less: limits() tells.
struct QueuePairOptions {
  std::shared_ptr<CompletionQueue> send_completions{};     // required
  std::shared_ptr<CompletionQueue> receive_completions{};  // required; may be the same
  std::shared_ptr<SharedReceiveQueue> shared_receives{};   // optional: then receive_depth is unused
  uint32_t send_depth = 1024;
  uint32_t receive_depth = 128;
  uint32_t max_send_segments = 4;
  uint32_t max_receive_segments = 4;
  uint32_t max_inline = 64;
};

// How a connection behaves when the peer does not answer.
struct ConnectOptions {
  std::string peer = "peer";  // the label that error texts use ("rank 3 on node1")
  // Retransmissions before kRetryExceeded: 0 to 6. (7 never ends on soft-RoCE and is refused.)
  uint32_t retry_count = 6;
  // Time of one retransmission, rounded up to what the device can do.
  std::chrono::microseconds ack_timeout{67'000};
  // Attempts when the peer posted no receive, 0 to 7; 7: without end (until the peer dies).
  uint32_t receiver_retry_count = 7;
  // Pause between these, rounded up to what the device can do.
  std::chrono::microseconds receiver_retry_delay{640};
};

enum class QueuePairState : uint8_t { kUnconnected, kConnected, kError };

// One end of a reliable connection.
//
// Thread-safe: post_send, post_receive, state and number may be called by any threads; concurrent
// lists are posted one after the other. connect() and repair() must not overlap anything else.
// Nothing here waits for the peer. Destroying it drops what is outstanding, without completions.
class CARIAMA_DTUTILS_EXPORT QueuePair {
 public:
  virtual ~QueuePair() = default;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // The bytes that the peer's connect() needs. Bring them there by any channel. Constant for the
  // life of the queue pair.
  [[nodiscard]] virtual std::string address() const = 0;

  // Connects to the queue pair with that address; the peer must do the same with ours. Receives may
  // be posted before. Data may be sent when both ends have returned.
  // Errors: INVALID_ARGUMENT (not an address, another transport, an option out of range),
  // FAILED_PRECONDITION (connected already), UNAVAILABLE (the peer is gone or unreachable).
  [[nodiscard]] virtual absl::Status connect(std::string_view peer_address,
                                             const ConnectOptions& options) = 0;

  // After an error: waits until the device is done with everything outstanding (each request's
  // kFlushed completion is then in its queue), and reconnects to the same peer. Both ends must call
  // it, and no data may be sent before both have returned. Also valid on a connection without
  // error.
  // Errors: UNAVAILABLE when the peer is dead; then only a new queue pair helps.
  [[nodiscard]] virtual absl::Status repair() = 0;

  // Puts the queue pair into the error state by hand: outstanding requests complete with kFlushed.
  virtual void fail() = 0;

  // Posts a list with one doorbell. Does not block.
  [[nodiscard]] virtual PostResult post_send(std::span<const WorkRequest> requests) = 0;
  [[nodiscard]] PostResult post_send(const WorkRequest& request) {
    return post_send(std::span(&request, 1));
  }

  // One unsignaled WRITE with its arguments in registers, for code that issues many small ones
  // (Transmitter). Where the transport can execute it at once (shm, mapped memory) it does and
  // returns true: the operation counts as posted, and the local buffer may be reused. False:
  // nothing was done; post_send() does it, or says why not. Does not block.
  [[nodiscard]] virtual bool write_now(const void* local, uint32_t bytes, LocalKey key,
                                       uint64_t remote_address, RemoteKey remote_key) {
    static_cast<void>(local), static_cast<void>(bytes), static_cast<void>(key);
    static_cast<void>(remote_address), static_cast<void>(remote_key);
    return false;
  }

  // Posts receives; not with a shared receive queue (kUnsupported). Does not block.
  [[nodiscard]] virtual PostResult post_receive(std::span<const ReceiveRequest> requests) = 0;
  [[nodiscard]] PostResult post_receive(const ReceiveRequest& request) {
    return post_receive(std::span(&request, 1));
  }

  // A pointer through which this process may load and store `remote` directly, or nullptr where the
  // transport or that memory has none (verbs; user memory on shm). A release store through it
  // orders as on any shared memory. Valid while this queue pair is connected and the region is
  // registered. For code that builds a message in its destination; needs both remote read and write
  // access.
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

  QueuePairLimits limits_;
  const ProtectionDomain* domain_ = nullptr;
  uint32_t number_ = 0;
  std::string peer_ = "(unconnected)";
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_QUEUE_PAIR_H_
