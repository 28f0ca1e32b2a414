#include "riutils/routed_aggregator.h"

#include <cstring>
#include <span>
#include <string>

#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "riutils/internal/forwarder.h"
#include "riutils/internal/node_map.h"
#include "riutils/internal/route_failures.h"
#include "riutils/internal/runtime.h"

namespace cariama {
namespace {

// The closure of the first hop.
struct Carried {
  const internal::RoutedHead head;
  const OutgoingCall& call;

  static void write(const void* self, std::byte* at) {
    const auto& [head, call] = *static_cast<const Carried*>(self);
    std::memcpy(at, &head, sizeof head);
    call.write_call(call.call, at + sizeof head);
  }
};

}  // namespace

absl::StatusOr<Routing> routing_of(std::string_view name) {
  if (name == "direct") return Routing::kDirect;
  if (name == "node") return Routing::kNode;
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "there is no routing \"" + std::string(name) + "\"", "use direct or node");
}

RoutedAggregator::RoutedAggregator(ThreadContext& thread, const RoutingOptions& options)
    : thread_(internal::require_context(&thread)),
      fabric_(thread_.fabric()),
      options_(options),
      total_(fabric_.total_threads()),
      threads_(fabric_.threads()),
      order_(internal::RoutedHead::chunk_order(options.messenger.chunk_bytes)),
      failures_(internal::Runtime::of(fabric_).route_failures()),
      any_failure_(&failures_->any()) {
  // The head of a routed call has no room for greater thread ids.
  if (options.routing == Routing::kDirect || total_ > internal::RoutedHead::kMaxThreads) {
    routes_.resize(total_);
    return;
  }
  nodes_ = internal::Runtime::of(fabric_).nodes(options.processes_per_node);
  node_of_ = nodes_->node_by_rank();
  place_of_ = nodes_->place_by_rank();
  nodes_in_job_ = nodes_->nodes();
  own_node_ = nodes_->node_of(fabric_.rank());
  routes_.resize(nodes_in_job_ + nodes_->members(own_node_).size() * threads_);
}

RoutedAggregator::~RoutedAggregator() = default;

// ---- Routes -------------------------------------------------------------------------------------

ThreadId RoutedAggregator::router_for(ThreadId destination) const {
  if (node_of_ == nullptr) return destination;
  const uint32_t node = nodes_->node_of(fabric_.rank_of(destination));
  if (node == own_node_) return destination;
  const std::span<const uint32_t> members = nodes_->members(node);
  const size_t place = nodes_->place_of(fabric_.rank());
  for (size_t i = 0; i < members.size(); ++i) {
    const Rank rank = members[(place + i) % members.size()];
    if (fabric_.peer_status(rank).ok()) return fabric_.thread_of(rank, thread_.index());
  }
  return destination;  // no process of the node lives: the channel says so
}

RoutedAggregator::Route& RoutedAggregator::open(ThreadId destination) {
  std::unique_ptr<Route>& route = routes_[slot_of(destination)];
  const ThreadId to = router_for(destination);
  MessengerOptions options = options_.messenger;
  // Within a process calls arrive in mapped memory only.
  if (fabric_.rank_of(to) == fabric_.rank()) options.arrival = Arrival::kAuto;
  route = std::make_unique<Route>(thread_, to, options);
  return *route;
}

ThreadId RoutedAggregator::next_hop(ThreadId destination) { return route_to(destination).to; }

// ---- Calls with reports ------------------------------------------------------------------------

CallResult RoutedAggregator::send_reporting(ThreadId destination, const OutgoingCall& call,
                                            internal::WhenNoRoom when, internal::CallEnd& end) {
  Route& route = route_to(destination);
  internal::OutgoingChannel& channel = Access::channel(route.calls);
  if (route.to == destination) {
    return internal::send_on_channel(channel, call, when, Access::kBatch, end);
  }
  const Carried carried{{internal::RoutedHead::name(destination, order_), call.id.value}, call};
  OutgoingCall routed{.id = call.id.value == 0 ? call.id : internal::routed_function(),
                      .closure_bytes = sizeof carried.head + call.closure_bytes,
                      .call = &carried,
                      .write_call = &Carried::write};
  const Rank rank = fabric_.rank_of(destination);
  const Rank router = fabric_.rank_of(route.to);
  if (absl::Status expected = end.expect(fabric_, rank, routed, router); !expected.ok()) {
    return expected;
  }
  // As in send_on_channel(): a failure ends the calls that are registered at that time, so look for
  // one after the registration.
  CallResult sent = fabric_.peer_status(rank);
  if (sent.ok()) sent = fabric_.peer_status(router);
  if (sent.ok()) sent = failure_of(route, destination);
  if (sent.ok()) sent = channel.sender().send_slowly(routed, when, Access::kBatch, end.transmitted);
  if (!sent.ok()) {
    return end.refused(fabric_, rank, routed, explain(route, destination, sent.status()));
  }
  ++routed_;
  return sent;
}

// ---- Errors -------------------------------------------------------------------------------------

absl::Status RoutedAggregator::no_such(ThreadId destination) const {
  return internal::check_destination(fabric_, kNoRank, destination);
}

absl::Status RoutedAggregator::failure_of(const Route& route, ThreadId destination) const {
  return failures_->find(fabric_.rank_of(route.to), fabric_.rank_of(destination));
}

absl::Status RoutedAggregator::explain(const Route& route, ThreadId destination,
                                       const absl::Status& why) const {
  return make_error(why.code(), ErrorScope::kPeer,
                    "a call to thread " + std::to_string(destination) + " of " +
                        fabric_.label(fabric_.rank_of(destination)) + ", routed by " +
                        fabric_.label(fabric_.rank_of(route.to)) +
                        ", was refused: " + std::string(why.message()));
}

absl::Status RoutedAggregator::first_failure() const {
  for (const std::unique_ptr<Route>& route : routes_) {
    if (route == nullptr) continue;
    const Rank rank = fabric_.rank_of(route->to);
    if (absl::Status status = fabric_.peer_status(rank); !status.ok()) return status;
  }
  if (node_of_ == nullptr) return absl::OkStatus();
  return failures_->first([&](Rank router, Rank destination) {
    const std::unique_ptr<Route>& route = routes_[slot_of(fabric_.thread_of(destination))];
    return route != nullptr && fabric_.rank_of(route->to) == router;
  });
}

// ---- Publication, incoming calls, shutdown, statistics ------------------------------------------

absl::Status RoutedAggregator::flush() {
  absl::Status first;
  for (const std::unique_ptr<Route>& route : routes_) {
    if (route != nullptr) first.Update(route->calls.flush());
  }
  first.Update(first_failure());
  return first;
}

size_t RoutedAggregator::process_calls(size_t most) {
  if (options_.messenger.flush_age.count() != 0) {
    for (const std::unique_ptr<Route>& route : routes_) {
      if (route != nullptr && Access::sender(route->calls).batch_is_old()) {
        static_cast<void>(route->calls.flush());
      }
    }
  }
  const size_t ran = fabric_.process_calls(most);
  if (ran == 0 && idle_.expired()) return_idle_chunks();
  return ran;
}

size_t RoutedAggregator::return_idle_chunks() {
  size_t count = 0;
  for (const std::unique_ptr<Route>& route : routes_) {
    if (route != nullptr && route->calls.return_idle_chunks()) ++count;
  }
  return count;
}

absl::Status RoutedAggregator::shutdown(Deadline deadline) {
  absl::Status first;
  for (const std::unique_ptr<Route>& route : routes_) {
    if (route != nullptr) first.Update(route->calls.shutdown(deadline));
  }
  first.Update(first_failure());
  return first;
}

RoutingStatistics RoutedAggregator::statistics() const {
  RoutingStatistics statistics;
  statistics.routed = routed_;
  for (const std::unique_ptr<Route>& route : routes_) {
    if (route == nullptr) continue;
    ++statistics.channels;
    const MessengerStatistics channel = route->messenger.statistics();
    statistics.buffer_bytes += channel.chunk_bytes;
  }
  const internal::Forwarder::Statistics forwarding =
      internal::Runtime::of(fabric_).forwarder(thread_.index()).statistics();
  statistics.forwarded = forwarding.forwarded;
  statistics.postponed = forwarding.postponed;
  statistics.lost = forwarding.lost;
  statistics.forwarding_channels = forwarding.channels;
  statistics.forwarding_buffer_bytes = forwarding.buffer_bytes;
  return statistics;
}

}  // namespace cariama
