#include "riutils/messenger.h"

#include <algorithm>
#include <new>
#include <utility>

#include "riutils/internal/fabric_channel.h"
#include "riutils/internal/runtime.h"

namespace cariama {
namespace {

internal::FabricChannel& own(internal::OutgoingChannel& channel) {
  return static_cast<internal::FabricChannel&>(channel);
}

void add(const MessengerStatistics& from, MessengerStatistics& sum) {
  sum.publications += from.publications;
  sum.chunks += from.chunks;
  sum.chunk_bytes += from.chunk_bytes;
  sum.requests += from.requests;
  sum.chunks_filled += from.chunks_filled;
  sum.chunks_consumed += from.chunks_consumed;
  sum.chunks_replaced += from.chunks_replaced;
  sum.chunks_returned += from.chunks_returned;
  sum.pulls += from.pulls;
  sum.wakes += from.wakes;
  sum.events += from.events;
  sum.refused += from.refused;
  sum.deferred += from.deferred;
  sum.deferred_bytes_high_water =
      std::max(sum.deferred_bytes_high_water, from.deferred_bytes_high_water);
}

}  // namespace

RDMAMessenger::RDMAMessenger(ThreadContext& thread, ThreadId destination,
                             const MessengerOptions& options)
    : use_(internal::require_context(&thread).fabric(), "a messenger") {
  auto& runtime = internal::Runtime::of(thread.fabric());
  auto channel =
      std::make_shared<internal::FabricChannel>(runtime, thread.index(), destination, options);
  runtime.add(channel);
  sender_ = &channel->sender();
  channel_ = std::move(channel);
}

RDMAMessenger::~RDMAMessenger() {
  use_.end();
  auto channel = std::static_pointer_cast<internal::FabricChannel>(std::move(channel_));
  try {
    static_cast<void>(channel->sender().shutdown(Deadline::min()));
  } catch (const std::bad_alloc&) {  // no memory for the text of the error
  }
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

bool RDMAMessenger::return_chunks() {
  internal::FabricChannel& ending = own(*channel_);
  internal::Runtime& runtime = ending.runtime();
  const internal::ChannelState state = ending.sender().state();
  if (state == internal::ChannelState::kUnopened) {
    runtime.forget_ended();
    return true;
  }
  if (state != internal::ChannelState::kOpen) return state == internal::ChannelState::kClosed;
  auto next = std::make_shared<internal::FabricChannel>(
      runtime, ending.index(), ending.destination(), ending.options(),
      internal::ChannelUser::kWorker, ending.serial());
  if (!ending.sender().end_if_quiet()) return false;
  MessengerStatistics last = ending.sender().statistics();
  last.chunks_consumed = last.chunks_filled;
  last.chunks_returned = last.chunks - last.chunks_replaced;
  add(last, earlier_);
  accepted_ = 0;
  runtime.add(next);
  sender_ = &next->sender();
  runtime.retire(
      std::static_pointer_cast<internal::FabricChannel>(std::exchange(channel_, std::move(next))));
  return true;
}

bool RDMAMessenger::return_idle_chunks() {
  const uint64_t accepted = own(*channel_).sender().accepted_bytes();
  return std::exchange(accepted_, accepted) == accepted && return_chunks();
}

ThreadId RDMAMessenger::destination() const { return channel_->destination(); }
MessengerStatistics RDMAMessenger::statistics() const {
  MessengerStatistics sum = earlier_;
  add(own(*channel_).sender().statistics(), sum);
  return sum;
}
Arrival RDMAMessenger::arrival() const { return own(*channel_).sender().arrival(); }

}  // namespace cariama
