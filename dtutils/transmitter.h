// Transfers with automatic selective signaling and memory recycling (Seriema §4.1); each takes one
// line of code.
//
//   auto queue = TransmitQueue::create(*domain, {.receive_completions = completions});
//   ... connect (*queue)->queue_pair() ...
//   auto transmitter = Transmitter::create(**queue);  // one per thread; threads share the queue
//   RDMAMemory* unit = circular.allocate();
//   transmitter->write(*unit, 0, 64, there);          // no signaling, no polling, no bookkeeping
//   transmitter->write(*unit, 0, 64, there, &synchronizer);
//   transmitter->wait(synchronizer, deadline);
//
// A TransmitQueue is a queue pair whose send side is accounted for: every operation counts; a
// completion is requested once per quarter of the depth that the queue really has; the queue never
// overflows; and one update of the flush number frees all buffers that a completion covers. A
// Transmitter is the state of one thread on the queue. Threads that share a queue never wait for
// one another to account for operations or to free memory; the proof is in signaling.h and
// docs/dtutils.md.
//
// Cost: sizeof(TransmitQueue) and sizeof(Transmitter) are checked below. Each lane (the state of
// one thread) takes 256 bytes, and 32 bytes per signaled operation in flight (16 records
// initially). A WRITE without a Synchronizer that this process can store itself (DirectWriter) is
// complete on return and takes no slot. Otherwise a transfer costs, on the fast path, one post and
// no atomic read-modify-write, and one transfer in depth/4 (with several threads: in
// depth/(8 * threads)) takes credits from the shared counter and is signaled.
#ifndef CARIAMA_DTUTILS_TRANSMITTER_H_
#define CARIAMA_DTUTILS_TRANSMITTER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/completion.h"
#include "dtutils/device.h"
#include "dtutils/doorbell.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/queue_pair.h"
#include "dtutils/signaling.h"
#include "dtutils/statistics.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

class LentMemory;
class Transmitter;
class UserMemory;

// Options of a TransmitQueue.
struct TransmitOptions {
  // Interval of empty WRITEs that probe the peer while a thread waits and no operation is
  // outstanding, since then no retransmission can detect a dead peer. 0: never.
  std::chrono::milliseconds probe_interval{100};
  // Lends memory that the user did not register to Transmitter's write(), read() and send() of a
  // std::span. Must belong to the queue pair's domain. Empty: these functions return
  // FAILED_PRECONDITION.
  std::shared_ptr<UserMemory> user_memory{};
  // Returns the error of a failed operation towards `peer`, the label given to connect(). A layer
  // whose users do not know queue pairs sets another function.
  absl::Status (*explain_failure)(const Completion& completion, std::string_view peer) = to_status;
};

// Counters of a queue since its creation. They also appear in the process's statistics
// (statistics.h), as "transmit_queue.*" of the peer. Failures, repairs and waits for a full queue
// are in the trace.
struct TransmitStatistics {
  uint64_t operations = 0;  // posted operations of any kind, including signal_all() and probes
  uint64_t stored = 0;    // of these, WRITEs that this process stored itself (shm): never signaled
  uint64_t bytes = 0;     // payload of transfers
  uint64_t signaled = 0;  // operations that were signaled
  uint64_t grants = 0;    // number of times that credits were taken from the shared counter
  uint64_t full_waits = 0;   // number of times that a thread found the send queue full
  uint64_t completions = 0;  // polled completions
  uint64_t failures = 0;     // completions with an error
};

// A queue pair with an accounted send side. Create one per connection, and one Transmitter on it
// for each thread. The queue owns its send completion queue; receives work as on any queue pair.
//
// Thread-safe, except for repair() and destruction, which must not overlap any use.
class CARIAMA_DTUTILS_EXPORT TransmitQueue {
 public:
  // The largest number of Transmitters on one queue.
  static constexpr size_t kMaxTransmitters = 256;
  // The largest number of operations in flight that one queue accounts for, even if the device's
  // queues are deeper.
  static constexpr uint32_t kMaxDepth = 1u << 19;

  // Creates the queue pair. If `options.send_completions` is set, no other object may use that
  // completion queue (set one with a channel in order to sleep until a transfer has completed). If
  // it is empty, the TransmitQueue creates its own. The other fields and the errors are those of
  // ProtectionDomain::create_queue_pair.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TransmitQueue>> create(
      ProtectionDomain& domain, QueuePairOptions options, const TransmitOptions& behaviour = {});

  // Drops outstanding operations: their Synchronizers fail with UNAVAILABLE, their buffers become
  // free. Requires: no Transmitter of this queue exists.
  ~TransmitQueue();
  TransmitQueue(const TransmitQueue&) = delete;
  TransmitQueue& operator=(const TransmitQueue&) = delete;

  // Returns the queue pair, for connect(), receives and limits. Unsignaled sends may be posted to
  // it directly, with any id, but the queue does not account for them: leave room in send_depth for
  // them, or use Transmitter::post. If one fails, status() returns the error. Signaled sends must
  // not be posted directly, since the queue would take their completions for its own.
  [[nodiscard]] QueuePair& queue_pair() { return *queue_pair_; }

  // Polls completions: frees buffers and slots, counts Synchronizers down. Returns the number of
  // completions. Never blocks. Thread-safe. Transmitters call it when they need to.
  size_t progress();

  // Returns OK, or the error that moved the queue pair to the error state.
  [[nodiscard]] absl::Status status() const;

  // Restores the connection after a failure. Both ends must call it. See QueuePair::repair.
  [[nodiscard]] absl::Status repair();

  // Returns true if a signaled operation was posted whose completion has not been polled. (After
  // Transmitter::signal_all(): true if any operation is outstanding.) The result is a snapshot.
  // Takes a lock.
  [[nodiscard]] bool has_outstanding() const { return !is_drained(); }
  [[nodiscard]] uint32_t depth() const { return static_cast<uint32_t>(signaling_.depth()); }
  // Returns the number of operations of one Transmitter between two signaled ones; it is smaller
  // once several Transmitters have existed at the same time.
  [[nodiscard]] uint32_t interval() const { return static_cast<uint32_t>(signaling_.interval()); }
  [[nodiscard]] TransmitStatistics statistics() const;

 private:
  friend class Transmitter;

  template <typename T>
  using Atomic = std::atomic<T>;
  using Signaling = internal::Signaling<Atomic>;

  // A transfer of user memory in flight. The thread that polls its completion ends the use of the
  // memory, and then counts `done` down.
  struct LentTransfer {
    std::unique_ptr<LentMemory> memory;
    Synchronizer* done;
    bool reads;  // the device writes to the memory
    ~LentTransfer();
    void end(const absl::Status& status);
  };

  // The object that a completion counts down: a Synchronizer, a LentTransfer, which is also
  // deleted, or none. One word: the lowest bit distinguishes the two types.
  class Ending {
   public:
    Ending(Synchronizer* done = nullptr)  // NOLINT(google-explicit-constructor)
        : word_(reinterpret_cast<uintptr_t>(done)) {}
    explicit Ending(LentTransfer* lent) : word_(reinterpret_cast<uintptr_t>(lent) | 1) {}
    [[nodiscard]] bool empty() const { return word_ == 0; }
    void end(absl::Status status) const;

   private:
    uintptr_t word_;
  };

  // A signaled operation in flight. The lane's thread takes the record; the thread that polls the
  // operation's completion releases it.
  struct Record {
    std::atomic<bool> busy{false};
    Ending ending;
    internal::Proof proof;
  };

  struct Lane : Signaling::Lane {
    Record* take_record();

    // Written by the lane's thread only.
    std::atomic<uint64_t> stored{0};  // WRITEs that this process has stored itself
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> signaled{0};
    std::atomic<uint64_t> grants{0};
    std::atomic<uint64_t> full_waits{0};
    // Record blocks, each twice as large as the one before; never freed while the queue lives.
    std::array<std::unique_ptr<Record[]>, 16> blocks;
    std::atomic<size_t> block_count{0};
    size_t block = 0;  // where take_record() continues to search
    size_t slot = 0;
  };
  static_assert(sizeof(Lane) == 256 && sizeof(Record) == 32);

  TransmitQueue(std::shared_ptr<CompletionQueue> completions, std::unique_ptr<QueuePair> queue_pair,
                uint32_t depth, const TransmitOptions& options);

  static constexpr size_t kFirstRecords = 16;  // in a lane's first block

  template <typename Function>
  void for_each_busy_record(Function&& function) const;
  // Returns true if no signaled operation is in flight; then no completion will touch a
  // Synchronizer.
  [[nodiscard]] bool is_drained() const;
  [[nodiscard]] absl::StatusOr<Lane*> take_lane();
  void return_lane(Lane* lane) noexcept;
  void complete(const Completion& completion);
  [[nodiscard]] absl::Status note_failure(const Completion& completion);
  // The work request id of signaled operations.
  [[nodiscard]] static uint64_t id_of(const Record& record) {
    return reinterpret_cast<uint64_t>(&record);
  }
  [[nodiscard]] bool names_record(uint64_t id) const;
  // The work request id of unsignaled operations, which complete only in error. Odd, so that it
  // differs from every Record's address.
  [[nodiscard]] static constexpr uint64_t unsignaled_id() { return 1; }

  std::atomic<bool> failed_{false};
  bool failure_is_cause_ = false;  // false if failure_ is only a flushed request
  std::shared_ptr<CompletionQueue> completions_;
  std::unique_ptr<QueuePair> queue_pair_;
  FlushCell* cell_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Signaling signaling_;
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> failures_{0};

  const TransmitOptions options_;
  mutable std::mutex mutex_;  // set-up and failure only
  absl::Status failure_;      // the first failure since the last repair
  std::vector<Lane*> unused_lanes_;
  CounterSet counters_;  // last: reads the members above
};

static_assert(sizeof(TransmitQueue) == 448);

// Behaviour of a transfer when the send queue is full.
enum class FullQueue : uint8_t {
  kWait,  // polls until there is room (through the thread's wait hook), or until the queue fails
  // Returns RESOURCE_EXHAUSTED and posts nothing. A split transfer that has begun waits instead.
  kRefuse,
};

// The state of one thread on a TransmitQueue. Its functions post every kind of operation with
// automatic signaling.
//
// Each function posts and returns; OK means posted. With FullQueue::kWait it blocks while the send
// queue is full, until there is room or the queue fails; there is no deadline. It also blocks, with
// kRefuse too, until the transfer has completed, if RDMAMemory::kMaxUses uses of the buffer by
// other queue pairs have not ended. After an error `done` is not counted down. Requests of a split
// transfer that were posted before the error are still executed: call signal_all(), and wait until
// the memory is free, before you reuse it. If `done` is given, it is counted down when the transfer
// has completed, or failed with the reason. Without it a failure shows in status(), in the next
// operation, and in wait(). The local memory may be reused when memory.is_free(); the data of a
// READ may be read once `done` was counted down.
//
// A transfer longer than one work request can carry is split into several requests. A transfer of 0
// bytes completes like any other. Data of up to limits().max_inline bytes is copied immediately, so
// its buffer stays free.
//
// Errors: INVALID_ARGUMENT (the range leaves the local memory or the locator; a SEND too long for
// one message), RESOURCE_EXHAUSTED (kRefuse), UNAVAILABLE (the queue has failed: the text says why;
// repair() it).
//
// Thread-compatible: one thread at a time. Movable. The queue must outlive it.
class CARIAMA_DTUTILS_EXPORT Transmitter {
 public:
  // A part of a buffer, for write_pieces() and read_pieces().
  struct Piece {
    RDMAMemory* memory = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  // Creates a Transmitter on `queue`. Error: RESOURCE_EXHAUSTED (kMaxTransmitters exist). Cheap
  // enough for short-lived threads.
  [[nodiscard]] static absl::StatusOr<Transmitter> create(TransmitQueue& queue,
                                                          FullQueue full_queue = FullQueue::kWait);
  ~Transmitter();
  Transmitter(Transmitter&& other) noexcept;
  Transmitter& operator=(Transmitter&& other) noexcept;

  // RDMA WRITE of local[offset, offset + bytes) to the start of `remote`.
  [[nodiscard]] absl::Status write(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                   const RemoteMemoryLocator& remote,
                                   Synchronizer* done = nullptr) {
    // Fast path, where this process can store the data itself. The WRITE is complete on return, so
    // it takes no slot of the send queue and no credit, and the buffer needs no tag.
    if (done != nullptr || local.range() != copied_range_ || !fits(local, offset, bytes, remote) ||
        !direct_writer_.write(local.get_buffer() + offset, bytes, remote.address, remote.key))
        [[unlikely]] {
      return write_elsewhere(local, offset, bytes, remote.address, remote.length, remote.key, done);
    }
    count_stored(bytes);
    return absl::OkStatus();
  }

  // RDMA READ of the first `bytes` bytes of `remote` into local[offset, offset + bytes).
  [[nodiscard]] absl::Status read(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  const RemoteMemoryLocator& remote, Synchronizer* done = nullptr) {
    return transfer(Opcode::kRead, local, offset, bytes, remote.address, remote.length, remote.key,
                    done);
  }

  // WRITE with immediate: the target gets a completion with `immediate` after the data is in place.
  // If the transfer is split, only its last part carries `immediate`.
  [[nodiscard]] absl::Status write_immediate(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                             const RemoteMemoryLocator& remote, uint32_t immediate,
                                             Synchronizer* done = nullptr);

  // Posts a WRITE_WITH_IMM of 0 bytes: an event without data.
  [[nodiscard]] absl::Status notify(uint32_t immediate, Synchronizer* done = nullptr);

  // SEND of local[offset, offset + bytes) to a receive that the peer posted.
  [[nodiscard]] absl::Status send(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  Synchronizer* done = nullptr);
  // The same with kWakesReceiver (queue_pair.h): wakes the thread that has armed `receiver`.
  [[nodiscard]] absl::Status send(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  ReceiverDoorbells& receiver);

  // Adds `addend` to the 8-byte word at the start of `remote`; the old value is stored to
  // local[offset, offset + 8).
  [[nodiscard]] absl::Status fetch_add(RDMAMemory& local, uint64_t offset,
                                       const RemoteMemoryLocator& remote, uint64_t addend,
                                       Synchronizer* done = nullptr);

  // Sets the 8-byte word at the start of `remote` to `desired` if it equals `expected`; the old
  // value is stored to local[offset, offset + 8).
  [[nodiscard]] absl::Status compare_swap(RDMAMemory& local, uint64_t offset,
                                          const RemoteMemoryLocator& remote, uint64_t expected,
                                          uint64_t desired, Synchronizer* done = nullptr);

  // Gather the pieces into one WRITE to `remote`, or scatter a READ from it over them. The pieces
  // may have any number and size: the transfer is split over work requests where the device's
  // limits require it.
  [[nodiscard]] absl::Status write_pieces(std::span<const Piece> pieces,
                                          const RemoteMemoryLocator& remote,
                                          Synchronizer* done = nullptr);
  [[nodiscard]] absl::Status read_pieces(std::span<const Piece> pieces,
                                         const RemoteMemoryLocator& remote,
                                         Synchronizer* done = nullptr);

  // WRITE, READ and SEND with local memory that the user did not register
  // (registration/user_memory.h). `done` is counted down when the transfer has ended and the memory
  // may be reused; a READ has filled it then. Up to UserMemoryOptions::bounce_bytes the data is
  // copied, so the source of write() and send() may be reused when they return. If the policy
  // registers in pieces, write() and read() block until all pieces but the last have completed.
  // Errors: those of UserMemory too; FAILED_PRECONDITION (no TransmitOptions::user_memory). After
  // an error `done` is unchanged.
  //
  // Inlined, so that the call stack of a use (CallStack in registration/policy.h) begins with the
  // program's call.
  [[nodiscard, gnu::always_inline]] absl::Status write(std::span<const std::byte> local,
                                                       const RemoteMemoryLocator& remote,
                                                       Synchronizer& done) {
    // The device only reads.
    return transfer_user(Opcode::kWrite, const_cast<std::byte*>(local.data()), local.size(), remote,
                         done);
  }
  [[nodiscard, gnu::always_inline]] absl::Status read(std::span<std::byte> local,
                                                      const RemoteMemoryLocator& remote,
                                                      Synchronizer& done) {
    return transfer_user(Opcode::kRead, local.data(), local.size(), remote, done);
  }
  [[nodiscard, gnu::always_inline]] absl::Status send(std::span<const std::byte> local,
                                                      Synchronizer& done) {
    return transfer_user(Opcode::kSend, const_cast<std::byte*>(local.data()), local.size(), {},
                         done);
  }

  // Posts any work request and accounts for it. Sets the request's id and kSignaled; posts the
  // other fields unchanged. The caller must keep the buffers until `done` is counted down.
  [[nodiscard]] absl::Status post(WorkRequest request, Synchronizer* done = nullptr);

  // Posts an empty signaled WRITE whose completion covers all operations that this queue pair has
  // posted before. Use it to free buffers when no later transfer follows. `done` is then counted
  // down when all earlier operations have completed.
  [[nodiscard]] absl::Status signal_all(Synchronizer* done = nullptr);

  // Polls until `done` has no operation left, and returns its status; DEADLINE_EXCEEDED if the
  // deadline comes first. Probes the peer while no operation is outstanding, so that the wait ends
  // with UNAVAILABLE if `done` depends on a peer that has died.
  [[nodiscard]] absl::Status wait(Synchronizer& done, Deadline deadline);

  // Returns the next free unit of a CircularAllocator, or a segment of a LinearCircularAllocator.
  // If none is free, it calls signal_all(), polls, and waits. Errors: those of the queue;
  // DEADLINE_EXCEEDED (all units are in use by other queue pairs); INVALID_ARGUMENT (a segment
  // larger than max_segment()).
  template <typename Allocator>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire(Allocator& allocator, Deadline deadline) {
    return acquire_by([&] { return allocator.allocate(); }, deadline);
  }
  template <typename Allocator>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire(Allocator& allocator, size_t bytes,
                                                    Deadline deadline) {
    if (bytes > allocator.max_segment()) return too_large(bytes, allocator.max_segment());
    return acquire_by([&] { return allocator.allocate(bytes); }, deadline);
  }

  [[nodiscard]] TransmitQueue& queue() const { return *queue_; }

 private:
  static constexpr uint64_t kStoresPerPoll = 256;

  Transmitter(TransmitQueue* queue, TransmitQueue::Lane* lane, FullQueue full_queue);

  static bool fits(const RDMAMemory& local, uint64_t offset, uint64_t bytes,
                   const RemoteMemoryLocator& remote) {
    uint64_t end = 0;
    return !__builtin_add_overflow(offset, bytes, &end) && end <= local.size() &&
           bytes <= remote.length;
  }
  // A WRITE that direct_writer_ does not serve. Makes direct_writer_ serve its region if it can.
  //
  // This function and transfer() take the locator's fields one by one, so that write() need not
  // store a locator to memory for the call.
  [[nodiscard]] absl::Status write_elsewhere(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                             uint64_t remote_address, uint64_t remote_length,
                                             RemoteKey remote_key, Synchronizer* done);
  [[nodiscard]] absl::Status transfer(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                      uint64_t bytes, uint64_t remote_address,
                                      uint64_t remote_length, RemoteKey remote_key,
                                      Synchronizer* done);

  // Counts a WRITE that direct_writer_ has executed. A thread that only writes polls here: once in
  // kStoresPerPoll.
  void count_stored(uint64_t bytes) {
    TransmitQueue::Lane& lane = *lane_;
    const uint64_t stored = lane.stored.load(std::memory_order_relaxed) + 1;
    lane.stored.store(stored, std::memory_order_relaxed);
    lane.bytes.store(lane.bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    if (stored % kStoresPerPoll == 0) [[unlikely]]
      queue_->progress();
  }
  // Counts an unsignaled operation that post_send() has accepted.
  static void count_post(TransmitQueue::Lane& lane, uint64_t bytes) {
    TransmitQueue::Signaling::after_post(lane, false);
    lane.bytes.store(lane.bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  [[nodiscard]] absl::Status transfer_pieces(Opcode opcode, std::span<const Piece> pieces,
                                             const RemoteMemoryLocator& remote, uint32_t immediate,
                                             TransmitQueue::Ending ending,
                                             ReceiverDoorbells* receiver = nullptr);
  [[nodiscard]] absl::Status transfer_user(Opcode opcode, std::byte* address, size_t bytes,
                                           const RemoteMemoryLocator& remote, Synchronizer& done);
  [[nodiscard]] absl::Status transfer_lent(Opcode opcode, std::byte* address, size_t bytes,
                                           size_t piece, const RemoteMemoryLocator& remote,
                                           Synchronizer& done, const void* frame);
  [[nodiscard]] absl::Status atomic(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                    const RemoteMemoryLocator& remote, uint64_t operand,
                                    uint64_t swap, Synchronizer* done);
  [[nodiscard]] absl::Status take_credit(FullQueue full_queue);
  [[nodiscard]] absl::Status post_accounted(WorkRequest& request, TransmitQueue::Ending ending,
                                            bool signaled, FullQueue full_queue);
  void note_use(const Piece& piece, bool written_through);
  [[nodiscard]] absl::Status no_memory() const;
  [[nodiscard]] absl::Status too_large(size_t bytes, size_t most) const;

  template <typename Allocate>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire_by(Allocate&& allocate, Deadline deadline) {
    RDMAMemory* memory = allocate();
    if (memory != nullptr) [[likely]]
      return memory;
    if (absl::Status status = signal_all(); !status.ok()) return status;
    if (wait_until(
            [&] {
              queue_->progress();
              memory = allocate();
              return memory != nullptr || queue_->failed_.load(std::memory_order_acquire);
            },
            deadline) &&
        memory != nullptr) {
      return memory;
    }
    return no_memory();
  }

  TransmitQueue* queue_;
  TransmitQueue::Lane* lane_;
  QueuePair* queue_pair_;
  FlushCell* cell_;
  const ProtectionDomain* domain_;
  uint64_t fast_bytes_;
  uint32_t inline_bytes_;
  FullQueue full_queue_;
  // The region of the last WRITE that was stored directly, and the registration of the last local
  // memory that was found to be registered with domain_. A store needs no local key, so a WRITE may
  // be stored that post_send() would refuse: from a handle whose buffer lies outside of its
  // registration, or if a freed registration's address belongs to one of another domain.
  DirectWriter direct_writer_;
  const RegisteredRange* copied_range_ = nullptr;
};
static_assert(sizeof(Transmitter) == 128);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_TRANSMITTER_H_
