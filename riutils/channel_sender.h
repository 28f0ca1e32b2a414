// The sending end of a channel: one thread's calls to one thread, on their way into the receiver's
// chunks (Seriema §4.4.1). What RDMAMessenger and RDMAAggregator are made of; programs use those.
//
// The sender controls everything: which chunk is filled, when another is obtained, and where the
// receiver inserts it. It learns one thing only, how many chunks the receiver has consumed.
//
// Three arrival modes share all code but the last step. position_ and end_ point into the peer's
// mapped chunk or into a local image of it (staging); a call is built there. Mapped: the word that
// publishes it, its header or its batch's word, is then stored with release order. Polled: what is
// behind that word is written, then the word. Event: all is written, then announced by an event.
//
// What does not fit now may be kept (RetryAsync, ovfl): encoded once, in registered memory, in
// order. While calls are kept the fast path finds no room, so nothing overtakes them; the owner and
// the process's drainer bring them on under a mutex. Where calls are mapped the owner takes it at
// no other time but when a chunk is full: while the window is open nobody else touches the channel
// but to read its counts.
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

// Written by one thread, looked at by others for statistics: a plain variable that they may read.
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

// The way to the receiver, as far as a channel needs it. Implemented over a fabric, and by tests.
class CARIAMA_RIUTILS_EXPORT ChannelLink {
 public:
  // What is known of the way once the peer has been met.
  struct Way {
    Arrival arrival = Arrival::kMapped;  // never kAuto
    Transmitter* transmitter = nullptr;  // of the owning thread; not needed where chunks are mapped
    SleepingWord* sleeping = nullptr;    // the receiver's, if mapped
    bool fence = false;  // the sleeping receiver cannot make our stores ordered: we have to
    std::shared_ptr<RDMAAllocator> allocator{};  // for staging, if not mapped
    // Registered with write access for the peer: two lines of ChannelControl, then two of scratch.
    RDMAMemory control;
  };
  struct Chunk {
    RemoteMemoryLocator remote;
    std::byte* mapped = nullptr;  // if Way::arrival is kMapped
  };

  virtual ~ChannelLink() = default;
  // Meets the peer. Once, before anything else but inside_call(). May wait, and run incoming calls.
  [[nodiscard]] virtual absl::StatusOr<Way> open() = 0;
  // Has `count` more chunks allocated by the receiver's process and put where the receiver will
  // find them: no step of the receiver is needed. May wait, and run incoming calls.
  [[nodiscard]] virtual absl::StatusOr<std::vector<Chunk>> obtain(uint32_t count) = 0;
  // Arrival::kEvent: tells the receiver, after all that was posted, that so many more words have
  // arrived.
  virtual void announce(uint64_t words) = 0;
  // Wakes the receiver, which sleeps. Never waits; the wake-up may follow later but is not lost.
  virtual void wake() = 0;
  // OK, or why nothing can reach the receiver any more.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // Whether the calling thread is running a call: then nothing may wait for peers.
  [[nodiscard]] virtual bool inside_call() const = 0;
  // Waits until the condition holds, and runs incoming calls meanwhile.
  [[nodiscard]] virtual bool wait(const std::function<bool()>& condition, Deadline deadline) = 0;
  // Has some thread call drain() again and again until it returns true.
  virtual void drain_later() = 0;
  // Registered memory for calls that are kept.
  [[nodiscard]] virtual absl::StatusOr<RDMAMemory> allocate(size_t bytes) = 0;
  virtual void free(const RDMAMemory& memory) = 0;
};

// A call about to be sent, without its type.
struct OutgoingCallView {
  FunctionId id;
  uint8_t flags = 0;
  NotifyTarget notify{};     // with flags
  size_t closure_bytes = 0;  // a multiple of 8
  const void* call = nullptr;
  void (*write_call)(const void* call, std::byte* at) = nullptr;

  template <typename Call>
  [[nodiscard]] static OutgoingCallView of(const Call& call) {
    return {.id = Call::id(),
            .closure_bytes = call.bytes(),
            .call = &call,
            .write_call = [](const void* self, std::byte* at) {
              static_cast<const Call*>(self)->write(at);
            }};
  }
  // Bytes behind the header.
  [[nodiscard]] size_t bytes() const {
    return closure_bytes + (flags != 0 ? sizeof(NotifyTarget) : 0);
  }
  [[nodiscard]] size_t total() const { return sizeof(CallHeader) + bytes(); }
  [[nodiscard]] CallHeader header() const { return CallHeader::make(id, bytes(), flags); }
  // Everything but the header.
  void write_behind_header(std::byte* at) const {
    if (flags != 0) {
      std::memcpy(at, &notify, sizeof notify);
      at += sizeof notify;
    }
    write_call(call, at);
  }
};

// What becomes of a call that does not fit now.
struct WhenNoRoom {
  WhenFull policy = WhenFull::kRetry;
  bool keep = false;  // keep it; the policy decides what happens when exceeding_bytes are kept
  [[nodiscard]] static constexpr WhenNoRoom of(WhenFull policy, bool keep) {
    return {policy == WhenFull::kRetryAsync ? WhenFull::kFail : policy,
            keep || policy == WhenFull::kRetryAsync};
  }
};

// Belongs to one thread, its owner; drain() and statistics() may be called by any. `link` must
// outlive it.
class CARIAMA_RIUTILS_EXPORT ChannelSender {
 public:
  // `peer` names the destination in error texts.
  ChannelSender(ChannelLink& link, const MessengerOptions& options, std::string peer);
  // Abandons what is not published.
  ~ChannelSender();
  ChannelSender(const ChannelSender&) = delete;
  ChannelSender& operator=(const ChannelSender&) = delete;

  // Meets the peer and obtains the first chunks. Idempotent; the first call does it otherwise.
  // Errors: INVALID_ARGUMENT (options out of range), UNAVAILABLE, RESOURCE_EXHAUSTED (the
  // receiver's or our memory budget), DEADLINE_EXCEEDED, FAILED_PRECONDITION (shut down; a forced
  // arrival that the pair does not have).
  [[nodiscard]] absl::Status setup();

  // Sends a call. With kHold it joins the batch, else it is published at once, with the batch
  // before it. Errors: INVALID_ARGUMENT (longer than a chunk takes), RESOURCE_EXHAUSTED (no room,
  // as `when` says), UNAVAILABLE, those of setup().
  template <bool kHold, typename Call>
  [[nodiscard]] __attribute__((always_inline)) CallResult send(const Call& call, WhenNoRoom when) {
    const size_t bytes = call.bytes();
    const FunctionId id = Call::id();
    std::byte* const at = position_;
    const CallHeader header = CallHeader::make(id, bytes, 0);
    // Signed: where the other kind of call is under way this end is behind us.
    if ((kHold ? hold_end_ : end_) - at < static_cast<ptrdiff_t>(sizeof header + bytes) ||
        id.value == 0) [[unlikely]] {
      return send_out_of_line<kHold, Call>(call, when);
    }
    std::byte* const next = at + sizeof header + bytes;
    fetch_ahead(at, sizeof header + bytes);
    call.write(at + sizeof header);
    if constexpr (kHold) {
      std::memcpy(at, &header, sizeof header);  // plain data: the batch's word publishes it
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

  // The same for calls of any form. `transmitted`, if given and the result is OK, is counted down
  // when the call has left (fails if it never can).
  [[nodiscard]] CallResult send_slowly(const OutgoingCallView& call, WhenNoRoom when, bool hold,
                                       Synchronizer* transmitted);

  // Publishes the batch. Does not wait. What is kept stays kept.
  [[nodiscard]] CallResult flush();
  // How old the batch is. Only with options.flush_age.
  [[nodiscard]] bool batch_is_old() const;
  // flush(), and tells the receiver in its chunk header how far the sender has come (paper:
  // publish).
  [[nodiscard]] CallResult publish();

  // Brings kept calls on as far as there is room. True: none are left. For helper threads:
  // `transmitter_of` gives one of their own, once the way is known. Obtains chunks, and may wait
  // for that.
  bool drain(const std::function<Transmitter*()>& transmitter_of);

  // Flushes, waits until no call is kept, and tells the receiver that the channel ends: it returns
  // the chunks once it has run everything. Later calls get FAILED_PRECONDITION. Error:
  // DEADLINE_EXCEEDED (the receiver is behind; may be called again), UNAVAILABLE.
  [[nodiscard]] absl::Status shutdown(Deadline deadline);
  // After shutdown(): whether the receiver has let go of the channel, so that its control memory is
  // unused.
  [[nodiscard]] bool is_released() const;

  [[nodiscard]] bool is_open() const { return way_.has_value(); }
  [[nodiscard]] const MessengerOptions& options() const { return options_; }
  // kAuto until setup().
  [[nodiscard]] Arrival arrival() const { return way_ ? way_->arrival : Arrival::kAuto; }
  // Bytes of calls that were accepted so far. Any thread.
  [[nodiscard]] uint64_t accepted_bytes() const;
  [[nodiscard]] MessengerStatistics statistics() const;

  // Makes the next publication of a mapped channel find out that its receiver's process has died.
  void peer_died();
  // The fabric has ended: what is left is lost, and later calls get `why`. No call may be under way
  // in the owner.
  void close(const absl::Status& why);

 private:
  struct Chunk {
    RemoteMemoryLocator remote;
    std::byte* mapped = nullptr;
    uint64_t filled_as = 0;  // how many had been filled when this one was, 0: never
  };
  enum class Progress : uint8_t {
    kDone,
    kObtain,  // nothing is free, but there may be more chunks
    kFull,    // the receiver has to consume first
    kFailed,  // failure_ says why
  };

  [[nodiscard]] static uint64_t word_of(CallHeader header) {
    return header.function | uint64_t{header.words_and_flags} << 32;
  }
  static void store_word(std::byte* at, uint64_t word) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_relaxed);
  }
  static void publish_word(std::byte* at, uint64_t word) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_release);
    // The receiver's membarrier makes the processor keep store and the look at its sleeping word in
    // order (internal/incoming.h); the compiler is told here.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  // Asks for the lines that calls soon will be written to: they were last in the receiver's cache.
  // Stores leave a core in order, so that one that waits for its line holds up those to other
  // lines, position_ among them: without this, calls of 64 to 256 bytes take 1.3 times as long.
  // Longer ones are copied as streams, which need no help.
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
  // A call small enough travels in registers: were its address taken, it would have to be written
  // to the stack for every call.
  template <typename Call>
  using Passed = std::conditional_t<std::is_trivially_copyable_v<Call> && sizeof(Call) <= 16, Call,
                                    const Call&>;
  template <bool kHold, typename Call>
  [[gnu::noinline, gnu::cold]] CallResult send_out_of_line(Passed<Call> call, WhenNoRoom when) {
    if constexpr (kHold) return hold_slowly(OutgoingCallView::of(call), when);
    return send_slowly(OutgoingCallView::of(call), when, false, nullptr);
  }

  // What follows is under mutex_ and with the window closed, unless it says otherwise.
  // `transmitter` is the caller's: transfers of one channel are ordered by the queue pair, whoever
  // posts them.
  [[nodiscard]] absl::Status check_options() const;
  [[nodiscard]] absl::Status obtain(std::unique_lock<std::mutex>& lock, Transmitter* transmitter);
  void close_window();
  // With `hold` a batch is begun, if nothing is held yet: the owner's next call will join it.
  void open_window(bool hold = false);
  // Whether closed_at_ now is behind something that has to be published.
  [[nodiscard]] bool build(const OutgoingCallView& call, bool hold);
  [[nodiscard]] absl::Status flush_batch(Transmitter* transmitter);
  // A chunk with room for a call, if there is one.
  [[nodiscard]] Progress advance(Transmitter* transmitter);
  [[nodiscard]] bool ring_has_room(uint64_t in_use, Transmitter* transmitter);
  [[nodiscard]] bool open_chunk(uint32_t index, Transmitter* transmitter);
  [[nodiscard]] absl::Status end_chunk(Transmitter* transmitter, uint8_t flags);
  [[nodiscard]] Progress drain_kept(Transmitter* transmitter);
  void fail(absl::Status status);
  // Whether send_slowly or shutdown may find what they wait for; brings kept calls on.
  [[nodiscard]] bool look_for_room(uint64_t kept_before);
  [[nodiscard]] bool has_room(uint64_t bytes) const {
    return chunk_open_ && static_cast<uint64_t>(chunk_end_ - closed_at_) >= bytes;
  }

  // By the owner, the window open. These two without the mutex, where calls are mapped.
  [[nodiscard]] CallResult hold_slowly(const OutgoingCallView& call, WhenNoRoom when);
  [[nodiscard]] CallResult publish_batch(std::byte* next);
  // Begins a batch where nothing is held, if there is room for one.
  void begin_batch(std::byte* at);
  void set_hold_end();
  [[nodiscard]] bool batch_is_empty() const {
    return batch_ == nullptr || position_ - batch_ <= kBatchWord;
  }

  // By the owner, the window open or closed.
  [[nodiscard]] absl::Status write_image(Transmitter* transmitter, const std::byte* at,
                                         uint64_t bytes);
  [[nodiscard]] absl::Status write_kept(Transmitter* transmitter, RDMAMemory& memory,
                                        uint64_t offset, uint64_t bytes, const std::byte* at);
  [[nodiscard]] std::byte* leave_zeros(std::byte* next);
  [[nodiscard]] size_t image_bytes() const;
  [[nodiscard]] absl::Status write_batch(Transmitter* transmitter, std::byte* first,
                                         std::byte* next);
  [[nodiscard]] absl::Status after_publication(const std::byte* next, uint64_t words);
  [[nodiscard]] absl::Status write_producer(Transmitter* transmitter, bool filled);
  [[gnu::noinline, gnu::cold]] CallResult published_slowly(std::byte* first, std::byte* next);
  [[nodiscard]] uint64_t offset_of(const std::byte* at) const {  // in the stream of calls
    return chunk_first_ + static_cast<uint64_t>(at - base_) - sizeof(ChunkHeader);
  }

  static constexpr ptrdiff_t kBatchWord = sizeof(CallHeader);

  // The fast path's line. The window begins at position_. It ends at hold_end_ for calls that join
  // the batch, if one was begun; else at end_ for those that are published one by one. The other
  // end, and both while calls are kept and before set-up, is not beyond position_. When the window
  // is closed, closed_at_ is where the channel really is.
  alignas(64) internal::Relaxed<std::byte*> position_;
  std::byte* end_ = nullptr;
  std::byte* hold_end_ = nullptr;
  // Window open: the word of the batch that was begun, or nullptr. Closed: the first word that is
  // not published.
  internal::Relaxed<std::byte*> batch_;
  // The receiver's sleeping word; or one that always says asleep, where publishing takes more than
  // a store.
  const std::atomic<uint32_t>* sleeping_;
  std::byte* base_ = nullptr;                 // of the chunk, or of its image
  internal::Relaxed<uint64_t> publications_;  // these three are counted without the mutex
  internal::Relaxed<uint64_t> wakes_;
  internal::Relaxed<uint64_t> events_;
  bool window_open_ = false;  // the owner's alone
  // Publishing a batch is two stores: mapped, no fence, no clock.
  bool publishes_by_store_ = false;

  alignas(64) mutable std::mutex mutex_;
  ChannelLink& link_;
  const MessengerOptions options_;
  const std::string peer_;
  const absl::Status refusal_;
  std::optional<ChannelLink::Way> way_;
  ChannelControl* control_ = nullptr;
  bool keeping_ = false;    // the window stays closed
  bool obtaining_ = false;  // a thread waits for chunks, without the mutex
  bool ended_ = false;
  absl::Status failure_;

  std::vector<Chunk> chunks_;  // the ring
  uint32_t limit_;  // of chunks: max_chunks, or less if the receiver's memory is exhausted
  uint32_t current_ = 0;
  bool chunk_open_ = false;
  uint32_t inserted_ = 0;  // behind current_, and not told to the receiver yet
  uint64_t filled_ = 0;    // chunks ended so far
  uint64_t consumed_ = 0;  // of these, as far as we know
  std::byte* closed_at_ = nullptr;
  uint64_t single_ = 0;             // header of a call at batch_ that is in no batch, or 0
  std::byte* chunk_end_ = nullptr;  // the last place for an end marker
  uint64_t chunk_first_ = 0;        // stream offset of the first call in this chunk
  std::unique_ptr<CircularAllocator> staging_;
  RDMAMemory* unit_ = nullptr;  // the image of this chunk
  std::unique_ptr<internal::Backlog> backlog_;
  std::vector<Synchronizer*> departures_;  // of the batch
  std::chrono::steady_clock::time_point batch_since_{};
  MessengerStatistics counts_;
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_CHANNEL_SENDER_H_
