// Transfers with automatic selective signaling and memory recycling (Seriema §4.1): one line each.
//
//   auto queue = TransmitQueue::create(*domain, {.receive_completions = completions});
//   ... connect (*queue)->queue_pair() ...
//   auto transmitter = Transmitter::create(**queue);  // one per thread; threads share the queue
//   RDMAMemory* unit = circular.allocate();
//   transmitter->write(*unit, 0, 64, there);          // no signaling, no polling, no bookkeeping
//   transmitter->write(*unit, 0, 64, there, &synchronizer);
//   transmitter->wait(synchronizer);
//
// A TransmitQueue is a queue pair whose send side is accounted for: every operation counts, a
// completion is asked for once in a quarter of the depth that the queue really has, credits never
// run out unnoticed, and one update of the flush number frees all buffers that a completion covers.
// A Transmitter is one thread's place on it. Threads that share a queue never wait for one another
// to account for operations or to free memory; the proof is in signaling.h and docs/dtutils.md.
//
// Cost: sizeof(TransmitQueue) and sizeof(Transmitter) are pinned below; a thread's place takes 256
// bytes and 32 bytes per signaled operation in flight (16 to begin with). On the fast path a
// transfer costs one post and no atomic read-modify-write; one in depth/4 (with several threads: in
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/completion.h"
#include "dtutils/device.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/queue_pair.h"
#include "dtutils/signaling.h"
#include "dtutils/statistics.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

class Transmitter;

// How a TransmitQueue behaves.
struct TransmitOptions {
  // While a thread waits and nothing is outstanding (so that no retransmission can notice a dead
  // peer), an empty WRITE is sent this often. 0: never.
  std::chrono::milliseconds probe_interval{100};
};

// What happened on a queue so far. Also in the process's statistics (statistics.h), as
// "transmit_queue.*" of the peer; failures, repairs and waits for a full queue are in the trace.
struct TransmitStatistics {
  uint64_t operations = 0;   // posted, of any kind, also flushes and probes
  uint64_t bytes = 0;        // in transfers
  uint64_t signaled = 0;     // of the operations
  uint64_t grants = 0;       // times that credits were taken from the shared counter
  uint64_t full_waits = 0;   // times that a thread found the send queue full
  uint64_t completions = 0;  // polled
  uint64_t failures = 0;     // of the completions
};

// A queue pair with an accounted send side. Create one per connection, and a Transmitter on it for
// each thread. Its send completion queue is its own; receives are as on any queue pair.
//
// Thread-safe, except for repair() and destruction, which must not overlap any use.
class CARIAMA_DTUTILS_EXPORT TransmitQueue {
 public:
  // The most Transmitters that one queue can have.
  static constexpr size_t kMaxTransmitters = 64;
  // The most operations in flight that one queue accounts for, however deep the device's queues
  // are.
  static constexpr uint32_t kMaxDepth = 1u << 19;

  // Creates the queue pair. `options.send_completions` must serve nothing else (give one with a
  // channel to sleep until a transfer has completed); without it the queue makes its own. The other
  // fields are as for ProtectionDomain::create_queue_pair, also the errors.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TransmitQueue>> create(
      ProtectionDomain& domain, QueuePairOptions options, const TransmitOptions& behaviour = {});

  // Drops what is outstanding: its Synchronizers fail with UNAVAILABLE, its buffers are free.
  // Precondition: no Transmitter is left.
  ~TransmitQueue();
  TransmitQueue(const TransmitQueue&) = delete;
  TransmitQueue& operator=(const TransmitQueue&) = delete;

  // For connect(), receives, limits. Posting sends to it directly is allowed if they are
  // unsignaled, and counted by nobody: leave send_depth room for them, or use Transmitter::post.
  [[nodiscard]] QueuePair& queue_pair() { return *queue_pair_; }

  // Polls completions: frees buffers and slots, counts Synchronizers down. Never blocks; any
  // thread. Returns how many completions there were. Transmitters call it when they need to.
  size_t progress();

  // OK, or why the queue pair is in the error state.
  [[nodiscard]] absl::Status status() const;

  // After a failure: brings the connection back. Both ends must call it. See QueuePair::repair.
  [[nodiscard]] absl::Status repair();

  // Whether a signaled operation is posted whose completion has not been polled. A snapshot. (After
  // Transmitter::flush: whether any operation is.) Takes a lock.
  [[nodiscard]] bool has_outstanding() const { return !is_drained(); }
  [[nodiscard]] uint32_t depth() const { return static_cast<uint32_t>(signaling_.depth()); }
  // Operations of one Transmitter between two signaled ones; fewer when there are several.
  [[nodiscard]] uint32_t interval() const { return static_cast<uint32_t>(signaling_.interval()); }
  [[nodiscard]] TransmitStatistics statistics() const;

 private:
  friend class Transmitter;

  template <typename T>
  using Atomic = std::atomic<T>;
  using Signaling = internal::Signaling<Atomic>;

  // A signaled operation under way. Taken by its lane's thread, given back by the thread that polls
  // its completion.
  struct Record {
    std::atomic<bool> busy{false};
    Synchronizer* done = nullptr;
    internal::Proof proof;
  };

  struct Lane : Signaling::Lane {
    Record* take_record();

    // Written by the lane's thread only.
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> signaled{0};
    std::atomic<uint64_t> grants{0};
    std::atomic<uint64_t> full_waits{0};
    // Record blocks, each twice as large as the one before; never freed while the queue lives.
    std::array<std::unique_ptr<Record[]>, 16> blocks;
    std::atomic<size_t> block_count{0};
    size_t block = 0;  // where take_record() goes on
    size_t slot = 0;
  };
  static_assert(sizeof(Lane) == 256 && sizeof(Record) == 32);

  TransmitQueue(std::shared_ptr<CompletionQueue> completions, std::unique_ptr<QueuePair> queue_pair,
                uint32_t depth, const TransmitOptions& options);

  static constexpr size_t kFirstRecords = 16;  // in a lane's first block

  template <typename Function>
  void for_each_busy_record(Function&& function) const;
  // Whether no signaled operation is under way: no Synchronizer will be touched any more.
  [[nodiscard]] bool is_drained() const;
  [[nodiscard]] absl::StatusOr<Lane*> take_lane();
  void return_lane(Lane* lane);
  void complete(const Completion& completion);
  [[nodiscard]] absl::Status note_failure(const Completion& completion);
  // The id of unsignaled operations: completes only in error. Odd, so that it is no Record's
  // address.
  [[nodiscard]] static constexpr uint64_t unsignaled_id() { return 1; }

  std::atomic<bool> failed_{false};
  std::shared_ptr<CompletionQueue> completions_;
  std::unique_ptr<QueuePair> queue_pair_;
  FlushCell* cell_;
  TransmitOptions options_;
  Signaling signaling_;
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> failures_{0};

  mutable std::mutex mutex_;       // set-up and failure only
  absl::Status failure_;           // the first failure since the last repair
  bool failure_is_cause_ = false;  // and not one that it caused
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> unused_lanes_;
  CounterSet counters_;  // last: reads the members above
};

static_assert(sizeof(TransmitQueue) == 448);

// What a transfer does when the send queue is full.
enum class FullQueue : uint8_t {
  kWait,    // polls until there is room (through the thread's wait hook), or until the queue fails
  kRefuse,  // returns RESOURCE_EXHAUSTED; nothing was posted. A split transfer that has begun waits
};

// One thread's place on a TransmitQueue, and the automatic form of every operation.
//
// Each function posts and returns; OK means posted. `done`, if given, is counted down when the
// transfer has completed, or failed with the reason; without it a failure shows in status(), in the
// next operation, and in wait(). Local memory may be used again when memory.is_free(), remote data
// of a READ be read once `done` says so.
//
// A transfer longer than one work request can carry is split exactly; 0 bytes complete like any
// other. Data of up to limits().max_inline bytes is copied at once: its buffer stays free.
//
// Errors: INVALID_ARGUMENT (the range leaves the local memory or the locator; a SEND too long for
// one message), RESOURCE_EXHAUSTED (kRefuse), UNAVAILABLE (the queue has failed: says why; repair()
// it).
//
// Thread-compatible: one thread at a time. Movable. The queue must outlive it.
class CARIAMA_DTUTILS_EXPORT Transmitter {
 public:
  // A part of a buffer, for the multi-piece forms.
  struct Piece {
    RDMAMemory* memory = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  // Error: RESOURCE_EXHAUSTED (kMaxTransmitters exist). Cheap enough for short-lived threads.
  [[nodiscard]] static absl::StatusOr<Transmitter> create(TransmitQueue& queue,
                                                          FullQueue full_queue = FullQueue::kWait);
  ~Transmitter();
  Transmitter(Transmitter&& other) noexcept;
  Transmitter& operator=(Transmitter&& other) noexcept;

  // RDMA WRITE of local[offset, offset + bytes) to the start of `remote`.
  [[nodiscard]] absl::Status write(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                   const RemoteMemoryLocator& remote,
                                   Synchronizer* done = nullptr) {
    TransmitQueue::Lane& lane = *lane_;
    // Where the transport executes it at once: nothing to signal, a credit at hand that is not the
    // last one. A failed queue pair refuses it. What it has copied is in use by nobody: no tag.
    uint64_t end = 0;
    if (done != nullptr || lane.credits <= 1 || __builtin_add_overflow(offset, bytes, &end) ||
        end > local.size() || bytes > remote.length || local.range() != key_range_ ||
        !queue_pair_->write_now(local.get_buffer() + offset, bytes, key_, remote.address,
                                RemoteKey{remote.key.value})) [[unlikely]] {
      return transfer(Opcode::kWrite, local, offset, bytes, remote.address, remote.length,
                      RemoteKey{remote.key.value}, done);
    }
    count_post(lane, bytes);
    return absl::OkStatus();
  }

  // RDMA READ of the first `bytes` bytes of `remote` into local[offset, offset + bytes).
  [[nodiscard]] absl::Status read(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  const RemoteMemoryLocator& remote, Synchronizer* done = nullptr) {
    return transfer(Opcode::kRead, local, offset, bytes, remote.address, remote.length, remote.key,
                    done);
  }

  // WRITE with immediate: the target gets a completion with `immediate` after the data is in place.
  // Of a split transfer only the last part carries it.
  [[nodiscard]] absl::Status write_immediate(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                             const RemoteMemoryLocator& remote, uint32_t immediate,
                                             Synchronizer* done = nullptr);

  // The event alone: WRITE_WITH_IMM of 0 bytes.
  [[nodiscard]] absl::Status notify(uint32_t immediate, Synchronizer* done = nullptr);

  // SEND of local[offset, offset + bytes) to a receive that the peer posted.
  [[nodiscard]] absl::Status send(RDMAMemory& local, uint64_t offset, uint64_t bytes,
                                  Synchronizer* done = nullptr);

  // Adds to the 8-byte word at the start of `remote`; the old value comes to local[offset, offset +
  // 8).
  [[nodiscard]] absl::Status fetch_add(RDMAMemory& local, uint64_t offset,
                                       const RemoteMemoryLocator& remote, uint64_t addend,
                                       Synchronizer* done = nullptr);

  // Sets the word to `desired` if it is `expected`; the old value comes to local[offset, offset +
  // 8).
  [[nodiscard]] absl::Status compare_swap(RDMAMemory& local, uint64_t offset,
                                          const RemoteMemoryLocator& remote, uint64_t expected,
                                          uint64_t desired, Synchronizer* done = nullptr);

  // Gathers the pieces into one WRITE to `remote`, or scatters a READ from it over them. Any number
  // of pieces, any size: split over work requests where the device wants it.
  [[nodiscard]] absl::Status write_pieces(std::span<const Piece> pieces,
                                          const RemoteMemoryLocator& remote,
                                          Synchronizer* done = nullptr);
  [[nodiscard]] absl::Status read_pieces(std::span<const Piece> pieces,
                                         const RemoteMemoryLocator& remote,
                                         Synchronizer* done = nullptr);

  // Any work request, posted as it is (its id and kSignaled are set here) and accounted for.
  // Buffers are the caller's to keep until `done`.
  [[nodiscard]] absl::Status post(WorkRequest request, Synchronizer* done = nullptr);

  // Posts an empty WRITE whose completion covers all that this queue pair has posted before: frees
  // buffers although no later transfer comes. `done` then means "everything until here has
  // completed".
  [[nodiscard]] absl::Status flush(Synchronizer* done = nullptr);

  // Polls until `done` has no operation left, and returns its status; DEADLINE_EXCEEDED if the
  // deadline comes first. Probes the peer when nothing is outstanding, so that it also ends, with
  // UNAVAILABLE, if `done` depends on a peer that has died.
  [[nodiscard]] absl::Status wait(Synchronizer& done, Deadline deadline = kForever);

  // The next free unit of a CircularAllocator, or segment of a LinearCircularAllocator: asks it,
  // polls, flushes if nothing else would free a unit, and waits. Errors: those of the queue;
  // DEADLINE_EXCEEDED (all units are in use elsewhere); INVALID_ARGUMENT (a segment larger than
  // max_segment()).
  template <typename Allocator>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire(Allocator& allocator,
                                                    Deadline deadline = kForever) {
    return acquire_by([&] { return allocator.allocate(); }, deadline);
  }
  template <typename Allocator>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire(Allocator& allocator, size_t bytes,
                                                    Deadline deadline = kForever) {
    if (bytes > allocator.max_segment()) return too_large(bytes, allocator.max_segment());
    return acquire_by([&] { return allocator.allocate(bytes); }, deadline);
  }

  [[nodiscard]] TransmitQueue& queue() const { return *queue_; }

 private:
  Transmitter(TransmitQueue* queue, TransmitQueue::Lane* lane, FullQueue full_queue);

  // The locator in parts: so write() need not put it into memory for this.
  [[nodiscard]] absl::Status transfer(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                      uint64_t bytes, uint64_t remote_address,
                                      uint64_t remote_length, RemoteKey remote_key,
                                      Synchronizer* done);

  // Of an unsignaled operation.
  static void count_post(TransmitQueue::Lane& lane, uint64_t bytes) {
    TransmitQueue::Signaling::after_post(lane, false);
    lane.bytes.store(lane.bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  [[nodiscard]] absl::Status transfer_pieces(Opcode opcode, std::span<const Piece> pieces,
                                             const RemoteMemoryLocator& remote, uint32_t immediate,
                                             Synchronizer* done);
  [[nodiscard]] absl::Status atomic(Opcode opcode, RDMAMemory& local, uint64_t offset,
                                    const RemoteMemoryLocator& remote, uint64_t operand,
                                    uint64_t swap, Synchronizer* done);
  [[nodiscard]] absl::Status take_credit(FullQueue full_queue);
  [[nodiscard]] absl::Status post_accounted(WorkRequest& request, Synchronizer* done, bool signaled,
                                            FullQueue full_queue);
  [[nodiscard]] absl::Status note_use(const Piece& piece, bool written_through);
  [[nodiscard]] LocalKey key_of(const RDMAMemory& memory);
  [[nodiscard]] absl::Status no_memory() const;
  [[nodiscard]] absl::Status too_large(size_t bytes, size_t most) const;

  template <typename Allocate>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> acquire_by(Allocate&& allocate, Deadline deadline) {
    RDMAMemory* memory = allocate();
    if (memory != nullptr) [[likely]]
      return memory;
    if (absl::Status status = flush(); !status.ok()) return status;
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
  const RegisteredRange* key_range_ = nullptr;  // whose key is cached
  LocalKey key_;
  uint64_t fast_bytes_;
  uint32_t inline_bytes_;
  FullQueue full_queue_;
};
static_assert(sizeof(Transmitter) == 64);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_TRANSMITTER_H_
