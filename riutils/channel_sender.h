// The sending end of a channel: it writes the calls of one thread to one other thread into the
// receiver's chunks (Seriema §4.4.1). RDMAMessenger and RDMAAggregator are built on it; programs
// use those.
//
// The sender decides which chunk is filled, when further chunks are obtained, and where the
// receiver inserts them into its ring. The receiver reports only the number of chunks that it has
// consumed.
//
// The three arrival modes share all code except publication. A call is built at position_, which
// points into the peer's mapped chunk or into a local image of the chunk (staging memory). The
// publishing word is the call's header or its batch's word.
//   Mapped  stores the publishing word with release order.
//   Polled  WRITEs everything behind the publishing word, then the publishing word.
//   Event   WRITEs everything, then announces it by an event.
//
// Calls that do not fit now may be deferred (RetryAsync, ovfl): they are encoded once, in
// registered memory, in the order of issue. While calls are deferred, the fast path finds no room,
// so that no call overtakes them. The owner and the process's drainer thread move deferred calls
// into chunks; both hold mutex_.
//
// The window is the part of the chunk that the owner's fast path may fill without mutex_. While it
// is open, no other thread accesses the channel except to read its counters. With mapped arrival
// the fast path leaves the window, and the owner locks mutex_, only when a chunk is full.
#ifndef CARIAMA_RIUTILS_CHANNEL_SENDER_H_
#define CARIAMA_RIUTILS_CHANNEL_SENDER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "riutils/chunk_ring.h"
#include "riutils/export.h"
#include "riutils/messenger_options.h"

namespace cariama {

namespace internal {
class Backlog;

// A variable that one thread writes and other threads may read for statistics, without ordering.
template <typename T>
class Relaxed {
 public:
  Relaxed() = default;
  Relaxed& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator T() const { return value_.load(std::memory_order_relaxed); }  // NOLINT: a plain variable

 private:
  std::atomic<T> value_{};
};
}  // namespace internal

// What a ChannelSender needs from its environment to reach the receiver. Implemented by
// internal::FabricChannel and by tests.
class CARIAMA_RIUTILS_EXPORT ChannelLink {
 public:
  // Properties of the path to the receiver, known after open().
  struct Path {
    Arrival arrival = Arrival::kMapped;  // never kAuto
    Transmitter* transmitter = nullptr;  // the owner's; unused if arrival is kMapped
    SleepingWord* sleeping = nullptr;    // the receiver's, if arrival is kMapped
    // True if membarrier(2) is not available on both ends: the sender must issue a full fence
    // between the publishing store and the load of `sleeping`.
    bool fence = false;
    std::shared_ptr<RDMAAllocator> allocator{};  // for staging memory, if not mapped
    // Registered, with write access for the peer: two cache lines of ChannelControl, then two of
    // scratch memory.
    RDMAMemory control;
  };
  struct Chunk {
    RemoteMemoryLocator remote;
    std::byte* mapped = nullptr;  // the chunk in this address space, if Path::arrival is kMapped
  };

  virtual ~ChannelLink() = default;
  // Exchanges properties with the peer and returns the path. Must succeed once, before any other
  // function except inside_call() is called. May block, and may run incoming calls. After
  // DEADLINE_EXCEEDED it may be called again.
  [[nodiscard]] virtual absl::StatusOr<Path> open(Deadline deadline) = 0;
  // Asks the receiver's process for one grant: it allocates at least one and at most `count` more
  // chunks and inserts them into the receiver's incoming memory map, in the returned order. The
  // receiver's ring is at first the first grant. Later grants become members by the end markers
  // that report them, so the caller must obtain and report chunks in the same order. The receiving
  // thread itself is not involved. May block, and may run incoming calls. Errors:
  // RESOURCE_EXHAUSTED (no memory for a single chunk), UNAVAILABLE. With these, nothing was
  // inserted. After DEADLINE_EXCEEDED the grant may still come: the next call returns it, and
  // `count` then has no meaning.
  [[nodiscard]] virtual absl::StatusOr<std::vector<Chunk>> obtain(uint32_t count,
                                                                  Deadline deadline) = 0;
  // Arrival::kEvent: sends an event behind all transfers posted so far; it tells the receiver that
  // `words` more 8-byte words have arrived. Never blocks.
  virtual void announce(uint64_t words) = 0;
  // Wakes the sleeping receiver. Never blocks: the wake-up may be sent later, but it is not lost.
  virtual void wake() = 0;
  // Returns OK, or the reason why the receiver cannot be reached any more.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // Returns true if the calling thread is running a call. It must not wait for peers then.
  [[nodiscard]] virtual bool inside_call() const = 0;
  // Blocks until the condition holds or the deadline has passed; runs incoming calls meanwhile.
  // Returns whether the condition holds.
  [[nodiscard]] virtual bool wait(const std::function<bool()>& condition, Deadline deadline) = 0;
  // Makes a helper thread call drain() repeatedly until it returns true.
  virtual void drain_later() = 0;
  // Allocates registered memory for deferred calls.
  [[nodiscard]] virtual absl::StatusOr<RDMAMemory> allocate(size_t bytes) = 0;
  virtual void free(const RDMAMemory& memory) = 0;
};

// What happens to a call that does not fit now.
struct WhenNoRoom {
  WhenFull policy = WhenFull::kRetry;
  bool defer = false;  // defer the call; `policy` applies when deferred_bytes are deferred
  [[nodiscard]] static constexpr WhenNoRoom of(WhenFull policy, bool defer) {
    return {policy == WhenFull::kRetryAsync ? WhenFull::kFail : policy,
            defer || policy == WhenFull::kRetryAsync};
  }
};

// Only one thread, the owner, may use it, with these exceptions: any thread may call drain(),
// statistics(), accepted_bytes(), is_released(), peer_died() and close(). `link` must outlive it.
class CARIAMA_RIUTILS_EXPORT ChannelSender {
 public:
  // `peer` names the destination in error texts.
  ChannelSender(ChannelLink& link, const MessengerOptions& options, std::string peer);
  // Discards calls that are not published; their Synchronizers fail with CANCELLED.
  ~ChannelSender();
  ChannelSender(const ChannelSender&) = delete;
  ChannelSender& operator=(const ChannelSender&) = delete;

  // Exchanges properties with the peer and obtains the first chunks. Idempotent. The first send
  // performs it if it was not called before. Errors: INVALID_ARGUMENT (options out of range),
  // UNAVAILABLE, RESOURCE_EXHAUSTED (memory budget of the receiver's or this process),
  // DEADLINE_EXCEEDED, FAILED_PRECONDITION (shut down; called inside a call; a forced arrival mode
  // that the pair of processes does not support).
  [[nodiscard]] absl::Status setup();

  // Sends a call. With kBatch the call joins the batch. Without kBatch the call is published at
  // once, together with the batch before it. Errors: INVALID_ARGUMENT (longer than a chunk can
  // hold), RESOURCE_EXHAUSTED (no room, subject to `when`), UNAVAILABLE, those of setup().
  template <bool kBatch, typename Call>
  [[nodiscard]] __attribute__((always_inline)) CallResult send(const Call& call, WhenNoRoom when) {
    const size_t bytes = call.bytes();
    const FunctionId id = Call::id();
    std::byte* const at = position_;
    const CallHeader header = CallHeader::make(id, bytes, 0);
    // The difference is signed: the end for this kind of call lies before position_ while the
    // window is open for the other kind.
    if ((kBatch ? batch_end_ : end_) - at < static_cast<ptrdiff_t>(sizeof header + bytes) ||
        id.value == 0) [[unlikely]] {
      return send_out_of_line<kBatch, Call>(call, when);
    }
    std::byte* const next = at + sizeof header + bytes;
    fetch_ahead(at, sizeof header + bytes);
    call.write(at + sizeof header);
    if constexpr (kBatch) {
      std::memcpy(at, &header, sizeof header);  // plain data: the batch word publishes the batch
      position_ = next;
    } else {
      store_word(next, 0);
      publish_word(at, word_of(header));
      position_ = next;
      if (sleeping_->load(std::memory_order_relaxed) != SleepingWord::kAwake) [[unlikely]] {
        return published_slowly(at, next);
      }
    }
    return {};
  }

  // Sends a call of any form; the slow path of send(). If the result is OK, `transmitted`, if
  // given, is counted down when the call has been published, or fails if that has become
  // impossible.
  [[nodiscard]] CallResult send_slowly(const OutgoingCallView& call, WhenNoRoom when, bool batch,
                                       Synchronizer* transmitted);

  // Publishes the batch. Never waits for the receiver. Deferred calls stay deferred.
  [[nodiscard]] CallResult flush();
  // Returns true if the batch is at least options.flush_age old. Always false if flush_age is 0.
  [[nodiscard]] bool batch_is_old() const;
  // Flushes, then writes the sender's current offset into the header of the current chunk (paper:
  // publish).
  [[nodiscard]] CallResult publish();

  // Moves deferred calls into chunks as far as there is room. Returns true if none are left. Called
  // by helper threads: `transmitter_of` returns a Transmitter of the calling thread; it is called
  // only when the path is known. May obtain chunks, and may block for that.
  bool drain(const std::function<Transmitter*()>& transmitter_of);

  // Flushes, waits until no call is deferred, and writes the end of the channel for the receiver,
  // which frees the chunks when it has run all calls. Later calls return FAILED_PRECONDITION.
  // Errors: DEADLINE_EXCEEDED (the receiver did not make room in time; shutdown() may be called
  // again), UNAVAILABLE.
  [[nodiscard]] absl::Status shutdown(Deadline deadline);
  // Returns true if the peer does not access the channel's control memory any more: the receiver
  // has consumed everything after shutdown(), or the channel has failed or was never opened.
  [[nodiscard]] bool is_released() const;

  [[nodiscard]] bool is_open() const { return path_.has_value(); }
  [[nodiscard]] const MessengerOptions& options() const { return options_; }
  // kAuto until setup().
  [[nodiscard]] Arrival arrival() const { return path_ ? path_->arrival : Arrival::kAuto; }
  // Returns the number of bytes of calls accepted so far, including deferred calls. Thread-safe.
  [[nodiscard]] uint64_t accepted_bytes() const;
  [[nodiscard]] MessengerStatistics statistics() const;

  // Makes the next publication of a mapped channel detect that the receiver's process has failed.
  void peer_died();
  // Closes the channel when the fabric has ended: unpublished calls are lost, and later calls
  // return `why`. Requires: the owner is not inside any function of this object.
  void close(const absl::Status& why);

 private:
  struct Chunk {
    RemoteMemoryLocator remote;
    std::byte* mapped = nullptr;
    uint64_t filled_as =
        0;  // number of chunks filled up to and including this one; 0: never filled
  };
  enum class Progress : uint8_t {
    kDone,
    kObtain,  // no chunk is free, but further chunks may be obtained
    kFull,    // no chunk is free; the receiver has to consume one first
    kFailed,  // failure_ contains the reason
  };

  [[nodiscard]] static uint64_t word_of(CallHeader header) {
    return header.function | uint64_t{header.words_and_flags} << 32;
  }
  static void store_word(std::byte* at, uint64_t word) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_relaxed);
  }
  static void publish_word(std::byte* at, uint64_t word) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_release);
    // The receiver's sleeping word is loaded after this store. The receiver's membarrier(2) orders
    // the two for the processor (incoming_calls.cc: announce_sleep). The signal fence orders them
    // for the compiler.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  // Prefetches, for writing, the cache lines that soon following calls will fill: the receiver's
  // core read them last. Stores leave a core in order, so that a store that waits for its line
  // delays later stores to other lines, including the one of position_. Without this prefetch calls
  // of 64 to 256 bytes take 1.3 times as long. Calls longer than kDistance are copied as streams,
  // which need no prefetch.
  __attribute__((always_inline)) static void fetch_ahead(std::byte* at, size_t bytes) {
    constexpr size_t kDistance = 512;
    constexpr size_t kLine = 64;
    if (bytes > kDistance) return;
    for (size_t i = 0; i < bytes; i += kLine) {
#if defined(__x86_64__)
      asm volatile("prefetchw %0" : : "m"(at[kDistance + i]));
#else
      __builtin_prefetch(at + kDistance + i, 1);
#endif
    }
  }
  // The type by which a call is passed. A small call is passed by value, in registers: passing its
  // address would force the fast path to write it to the stack.
  template <typename Call>
  using Passed = std::conditional_t<std::is_trivially_copyable_v<Call> && sizeof(Call) <= 16, Call,
                                    const Call&>;
  template <bool kBatch, typename Call>
  [[gnu::noinline, gnu::cold]] CallResult send_out_of_line(Passed<Call> call, WhenNoRoom when) {
    if constexpr (kBatch) return batch_slowly(OutgoingCallView::of(call), when);
    return send_slowly(OutgoingCallView::of(call), when, false, nullptr);
  }

  // The following functions require that mutex_ is held and the window is closed, unless stated
  // otherwise. `transmitter` belongs to the calling thread. The queue pair orders the transfers of
  // one channel, independent of the thread that posts them.
  [[nodiscard]] absl::Status obtain(std::unique_lock<std::mutex>& lock, Transmitter* transmitter);
  void close_window();
  // Opens the window unless calls are deferred. With `batch`, begins a batch if none is begun: the
  // owner's next call will join it.
  void open_window(bool batch = false);
  // Writes the call at closed_at_. Returns true if it has to be published now, with the batch.
  [[nodiscard]] bool build(const OutgoingCallView& call, bool batch);
  [[nodiscard]] absl::Status flush_batch(Transmitter* transmitter);
  // Ends the current chunk, if one is open, and opens the next one. Returns kDone if it is open.
  [[nodiscard]] Progress advance(Transmitter* transmitter);
  [[nodiscard]] bool ring_has_room(uint64_t in_use, Transmitter* transmitter);
  [[nodiscard]] bool open_chunk(uint32_t index, Transmitter* transmitter);
  [[nodiscard]] absl::Status end_chunk(Transmitter* transmitter, uint8_t flags);
  [[nodiscard]] Progress drain_deferred(Transmitter* transmitter);
  void fail(absl::Status status);
  // The condition on which send_slowly() and shutdown() wait. Locks mutex_. Returns true if there
  // may be room now, or if the channel has failed or ended. Moves deferred calls into chunks.
  // `deferred_before`: bytes of deferred calls when the wait began.
  [[nodiscard]] bool look_for_room(uint64_t deferred_before);
  [[nodiscard]] bool has_room(uint64_t bytes) const {
    return chunk_open_ && static_cast<uint64_t>(chunk_end_ - closed_at_) >= bytes;
  }

  // The following functions are called by the owner with the window open. batch_slowly and
  // publish_batch are called without mutex_.
  [[nodiscard]] CallResult batch_slowly(const OutgoingCallView& call, WhenNoRoom when);
  [[nodiscard]] CallResult publish_batch(std::byte* next);
  // Requires: no call is batched. Begins an empty batch at `at` if there is room for one.
  void begin_batch(std::byte* at);
  void set_batch_end();
  [[nodiscard]] bool batch_is_empty() const {
    return batch_ == nullptr || position_ - batch_ <= kBatchWord;
  }

  // The following functions are called with the window open (by the owner) or closed.
  [[nodiscard]] absl::Status write_image(Transmitter* transmitter, const std::byte* at,
                                         uint64_t bytes);
  [[nodiscard]] absl::Status write_into_chunk(Transmitter* transmitter, RDMAMemory& memory,
                                              uint64_t offset, uint64_t bytes, const std::byte* at);
  [[nodiscard]] std::byte* leave_zeros(std::byte* next);
  [[nodiscard]] absl::Status write_batch(Transmitter* transmitter, std::byte* first,
                                         std::byte* next);
  [[nodiscard]] absl::Status after_publication(const std::byte* next, uint64_t words);
  [[nodiscard]] absl::Status write_producer(Transmitter* transmitter, bool filled);
  [[gnu::noinline, gnu::cold]] CallResult published_slowly(std::byte* first, std::byte* next);
  // Returns the offset of `at` in the channel's stream of calls.
  [[nodiscard]] uint64_t offset_of(const std::byte* at) const {
    return chunk_first_ + static_cast<uint64_t>(at - base_) - sizeof(ChunkHeader);
  }

  static constexpr ptrdiff_t kBatchWord = sizeof(CallHeader);

  // The cache line of the fast path. The window begins at position_. If a batch was begun, the
  // window ends at batch_end_, for calls that join the batch. Otherwise it ends at end_, for calls
  // that are published one by one. The unused one of the two is not beyond position_; while calls
  // are deferred and before set-up neither of them is. When the window is closed, closed_at_ is the
  // channel's current position.
  alignas(64) internal::Relaxed<std::byte*> position_;
  std::byte* end_ = nullptr;
  std::byte* batch_end_ = nullptr;
  // Window open: the batch word of the batch that was begun, or nullptr. Window closed: the first
  // word that is not published.
  internal::Relaxed<std::byte*> batch_;
  // The receiver's sleeping word. If publishing takes more than a store: a constant kAsleep, so
  // that every publication takes the slow path.
  const std::atomic<uint32_t>* sleeping_;
  std::byte* base_ = nullptr;                 // of the chunk, or of its image
  internal::Relaxed<uint64_t> publications_;  // this and the next two are counted without mutex_
  internal::Relaxed<uint64_t> wakes_;
  internal::Relaxed<uint64_t> events_;
  bool window_open_ = false;  // written under mutex_; the owner reads it without
  // Two stores publish a batch: mapped arrival, no fence needed, no flush_age.
  bool publishes_by_store_ = false;

  alignas(64) mutable std::mutex mutex_;
  ChannelLink& link_;
  const MessengerOptions options_;
  const std::string peer_;
  const absl::Status refusal_;
  std::optional<ChannelLink::Path> path_;
  ChannelControl* control_ = nullptr;
  bool deferring_ = false;  // calls are deferred; the window stays closed
  bool obtaining_ = false;  // a thread is obtaining chunks; it has released mutex_
  bool ended_ = false;
  // A request for chunks has timed out: the grant may still come, and the receiver may then write
  // to the control memory.
  bool grant_pending_ = false;
  absl::Status failure_;

  std::vector<Chunk> chunks_;  // the ring
  uint32_t limit_;  // maximum of chunks_: max_chunks, or less if the receiver's memory is exhausted
  uint32_t current_ = 0;
  bool chunk_open_ = false;
  uint32_t inserted_ = 0;  // chunks inserted behind current_ that no end marker has reported yet
  uint64_t filled_ = 0;    // number of chunks ended so far
  uint64_t consumed_ = 0;  // number of filled chunks known to be consumed
  std::byte* closed_at_ = nullptr;
  uint64_t single_ = 0;             // header of the call at batch_ if it has no batch word, else 0
  std::byte* chunk_end_ = nullptr;  // the last position for an end marker
  uint64_t chunk_first_ = 0;        // stream offset of the first call in this chunk
  std::unique_ptr<CircularAllocator> staging_;
  RDMAMemory* unit_ = nullptr;  // the image of this chunk
  std::unique_ptr<internal::Backlog> backlog_;
  std::vector<Synchronizer*> departures_;  // counted down when the batch is published
  std::chrono::steady_clock::time_point batch_since_{};
  MessengerStatistics counts_;
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_CHANNEL_SENDER_H_
