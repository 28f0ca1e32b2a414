#include "riutils/messenger.h"

#include <utility>

#include "riutils/internal/fabric_channel.h"
#include "riutils/internal/runtime.h"

namespace cariama {

RDMAMessenger::RDMAMessenger(ThreadContext& thread, uint32_t destination,
                             const MessengerOptions& options) {
  auto& runtime = internal::Runtime::of(thread.fabric());
  auto channel = std::make_shared<internal::FabricChannel>(runtime, thread, destination, options);
  runtime.add(channel);
  sender_ = &channel->sender();
  channel_ = std::move(channel);
}

RDMAMessenger::~RDMAMessenger() {
  static_cast<void>(sender_->shutdown(Deadline::min()));
  auto channel = std::static_pointer_cast<internal::FabricChannel>(std::move(channel_));
  auto& runtime = channel->runtime();
  runtime.retire(std::move(channel));
}

absl::Status RDMAMessenger::setup() { return sender_->setup(); }
size_t RDMAMessenger::process_calls(size_t most) {
  return static_cast<internal::FabricChannel&>(*channel_).runtime().fabric().process_calls(most);
}
absl::Status RDMAMessenger::shutdown(Deadline deadline) { return sender_->shutdown(deadline); }
uint32_t RDMAMessenger::destination() const {
  return static_cast<internal::FabricChannel&>(*channel_).destination();
}
MessengerStatistics RDMAMessenger::statistics() const { return sender_->statistics(); }
Arrival RDMAMessenger::arrival() const { return sender_->arrival(); }

}  // namespace cariama
