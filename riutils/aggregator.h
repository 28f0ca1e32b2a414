// Aggregation of one-sided calls (Seriema §4.4.2): more calls in one publication.
//
//   RDMAAggregator aggregator(messenger);      // trad; RDMAOverflowAggregator: ovfl
//   for (...) aggregator.call([x] { ... });    // published 4 KiB at a time
//   aggregator.flush();                        // now
//
// kTraditional (the paper's trad): calls are built where they leave from, and published together
// when flush_bytes have come together, when the batch is older than flush_age (if set), or by
// flush(). Until then the receiver sees none of them: flush before you wait for an effect.
//
// kOverflow (ovfl): calls go as those of a messenger; those that do not fit now are kept (they
// "exceed"), up to exceeding_bytes, and sent in order when the receiver has made room, by any later
// call, or a helper thread of the process. Only beyond that does a call's policy matter.
//
// Both are zero-copy: a call is encoded once, in registered memory or in the peer's mapped chunk.
#ifndef CARIAMA_RIUTILS_AGGREGATOR_H_
#define CARIAMA_RIUTILS_AGGREGATOR_H_

#include "absl/status/status.h"
#include "riutils/call_interface.h"
#include "riutils/messenger.h"

namespace cariama {

enum class Aggregation : uint8_t { kTraditional, kOverflow };

// The calls are those of CallInterface. Thread and lifetime as the messenger's, which must outlive
// it; calls of both keep their order.
template <Aggregation kMode = Aggregation::kTraditional>
class BasicAggregator : public CallInterface<BasicAggregator<kMode>> {
 public:
  explicit BasicAggregator(RDMAMessenger& messenger) : messenger_(messenger) {}
  // Publishes what is held.
  ~BasicAggregator() { flush(); }

  [[nodiscard]] absl::Status setup() { return messenger_.setup(); }
  CallResult flush() { return messenger_.flush(); }
  CallResult publish() { return messenger_.publish(); }
  // As the messenger's; publishes an old batch first.
  size_t process_calls(size_t most = SIZE_MAX) {
    if (sender().batch_is_old()) flush();
    return messenger_.process_calls(most);
  }
  absl::Status shutdown(Deadline deadline = kForever) { return messenger_.shutdown(deadline); }

  [[nodiscard]] RDMAMessenger& messenger() { return messenger_; }
  [[nodiscard]] MessengerStatistics statistics() const { return messenger_.statistics(); }

  // For CallInterface.
  static constexpr bool kHold = kMode == Aggregation::kTraditional;
  static constexpr bool kKeep = kMode == Aggregation::kOverflow;
  [[nodiscard]] ChannelSender& sender() { return messenger_.sender(); }
  [[nodiscard]] OutgoingChannel& channel() { return messenger_.channel(); }

 private:
  RDMAMessenger& messenger_;
};

using RDMAAggregator = BasicAggregator<Aggregation::kTraditional>;
using RDMAOverflowAggregator = BasicAggregator<Aggregation::kOverflow>;

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_AGGREGATOR_H_
