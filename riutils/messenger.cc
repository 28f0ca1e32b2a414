#include "riutils/messenger.h"

#include <utility>

#include "riutils/internal/fabric_channel.h"
#include "riutils/internal/runtime.h"

namespace cariama {
namespace {

internal::FabricChannel& own(OutgoingChannel& channel) {
  return static_cast<internal::FabricChannel&>(channel);
}

}  // namespace

RDMAMessenger::RDMAMessenger(ThreadContext& thread, ThreadId destination,
                             const MessengerOptions& options) {
  auto& runtime = internal::Runtime::of(internal::require_context(&thread).fabric());
  auto channel =
      std::make_shared<internal::FabricChannel>(runtime, thread.index(), destination, options);
  runtime.add(channel);
  sender_ = &channel->sender();
  channel_ = std::move(channel);
}

RDMAMessenger::~RDMAMessenger() {
  auto channel = std::static_pointer_cast<internal::FabricChannel>(std::move(channel_));
  static_cast<void>(channel->sender().shutdown(Deadline::min()));
  auto& runtime = channel->runtime();
  runtime.retire(std::move(channel));
}

absl::Status RDMAMessenger::setup() { return sender_->setup(); }
size_t RDMAMessenger::process_calls(size_t most) {
  return own(*channel_).runtime().fabric().process_calls(most);
}
absl::Status RDMAMessenger::shutdown(Deadline deadline) {
  return own(*channel_).sender().shutdown(deadline);
}
ThreadId RDMAMessenger::destination() const { return channel_->destination(); }
MessengerStatistics RDMAMessenger::statistics() const {
  return own(*channel_).sender().statistics();
}
Arrival RDMAMessenger::arrival() const { return own(*channel_).sender().arrival(); }

}  // namespace cariama
