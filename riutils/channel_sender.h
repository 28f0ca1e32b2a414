// The sending end of a channel: it writes the calls of one thread to one other thread into the
// receiver's chunks (Seriema §4.4.1). Not for users: they have RDMAMessenger and RDMAAggregator.
//
// This header has the fast path, which is compiled into each call: if the call fits into the window
// behind position_, it is copied there and published by one store. Every other case is a virtual
// function, implemented by RingSender (riutils/internal/ring_sender.h).
#ifndef CARIAMA_RIUTILS_CHANNEL_SENDER_H_
#define CARIAMA_RIUTILS_CHANNEL_SENDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dtutils/doorbell.h"
#include "riutils/export.h"

namespace cariama::internal {

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

// The word whose store publishes the calls behind it (internal/chunk_ring.h).
[[nodiscard]] inline uint64_t word_of(CallHeader header) {
  return header.function | uint64_t{header.words_and_flags} << 32;
}
inline void store_word(std::byte* at, uint64_t word) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_relaxed);
}
inline void publish_word(std::byte* at, uint64_t word) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).store(word, std::memory_order_release);
  // The receiver's doorbell is loaded after this store. The signal fence orders the two for the
  // compiler; the receiver orders them for the processor (Doorbell::is_armed).
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// The action for a call that does not fit now.
struct WhenNoRoom {
  WhenFull policy = WhenFull::kRetry;
  bool defer = false;         // defer the call; `policy` applies when deferred_bytes are deferred
  bool defers_first = false;  // defer also the first call, which sets the channel up
  [[nodiscard]] static constexpr WhenNoRoom of(WhenFull policy, bool defer) {
    const bool is_async = policy == WhenFull::kRetryAsync;
    return {is_async ? WhenFull::kFail : policy, defer || is_async, is_async};
  }
};

// Thread-compatible: only one thread, the owner, may use it.
class CARIAMA_RIUTILS_EXPORT ChannelSender {
 public:
  ChannelSender(const ChannelSender&) = delete;
  ChannelSender& operator=(const ChannelSender&) = delete;

  // Exchanges properties with the peer and obtains the first chunks. Idempotent. The first send
  // performs it if it was not called before. Errors: those of RDMAMessenger::setup().
  [[nodiscard]] virtual absl::Status setup() = 0;

  // Sends a call. With kBatch the call joins the batch. Without kBatch the call is published
  // immediately, together with the batch before it. Errors: INVALID_ARGUMENT (longer than a chunk
  // can hold), RESOURCE_EXHAUSTED (no room, subject to `when`), UNAVAILABLE, those of setup().
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
      // Before the publication: accepted_bytes() must count a call before the receiver counts it.
      position_ = next;
      publish_word(at, word_of(header));
      if (doorbell_->is_armed()) [[unlikely]]
        return published_out_of_line(at, next);
    }
    return {};
  }

  // Sends a call of any form; the slow path of send(). If the result is OK, `transmitted` is
  // completed when the call has been published, or with an error if that has become impossible; it
  // may have been moved from. If the result is an error, `transmitted` is unchanged.
  [[nodiscard]] virtual CallResult send_slowly(const OutgoingCall& call, WhenNoRoom when,
                                               bool batch, EventReceiver& transmitted) = 0;

  // Publishes the batch. Never waits for the receiver. Deferred calls stay deferred.
  [[nodiscard]] virtual absl::Status flush() = 0;
  // Returns true if the batch is at least options.flush_age old. Always false if flush_age is 0.
  [[nodiscard]] virtual bool batch_is_old() const = 0;

 protected:
  explicit ChannelSender(const Doorbell* doorbell) : doorbell_(doorbell) {}
  ~ChannelSender() = default;

  // Called when a batched call does not fit before batch_end_.
  [[nodiscard]] virtual CallResult batch_slowly(const OutgoingCall& call, WhenNoRoom when) = 0;
  // Called after the store that publishes the calls in [first, next), if *doorbell_ is armed.
  [[nodiscard]] virtual CallResult published_slowly(std::byte* first, std::byte* next) = 0;

  static constexpr size_t kLine = 64;  // bytes
  // Begins to fetch a cache line for writing. Does not wait for it.
  __attribute__((always_inline)) static void fetch_for_writing(std::byte* at) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*at));
#else
    __builtin_prefetch(at, 1);
#endif
  }

  // The window: the part of the chunk that the owner's fast path may fill. It begins at position_.
  // If a batch was begun, the window ends at batch_end_, for calls that join the batch. Otherwise
  // it ends at end_, for calls that are published one by one. The end that is not used is not
  // beyond position_. While the window is closed, neither end is beyond position_.
  Relaxed<std::byte*> position_;
  // Another thread that closes the channel sets both ends to nullptr.
  Relaxed<std::byte*> end_;
  Relaxed<std::byte*> batch_end_;
  // The receiver's doorbell. If a publication takes more than a store, the pointer names a doorbell
  // that is always armed, so that every publication takes the slow path.
  const Doorbell* doorbell_;

 private:
  // Prefetches, for writing, the cache lines that soon following calls will fill: the receiver's
  // core read them last. Stores leave a core in order, so that a store that waits for its line
  // delays later stores to other lines, including the one of position_. Without this prefetch calls
  // of 64 to 256 bytes take 1.3 times as long. Calls longer than kDistance are copied as streams,
  // which need no prefetch.
  __attribute__((always_inline)) static void fetch_ahead(std::byte* at, size_t bytes) {
    constexpr size_t kDistance = 512;
    if (bytes > kDistance) return;
    for (size_t i = 0; i < bytes; i += kLine) fetch_for_writing(at + kDistance + i);
  }
  // The type by which a call is passed. A small call is passed by value, in registers: passing its
  // address would force the fast path to write it to the stack.
  template <typename Call>
  using Passed = std::conditional_t<std::is_trivially_copyable_v<Call> && sizeof(Call) <= 16, Call,
                                    const Call&>;
  template <bool kBatch, typename Call>
  [[gnu::noinline, gnu::cold]] CallResult send_out_of_line(Passed<Call> call, WhenNoRoom when) {
    const auto& owning = owned(call);
    if constexpr (kBatch) return batch_slowly(OutgoingCall::of(owning), when);
    EventReceiver nothing;
    return send_slowly(OutgoingCall::of(owning), when, false, nothing);
  }
  [[gnu::noinline, gnu::cold]] CallResult published_out_of_line(std::byte* first, std::byte* next) {
    return published_slowly(first, next);
  }
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_CHANNEL_SENDER_H_
