// One-sided remote invocation: a thread's private channel to one other thread (Seriema §4.4).
//
//   RDMAMessenger messenger(*fabric.this_thread(), destination);
//   messenger.call([x] { ... });                             // run it there
//   messenger.call([](std::string s) { ... }, text);    // through the serializer
//   messenger.call_buffer([](void* buffer, uint64_t size) { ... }, memory, 0, size, transmitted);
//   Synchronizer answered;
//   int sum = 0;
//   messenger.call_return([] { return 42; }, sum, answered);
//   absl::Status waited = fabric.wait(answered, deadline_after(10s));
//   messenger.shutdown(deadline_after(10s));
//
// A call costs no message to any service thread, no receive completion (except with
// Arrival::kEvent: one per event) and no system call. The sender writes the call into memory of the
// receiver. The receiver finds the call at its next poll: in Fabric::process_calls, in
// Fabric::wait, or in the helper threads or process consumer that run its calls (CallConsumer).
// messenger_options.h describes the memory cost.
//
// Order. Accepted calls of one messenger run at most once each, in the order of issue. A call runs
// unless a process dies or the destination rejects the call. Only a completion for `consumed`
// (completions.h) reports a call that did not run. Two messengers to the same thread are two
// independent channels.
//
// When the receiver's chunks are full and no further chunk can be obtained:
//   Fail             the call is refused with RESOURCE_EXHAUSTED
//   Retry (default)  the call waits for room; the waiting thread runs incoming calls meanwhile
//   RetryAsync       the call is deferred: it is copied into sender memory and the function returns
// If a further chunk can be obtained, a call with Fail or Retry waits for the grant by the
// receiver's process, at most MessengerOptions::timeout; a call with RetryAsync is deferred. The
// first call of a channel sets the channel up: it waits for the connection to the receiver's
// process, and, unless it has RetryAsync, for the first chunks. Inside a
// running call, a call that needs the set-up or further chunks is deferred instead, under every
// policy, and the process's drain thread obtains them; setup(), and a call_buffer with Sync, Async
// or a target, are refused there with FAILED_PRECONDITION. The drain thread sends deferred calls
// when there is room. No later call overtakes a deferred call: while calls are deferred, a call
// with Fail is refused and a call with Retry waits. Inside a running call no send waits for the
// receiver: Retry then acts as RetryAsync. At most deferred_bytes are deferred per channel; beyond
// that RetryAsync is refused too. If the receiver's process has no memory for the first chunk, or
// for one that is large enough for the call, Retry is refused as Fail, with RESOURCE_EXHAUSTED.
//
// When the peer's process dies, accepted calls may be lost. Later calls return UNAVAILABLE, at the
// latest when the current chunk is full. Synchronizers of RemoteNotify and call_return fail with
// UNAVAILABLE. If the channel fails while that process lives (it has found malformed data), they
// fail with the error of the channel, as later calls do; the calls may have run.
//
// Thread-compatible: only the thread of its ThreadContext may use a messenger.
#ifndef CARIAMA_RIUTILS_MESSENGER_H_
#define CARIAMA_RIUTILS_MESSENGER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "riutils/call_interface.h"
#include "riutils/channel_sender.h"
#include "riutils/export.h"
#include "riutils/messenger_options.h"

namespace cariama {

enum class Aggregation : uint8_t;
template <Aggregation kMode>
class BasicAggregator;

// A channel from one thread to one destination thread. CallInterface (call_interface.h) declares
// the calls. Neither copyable nor movable.
class CARIAMA_RIUTILS_EXPORT RDMAMessenger : public CallInterface<RDMAMessenger> {
 public:
  // Allocates no channel memory and sends nothing: setup() or the first call does. `thread` must
  // outlive the messenger. Aborts with a message if it is *fabric.this_thread() in a thread that
  // has no context.
  RDMAMessenger(ThreadContext& thread, ThreadId destination, const MessengerOptions& options = {});
  // If shutdown() was not called: publishes the batch, and writes the end of the channel for the
  // receiver if that needs no waiting for the receiver. If it does, the drain thread sends the
  // calls that are still deferred and then ends the channel. May run incoming calls. The channel's
  // memory is freed when the receiver has run all calls.
  ~RDMAMessenger();
  RDMAMessenger(const RDMAMessenger&) = delete;
  RDMAMessenger& operator=(const RDMAMessenger&) = delete;

  // Performs the set-up that otherwise the first call performs: the connection to the peer, one
  // service call that exchanges properties with it, and one that obtains a chunk. Blocks at most
  // FabricOptions::timeout for the connection, and then MessengerOptions::timeout for the answers;
  // runs incoming calls meanwhile. Errors: OUT_OF_RANGE (the destination does not exist),
  // INVALID_ARGUMENT (options), DEADLINE_EXCEEDED, UNAVAILABLE (the destination's process is dead,
  // or the fabric was finalized), RESOURCE_EXHAUSTED (the receiver has no memory for chunks, or
  // this process cannot map them), FAILED_PRECONDITION (after shutdown(); inside a call; the pair
  // of processes does not support the arrival mode; another build).
  [[nodiscard]] absl::Status setup();

  // Publishes the calls that an aggregator has batched on this channel. Calls of the messenger
  // itself are published one by one.
  absl::Status flush() { return sender().flush(); }

  // Runs at most `most` calls that have arrived for this thread, from any sender. Never blocks.
  // Returns the number of calls that ran.
  size_t process_calls(size_t most = SIZE_MAX);

  // Ends the channel: flushes, waits until no call is deferred, and writes the end of the channel
  // for the receiver, which frees the chunks when it has run all calls. Later calls return
  // FAILED_PRECONDITION. Blocks until `deadline` at most; runs incoming calls meanwhile. Requires:
  // not inside a call. Call it, or destroy the messenger, before Fabric::finalize(). Errors:
  // DEADLINE_EXCEEDED (the receiver did not make room in time; the drain thread continues, and
  // shutdown() may be called again), the error with which the channel has failed (UNAVAILABLE,
  // INTERNAL).
  absl::Status shutdown(Deadline deadline);

  // Returns the channel's chunks to the receiver, which frees them when it has run all calls, and
  // frees the memory of this end after that. Publishes the batch. The next call obtains chunks
  // again, as the first one did; it runs after all earlier calls. Returns true if this end uses no
  // chunks any more. Returns false, and keeps them, if calls are deferred, if a grant is
  // outstanding or a function of this messenger waits, or if the end of the channel cannot be
  // published without waiting. Never blocks.
  bool return_chunks();
  // As return_chunks(), if no call was issued since the last call of this function. Returns false
  // if one was.
  bool return_idle_chunks();

  [[nodiscard]] ThreadId destination() const;
  [[nodiscard]] MessengerStatistics statistics() const;
  // Returns the channel's arrival mode; kAuto before setup.
  [[nodiscard]] Arrival arrival() const;

 private:
  friend class internal::ChannelAccess<RDMAMessenger>;
  template <Aggregation>
  friend class BasicAggregator;
  static constexpr bool kBatch = false;
  static constexpr bool kDefer = false;
  [[nodiscard]] internal::ChannelSender& sender() { return *sender_; }
  [[nodiscard]] internal::OutgoingChannel& channel() { return *channel_; }

  const internal::FabricUse use_;
  std::shared_ptr<internal::OutgoingChannel> channel_;
  internal::ChannelSender* sender_;
  MessengerStatistics earlier_;  // of channels whose chunks were returned
  uint64_t accepted_ = 0;        // bytes, at the last return_idle_chunks()
};

namespace internal {

// Tells an object with many channels when to look for idle ones: at most once per `interval`.
class IdleTimer {
 public:
  // 0: never.
  explicit IdleTimer(std::chrono::milliseconds interval) : interval_(interval) {}
  // Reads the clock in one of 64 calls only, because an idle thread calls this function repeatedly.
  [[nodiscard]] bool expired() {
    if (interval_.count() <= 0 || ++calls_ % 64 != 0) return false;
    if (std::chrono::steady_clock::now() < next_) return false;
    next_ = deadline_after(interval_);
    return true;
  }

 private:
  const std::chrono::milliseconds interval_;
  uint64_t calls_ = 0;
  Deadline next_{};
};

}  // namespace internal

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_H_
