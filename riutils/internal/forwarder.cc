#include "riutils/internal/forwarder.h"

#include <algorithm>
#include <new>
#include <span>
#include <string>

#include "dsfabric/function_table.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/internal/unlimited_call.h"
#include "dtutils/error.h"
#include "riutils/internal/fabric_channel.h"
#include "riutils/internal/incoming_calls.h"
#include "riutils/internal/runtime.h"
#include "riutils/routed_aggregator.h"

namespace cariama::internal {
namespace {

// The header before the closure of a call that a router has forwarded.
struct ArrivalHead {
  uint32_t origin = 0;    // ThreadId of the sender
  uint32_t function = 0;  // FunctionId of the sender's function
};
static_assert(sizeof(ArrivalHead) == sizeof(RoutedHead));

// The router runs this function for a routed call.
void forward_call(IncomingCall& call) {
  RoutedHead head;
  if (call.source == nullptr || call.closure.size() < sizeof head) {
    call.outcome = CallOutcome::kMalformed;
    return;
  }
  std::memcpy(&head, call.closure.data(), sizeof head);
  static_cast<IncomingCalls*>(call.source)->forwarder().forward(head, call);
}

// The destination runs this function for a call that a router has forwarded.
void run_forwarded_call(IncomingCall& call) {
  Fabric* const fabric = running_fabric();
  ArrivalHead head;
  // A RoutedAggregator does not ask for an outcome word (NotifyTarget::key).
  if (fabric == nullptr || call.source == nullptr || call.closure.size() < sizeof head ||
      (call.notify != nullptr && call.notify->key != 0)) {
    call.outcome = CallOutcome::kMalformed;
    return;
  }
  std::memcpy(&head, call.closure.data(), sizeof head);
  const FunctionStub stub = FunctionTable::resolve({head.function});
  if (stub == nullptr) {
    call.outcome = CallOutcome::kUnknown;
    return;
  }
  // A forwarded call is not forwarded again: see "Deadlock" in routed_aggregator.h.
  if (head.origin >= fabric->total_threads() || stub == &forward_call ||
      stub == &run_forwarded_call) {
    call.outcome = CallOutcome::kMalformed;
    return;
  }
  const Rank origin = fabric->rank_of(head.origin);
  const RunningCalls running(*fabric, origin);
  const uint32_t router = std::exchange(call.source_thread, head.origin);
  call.closure = call.closure.subspan(sizeof head);
  stub(call);
  call.source_thread = router;
  // The end of the call is reported to its sender, not to the router.
  if (call.notify != nullptr) call.answer_to = origin;
}

// The second hop, as a Call (call_encoding.h).
class ForwardedCall {
 public:
  // Sets `written` when a channel has room for the call and writes it. From then on the channel has
  // accepted the call, also if it throws afterwards.
  ForwardedCall(const ArrivalHead& head, std::span<const std::byte> closure, bool& written)
      : head_(head), closure_(closure), written_(written) {}
  [[nodiscard]] static FunctionId id() { return FunctionTable::id_of<&run_forwarded_call>(); }
  [[nodiscard]] size_t bytes() const { return sizeof head_ + closure_.size(); }
  void write(std::byte* at) const {
    std::memcpy(at, &head_, sizeof head_);
    if (!closure_.empty()) std::memcpy(at + sizeof head_, closure_.data(), closure_.size());
    written_ = true;
  }

 private:
  const ArrivalHead head_;
  const std::span<const std::byte> closure_;
  bool& written_;
};

// Sends `forwarded`, which carries the arrived `call`, with the request for a report of its end.
CallResult send_on(FabricChannel& channel, const ForwardedCall& forwarded,
                   const IncomingCall& call) {
  constexpr auto kWhen = WhenNoRoom::of(WhenFull::kRetryAsync, false);
  if (call.notify == nullptr) [[likely]]
    return channel.sender().send<true>(forwarded, kWhen);
  auto outgoing = OutgoingCall::of(forwarded);
  outgoing.flags = call.result != nullptr ? kCallReturn : kCallNotify;
  outgoing.notify = *call.notify;
  EventReceiver nothing;
  return channel.sender().send_slowly(outgoing, kWhen, true, nothing);
}

}  // namespace

FunctionId routed_function() { return FunctionTable::id_of<&forward_call>(); }

Forwarder::Forwarder(Fabric& fabric, uint32_t index) : fabric_(fabric), index_(index) {}
Forwarder::~Forwarder() = default;

void Forwarder::forward(const RoutedHead& head, IncomingCall& call) {
  if (head.thread() >= fabric_.total_threads() ||
      head.order() < RoutedHead::chunk_order(MessengerOptions::kMinChunkBytes) ||
      head.order() > RoutedHead::chunk_order(MessengerOptions::kMaxChunkBytes)) {
    call.outcome = CallOutcome::kMalformed;
    return;
  }
  bool written = false;
  try {
    forward(entry(head), head, call, written);
  } catch (const std::bad_alloc&) {
    if (!written) {
      postpone(call);
      // No event follows that would wake this thread: it tries again at once.
      static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_));
      return;
    }
    // The channel has accepted the call, which must not be forwarded again.
    if (!std::exchange(call.answered_later, true)) forwarded_.add();
    report_due_ = true;
  }
}

void Forwarder::forward(Entry& to, const RoutedHead& head, IncomingCall& call, bool& written) {
  const uint32_t origin = fabric_.rank_of(call.source_thread);
  // What takes memory comes before the call is sent.
  const bool is_new = to.last_origin != origin;
  if (is_new) [[unlikely]]
    to.origins.insert(origin);
  if (!to.touched) {
    touched_.push_back(&to);
    to.touched = true;
  }
  const ForwardedCall forwarded({call.source_thread, head.function},
                                call.closure.subspan(sizeof head), written);
  const CallResult sent = send_on(*to.channel, forwarded, call);
  if (sent.ok()) [[likely]] {
    call.answered_later = true;  // the destination answers
    forwarded_.add();
    if (is_new) [[unlikely]] {
      to.last_origin = origin;
      // report_failures() tells only the origins of calls before the failure.
      const Rank destination = to.channel->rank();
      if (absl::Status status = fabric_.peer_status(destination); !status.ok()) {
        lost_.add();
        lose(origin, destination, status);
      }
    }
    return;
  }
  if (absl::IsResourceExhausted(sent.status()) &&
      to.channel->sender().state() != ChannelState::kFailed) {
    postpone(call);
    to.channel->wake_when_drained();
    return;
  }
  lose(origin, fabric_.rank_of(head.thread()), sent.status());
  call.answered_later = true;  // the report of the failure ends the call
  lost_.add();
}

void Forwarder::postpone(IncomingCall& call) {
  call.outcome = CallOutcome::kMalformed;
  call.postponed = true;
  postponed_.add();
}

void Forwarder::report_all_failures() {
  for (const auto& [name, entry] : entries_) {
    if (fabric_.finalized()) break;  // all calls have ended
    const Rank rank = entry.channel->rank();
    absl::Status status = fabric_.peer_status(rank);
    if (status.ok()) status = entry.channel->sender().failure();
    if (status.ok()) continue;
    for (const uint32_t origin : entry.origins) lose(origin, rank, status);
  }
  report_due_ = false;
}

// Reports a lost call to the process of its sender, once for each pair of origin and destination.
void Forwarder::lose(uint32_t origin, uint32_t destination, const absl::Status& why) {
  if (reported_.contains({origin, destination})) return;
  const CallResult told = unlimited_service_call(
      fabric_, origin,
      [destination](const std::string& text) {
        Fabric& fabric = *running_fabric();
        const Rank router = running_source();
        if (destination >= fabric.size()) return;
        const absl::Status failure =
            make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                       fabric.label(router) + " could not forward calls to " +
                           fabric.label(destination) + ": " + text,
                       "calls to it that were accepted before may be lost");
        // Senders look for a failure after they have registered a call (send_reporting()).
        Runtime::of(fabric).route_failures()->add(router, destination, failure);
        fail_routed_calls(fabric, destination, router, failure);
        tell_waiters(fabric);
      },
      std::string(why.message()));
  if (told.ok()) reported_.insert({origin, destination});
}

Forwarder::Entry& Forwarder::entry(const RoutedHead& head) {
  Entry*& recent = recent_[head.destination % recent_.size()];
  if (recent != nullptr && recent->name == head.destination) [[likely]]
    return *recent;
  auto found = entries_.find(head.destination);
  if (found == entries_.end()) {
    MessengerOptions options;
    options.chunk_bytes = uint64_t{1} << head.order();
    options.flush_bytes =
        static_cast<uint32_t>(std::min<uint64_t>(options.flush_bytes, options.chunk_bytes));
    options.deferred_bytes = kDeferredChunks * options.chunk_bytes;
    Runtime& runtime = Runtime::of(fabric_);
    auto channel = std::make_shared<FabricChannel>(runtime, index_, head.thread(), options,
                                                   ChannelUser::kForwarder);
    runtime.add(channel);
    const std::lock_guard lock(mutex_);
    found = entries_.emplace(head.destination, Entry{std::move(channel), head.destination}).first;
  }
  recent = &found->second;
  return found->second;
}

// Errors are ignored: the next call to the channel gets the error.
void Forwarder::flush_touched() {
  for (Entry* const entry : touched_) static_cast<void>(entry->channel->sender().flush());
  for (Entry* const entry : touched_) entry->touched = false;
  touched_.clear();
}

void Forwarder::disconnect() {
  touched_.clear();
  recent_ = {};
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

Forwarder::Statistics Forwarder::statistics() const {
  Statistics sum{forwarded_.value(), postponed_.value(), lost_.value()};
  const std::lock_guard lock(mutex_);
  sum.channels = entries_.size();
  for (const auto& [name, entry] : entries_) {
    sum.buffer_bytes += entry.channel->sender().statistics().chunk_bytes;
  }
  return sum;
}

}  // namespace cariama::internal
