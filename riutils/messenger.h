// One-sided remote invocation: a thread's private channel to one other thread (Seriema §4.4).
//
//   RDMAMessenger messenger(*fabric.this_thread(), destination);
//   messenger.call([x] { ... });                             // run it there
//   messenger.call([](std::string s) { ... }, text);    // through the serializer
//   messenger.call_buffer([](void* buffer, uint64_t size) { ... }, memory, 0, size, transmitted);
//   Synchronizer answered;
//   int sum = 0;
//   messenger.call_return([] { return 42; }, sum, answered);
//   messenger.shutdown(deadline_after(10s));
//
// A call costs no message to any service thread, no completion at the receiver and no system call:
// it is written into memory of the receiver, which finds it when it next looks
// (Fabric::process_calls, wait, or whoever consumes for it). See chunk_ring.h for how,
// messenger_options.h for what it costs.
//
// Order. Calls of one messenger run once each, in the order of issue, or the messenger reports that
// they did not. Two messengers to the same thread are two channels.
//
// When the receiver is behind and no chunk is to be had: Fail refuses the call with
// RESOURCE_EXHAUSTED, Retry (the default) waits and runs incoming calls meanwhile, RetryAsync keeps
// it and returns; kept calls are sent by a helper thread of the process, and no later call
// overtakes them, whatever its policy: Fail is then refused, Retry waits. Inside a call nothing
// waits: Retry acts as RetryAsync. At most exceeding_bytes are kept; then RetryAsync is refused
// too.
//
// When the peer's process dies, calls that were accepted may be lost; later ones get UNAVAILABLE,
// at the latest when a chunk is full; what waits with RemoteNotify or call_return fails with
// UNAVAILABLE.
//
// A messenger belongs to its thread: that of its ThreadContext.
#ifndef CARIAMA_RIUTILS_MESSENGER_H_
#define CARIAMA_RIUTILS_MESSENGER_H_

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

// See above; the calls are those of CallInterface (call_interface.h).
class CARIAMA_RIUTILS_EXPORT RDMAMessenger : public CallInterface<RDMAMessenger> {
 public:
  // Takes no memory and sends nothing before the first call. `thread` must outlive it.
  RDMAMessenger(ThreadContext& thread, uint32_t destination, const MessengerOptions& options = {});
  // Without shutdown() before it: publishes what is there, and tells the receiver that the channel
  // ends if that takes no waiting. Kept calls are still brought on; the channel's memory then stays
  // until the fabric ends.
  ~RDMAMessenger();

  // Does now what the first call would do: one service call to meet the peer, one to obtain chunks.
  // Waits for both, and runs incoming calls meanwhile. Errors: see ChannelSender::setup;
  // OUT_OF_RANGE.
  [[nodiscard]] absl::Status setup();

  // Tells the receiver, in the header of the current chunk, how far the sender has come.
  CallResult publish() { return sender().publish(); }
  // Publishes what an aggregator holds back on this channel. Calls of the messenger itself are
  // published one by one.
  CallResult flush() { return sender().flush(); }

  // Runs calls that have arrived for this thread, from any sender. Never waits. Returns how many.
  size_t process_calls(size_t most = SIZE_MAX);

  // Ends the channel; see ChannelSender::shutdown. Call it before Fabric::finalize.
  absl::Status shutdown(Deadline deadline = kForever);

  [[nodiscard]] uint32_t destination() const;
  [[nodiscard]] MessengerStatistics statistics() const;
  // How calls arrive; kAuto before setup.
  [[nodiscard]] Arrival arrival() const;

  // For CallInterface.
  static constexpr bool kHold = false;
  static constexpr bool kKeep = false;
  [[nodiscard]] ChannelSender& sender() { return *sender_; }
  [[nodiscard]] OutgoingChannel& channel() { return *channel_; }

 private:
  std::shared_ptr<OutgoingChannel> channel_;
  ChannelSender* sender_;
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_H_
