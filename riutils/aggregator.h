// Aggregation of one-sided calls (Seriema §4.4.2): several calls are published together.
//
//   RDMAAggregator aggregator(messenger);      // trad; RDMAOverflowAggregator: ovfl
//   for (...) aggregator.call([x] { ... });    // published 4 KiB at a time
//   aggregator.flush();                        // publishes the rest
//
// kTraditional (the paper's trad): calls are built at the place from which they are transferred,
// and join a batch. The batch is published when it has reached flush_bytes, when it is older than
// flush_age (if set), or by flush(). Until then the receiver sees none of its calls: flush before
// waiting for an effect, a completion, a result or a Future of a call. No wait function flushes.
//
// kOverflow (ovfl): calls are published one by one, as those of a messenger. Calls that do not fit
// now are deferred (the paper says that they "exceed"), up to deferred_bytes. A later call or the
// process's drain thread sends them, in order, when the receiver has made room. The call's policy
// (Fail, Retry, RetryAsync) applies only when deferred_bytes are deferred. The first call of the
// channel, unless it has RetryAsync, waits for its set-up; messenger.setup() does so before.
//
// Both modes are zero-copy for calls that are not deferred: a call is encoded once, in registered
// memory or in the peer's mapped chunk.
#ifndef CARIAMA_RIUTILS_AGGREGATOR_H_
#define CARIAMA_RIUTILS_AGGREGATOR_H_

#include "absl/status/status.h"
#include "riutils/call_interface.h"
#include "riutils/messenger.h"

namespace cariama {

enum class Aggregation : uint8_t { kTraditional, kOverflow };

// CallInterface declares the calls. Thread-compatible: only the messenger's thread may use it. The
// messenger must outlive the aggregator. Calls made through the aggregator and directly through its
// messenger run in the order of issue.
template <Aggregation kMode = Aggregation::kTraditional>
class BasicAggregator : public CallInterface<BasicAggregator<kMode>> {
 public:
  explicit BasicAggregator(RDMAMessenger& messenger) : messenger_(messenger) {}
  // Publishes the batch.
  ~BasicAggregator() {
    messenger_.use_.end();
    static_cast<void>(flush());
  }

  [[nodiscard]] absl::Status setup() { return messenger_.setup(); }
  // Publishes the batch of the messenger, which all its aggregators share. Never waits for the
  // receiver. OK also if calls are deferred, which stay deferred, and after shutdown(). Error: that
  // with which the channel has failed.
  absl::Status flush() { return messenger_.flush(); }
  // Publishes the batch if it is older than flush_age, then runs at most `most` calls that have
  // arrived for this thread. Never blocks. Returns the number of calls that ran.
  size_t process_calls(size_t most = SIZE_MAX) {
    if (sender().batch_is_old()) static_cast<void>(flush());
    return messenger_.process_calls(most);
  }
  // Ends the messenger's channel, also for its other aggregators: RDMAMessenger::shutdown().
  absl::Status shutdown(Deadline deadline) { return messenger_.shutdown(deadline); }
  // See RDMAMessenger.
  bool return_chunks() { return messenger_.return_chunks(); }
  bool return_idle_chunks() { return messenger_.return_idle_chunks(); }

  [[nodiscard]] RDMAMessenger& messenger() { return messenger_; }
  [[nodiscard]] MessengerStatistics statistics() const { return messenger_.statistics(); }

 private:
  friend class internal::ChannelAccess<BasicAggregator>;
  static constexpr bool kBatch = kMode == Aggregation::kTraditional;
  static constexpr bool kDefer = kMode == Aggregation::kOverflow;
  [[nodiscard]] internal::ChannelSender& sender() { return messenger_.sender(); }
  [[nodiscard]] internal::OutgoingChannel& channel() { return messenger_.channel(); }

  RDMAMessenger& messenger_;
};

using RDMAAggregator = BasicAggregator<Aggregation::kTraditional>;
using RDMAOverflowAggregator = BasicAggregator<Aggregation::kOverflow>;

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_AGGREGATOR_H_
