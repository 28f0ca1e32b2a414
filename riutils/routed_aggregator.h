// Aggregated calls from one thread to any thread of the job, in memory that does not grow with the
// number of threads squared: calls to other nodes travel in two hops.
//
//   TerminationDetector detector(fabric);   // dsfabric/quiescence.h
//   RoutedAggregator calls(*fabric.this_thread(), {.routing = Routing::kNode});
//   CallResult sent = calls.call(destination, [x] { ... });   // batched
//   absl::Status flushed = calls.flush();   // publishes the batches of this thread: before a wait
//   absl::Status all = detector.wait(deadline);               // all calls of the job have run
//   absl::Status ended = calls.shutdown(deadline);
//
// Routes. The default, Routing::kDirect, has a channel (messenger.h) to each thread, as
// RDMAAggregatorGlobal. With Routing::kNode the processes of a job are divided into nodes: those of
// one host, or processes_per_node consecutive ranks; the last node may be smaller. The place of a
// process is its position in its node, in the order of ranks. A thread has channels to the threads
// of its own node, and one channel to each other node: to the process at the sender's place there
// (modulo the size of that node), and in it to the thread of the sender's index. That thread is the
// router: it forwards the calls to the threads of its node, on channels of its own. Example with
// nodes of four: rank 5 has place 1, so its router in node 2, ranks 8 to 11, is rank 9. A call to
// the router itself takes one hop. (YGM and Conveyors route in the same way.) All processes must
// use the same processes_per_node. Every process must have a thread of each index that sends: if
// the router's process has no thread of that index, its calls are forwarded in finalize() only. No
// error reports this.
//
// Memory. Let the job have N nodes of p processes of T threads, so that P = N p. Channels per
// thread: N - 1 to other nodes, p T to its own node, p T as a router. With p T = N, that is 3
// sqrt(P T) per thread, instead of P T with kDirect. Each channel has at least first_chunk_bytes at
// its receiver (messenger_options.h); statistics() says how much. In addition: 12 to 16 bytes per
// process of the job, for the nodes; 8 bytes per channel that may be needed; and per channel of a
// router the deferred calls, at most 8 chunks. Everything is allocated on first use.
//
// Cost. A routed call has 8 bytes more than a direct one, on each of its hops, is copied once more,
// and runs later. It is decoded at its destination only. Batches are larger: a thread has fewer of
// them to fill. Routing pays if calls are short and destinations are many.
//
// Order. Accepted calls of one object to one destination run at most once each, in the order of
// issue, since they all take one route. There is no order between calls of two objects, and none
// between calls to two destinations. A call runs unless a process dies or the destination rejects
// it.
//
// Forwarding. The router forwards calls where the calls to its thread run: when it polls or waits
// (Fabric::process_calls, Fabric::wait), in helper threads, or in finalize(). It publishes them at
// the end of each such round. A thread that does not run its calls delays the calls that it should
// forward. The router needs no object of this class.
//
// Back-pressure. If a destination is slow, its router defers its calls, up to the limit above. Then
// the router stops reading the channel whose next call does not fit; the sender's policy decides,
// as for any full channel. Calls behind that one, of the same sender to other threads of the node,
// wait meanwhile. No call is lost, and memory stays bounded. A call for which the router finds no
// memory (std::bad_alloc) waits in the same way, and is forwarded once.
//
// Deadlock. Waiting for room cannot be circular. The channels of routers carry calls that are run
// at their destination and never forwarded again (a forwarded call that asks for it is rejected),
// and running a call never waits for room in a channel. (Without mapped chunks, a router may wait
// for transfers of its own process.) So the channels of routers drain as long as
// their destinations run calls. The first hop drains as long as the channels of routers do. A
// thread that waits for room runs incoming calls and forwards meanwhile.
//
// Termination. A TerminationDetector and Fabric::finalize() count calls on both hops: a call counts
// as begun on the second hop before it has ended on the first.
//
// Failures. If a router dies, calls that it had not forwarded are lost. Later calls by this route,
// flush() and shutdown() return UNAVAILABLE with its name. The calls that it had published run;
// calls by other routes are not affected. A route is never replaced during the life of an object,
// since calls could overtake others. A new object chooses routers among the processes that live. If
// a destination dies, its router tells the senders: later calls to it, flush() and shutdown() get
// UNAVAILABLE with its name.
//
// Reports. A call may have completions and a result (completions.h). on_transmitted() reports that
// the first hop is published. The report of the call's end, with its result, goes from the
// destination to the sender's process directly, by a connection of the two, which they set up if
// there is none; it does not pass the router. If the router or the destination fails before, the
// completion gets UNAVAILABLE: the call may have run.
//
// Not supported: buffers that are READ or WRITTEN, and RemoteObject. Use a messenger for these.
#ifndef CARIAMA_RIUTILS_ROUTED_AGGREGATOR_H_
#define CARIAMA_RIUTILS_ROUTED_AGGREGATOR_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_forms.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dsfabric/fabric.h"
#include "dsfabric/function_table.h"
#include "dsfabric/ids.h"
#include "dtutils/wait.h"
#include "riutils/aggregator.h"
#include "riutils/channel_sender.h"
#include "riutils/export.h"
#include "riutils/messenger.h"
#include "riutils/messenger_options.h"

namespace cariama {

namespace internal {

class NodeMap;
class RouteFailures;

// The header before the closure of a routed call.
struct RoutedHead {
  static constexpr uint32_t kThreadBits = 27;
  static constexpr uint32_t kMaxThreads = 1u << kThreadBits;  // of a job

  uint32_t destination = 0;  // ThreadId | chunk order << kThreadBits
  uint32_t function = 0;     // FunctionId of the sender's function

  // Returns the order of chunks of 2^order bytes, in which every call fits that fits into a chunk
  // of `chunk_bytes`.
  [[nodiscard]] static constexpr uint32_t chunk_order(uint64_t chunk_bytes) {
    return static_cast<uint32_t>(std::bit_width(chunk_bytes - 1));
  }
  // Names the forwarding channel for chunks of that order. A sender with larger chunks thus gets
  // another forwarding channel, one that takes its calls.
  [[nodiscard]] static constexpr uint32_t name(ThreadId thread, uint32_t order) {
    return thread.value() | order << kThreadBits;
  }
  [[nodiscard]] constexpr ThreadId thread() const { return destination & (kMaxThreads - 1); }
  [[nodiscard]] constexpr uint32_t order() const { return destination >> kThreadBits; }
};
static_assert(sizeof(RoutedHead) == 8);
static_assert(RoutedHead::chunk_order(MessengerOptions::kMaxChunkBytes) < 32);

// Returns the id of the function that a router runs for a routed call.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT FunctionId routed_function();

// A Call (call_encoding.h) that carries another one. `Stored`: the type of the other one, or a
// reference to it.
template <typename Stored>
class RoutedCall {
  using Call = std::remove_cvref_t<Stored>;

 public:
  RoutedCall(uint32_t destination, const Call& call) : destination_(destination), call_(call) {}

  [[nodiscard]] static FunctionId id() {
    return Call::id().value == 0 ? FunctionId{} : routed_function();
  }
  [[nodiscard]] size_t bytes() const { return sizeof(RoutedHead) + call_.bytes(); }
  void write(std::byte* at) const {
    const RoutedHead head{destination_, Call::id().value};
    std::memcpy(at, &head, sizeof head);
    call_.write(at + sizeof head);
  }
  // Returns a copy that contains the arguments.
  [[nodiscard]] auto owned() const requires requires(const Call& call) { call.owned(); }
  { return RoutedCall<decltype(call_.owned())>(destination_, call_.owned()); }

 private:
  const uint32_t destination_;
  Stored call_;
};

}  // namespace internal

enum class Routing : uint8_t {
  kDirect,  // one hop: a channel to each thread
  kNode,    // two hops to threads of other nodes
};
// Returns the routing of that name: "direct" or "node". Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::StatusOr<Routing> routing_of(std::string_view name);

struct RoutingOptions {
  Routing routing = Routing::kDirect;
  // kNode: this many consecutive ranks form a node. 0: the processes of one host do.
  uint32_t processes_per_node = 0;
  // Of this thread's channels (a channel within the process arrives mapped, whatever `arrival`
  // says). The channels of routers have the defaults, with chunks of
  // chunk_bytes rounded up to a power of two.
  MessengerOptions messenger{};
};

struct RoutingStatistics {
  // Of this object.
  uint64_t channels = 0;      // opened so far
  uint64_t buffer_bytes = 0;  // their chunks now, in the receivers' processes
  uint64_t routed = 0;        // calls that were accepted for two hops
  // Of this thread as a router, since the fabric was created.
  uint64_t forwarded = 0;                // calls: the hops that this thread added
  uint64_t postponed = 0;                // attempts to forward a call for which there was no room
  uint64_t lost = 0;                     // calls whose destination could not be reached
  uint64_t forwarding_channels = 0;      // opened so far
  uint64_t forwarding_buffer_bytes = 0;  // their chunks, in the receivers' processes
};

// Thread-compatible: only the thread of its ThreadContext may use it. Neither copyable nor movable.
class CARIAMA_RIUTILS_EXPORT RoutedAggregator : private internal::AddressedCalls {
 public:
  // Opens no channel: the first call to a destination does. `thread` must outlive the object.
  // Aborts with a message if it is *fabric.this_thread() in a thread that has no context.
  explicit RoutedAggregator(ThreadContext& thread, const RoutingOptions& options = {});
  // Publishes the batches, and ends the channels as ~RDMAMessenger does.
  ~RoutedAggregator();
  RoutedAggregator(const RoutedAggregator&) = delete;
  RoutedAggregator& operator=(const RoutedAggregator&) = delete;

  using internal::AddressedCalls::call, internal::AddressedCalls::call_buffer,
      internal::AddressedCalls::call_return, internal::AddressedCalls::async_call;
  // The destination calls function(arguments...). Errors: those of RDMAAggregator::call (a call
  // whose length exceeds a chunk: INVALID_ARGUMENT), OUT_OF_RANGE (no such thread), and UNAVAILABLE
  // (the router or the destination has failed).
  //   call(destination, function, arguments...)
  //   call(destination, function, completions, arguments...)
  template <auto... Options, typename F, typename... Given>
  __attribute__((always_inline)) CallResult call(ThreadId destination, F&& function,
                                                 Given&&... given) {
    if (destination >= total_) [[unlikely]]
      return no_such(destination);
    return internal::issue_call<CallOptions<Options...>>(Path(*this, destination), function,
                                                         std::forward<Given>(given)...);
  }
  // The destination calls function(buffer, size), with a copy of the bytes of `source`.
  //   call_buffer(destination, function, source, [completions])
  template <auto... Options, typename F, typename... Given>
  CallResult call_buffer(ThreadId destination, F&& function, std::span<const std::byte> source,
                         Given&&... given) {
    constexpr bool kCopied =
        !CallOptions<Options...>::template kGives<Pulling> && !internal::kTargetFirst<Given...>;
    static_assert(kCopied,
                  "cariama: a RoutedAggregator copies the buffer into the call; a messenger's "
                  "call_buffer READs (Sync, Async) or WRITEs it");
    if (destination >= total_) [[unlikely]]
      return no_such(destination);
    if constexpr (kCopied) {
      return internal::issue_call_buffer<CallOptions<Options...>>(
          Path(*this, destination), function, source, std::forward<Given>(given)...);
    } else {
      return {};
    }
  }
  // As CallInterface::call_return (call_interface.h).
  template <auto... Options, typename F, typename T, typename Given, typename... Args>
  CallResult call_return(ThreadId destination, F&& function, T& result, Given&& completions,
                         Args&&... arguments) {
    if (destination >= total_) [[unlikely]]
      return no_such(destination);
    return internal::issue_call_return<CallOptions<Options...>>(
        Path(*this, destination), function, result, std::forward<Given>(completions),
        std::forward<Args>(arguments)...);
  }
  // As CallInterface::async_call (call_interface.h). The call is batched: flush() before a wait.
  template <auto... Options, typename F, typename... Args>
  [[nodiscard]] auto async_call(ThreadId destination, F&& function, Args&&... arguments) {
    const Path path(*this, destination);
    using Result = decltype(internal::issue_async_call<CallOptions<Options...>>(
        path, function, std::forward<Args>(arguments)...));
    if (destination >= total_) [[unlikely]]
      return Result::failed(fabric_, no_such(destination));
    return internal::issue_async_call<CallOptions<Options...>>(path, function,
                                                               std::forward<Args>(arguments)...);
  }

  // Publishes the batches of this thread. Never waits for a receiver. Returns the first error,
  // after it has tried every channel; also the failures of the routers of this object, and of
  // destinations to which a router could not forward calls of this process. So every flush() after
  // such a failure returns it, and publishes the other batches nevertheless.
  absl::Status flush();
  // Publishes batches older than flush_age (if set), then runs at most `most` calls that have
  // arrived for this thread, and forwards those for others. Never blocks. Returns the number of
  // calls that ran or were forwarded. If none: returns the chunks of channels that were not used
  // for MessengerOptions::return_after, as BasicGlobal::process_calls_all().
  size_t process_calls(size_t most = SIZE_MAX);
  // As BasicGlobal::return_idle_chunks(), for the channels of this thread. Those by which routers
  // forward calls keep their chunks.
  size_t return_idle_chunks();
  // Ends the channels of this thread (RDMAMessenger::shutdown). Returns the first error, after it
  // has tried every channel; also the failures that flush() returns. Routers may still have calls
  // to forward: to wait until all calls have run, use a TerminationDetector before. Must be called
  // before Fabric::finalize.
  absl::Status shutdown(Deadline deadline);

  // Returns the thread to which this object sends calls for `destination`: the router, or
  // `destination` itself. Requires: destination < total_threads().
  [[nodiscard]] ThreadId next_hop(ThreadId destination);
  [[nodiscard]] RoutingStatistics statistics() const;

 private:
  // The channel to a router, or to a destination.
  struct Route {
    Route(ThreadContext& thread, ThreadId to, const MessengerOptions& options)
        : messenger(thread, to, options), calls(messenger), to(to) {}
    RDMAMessenger messenger;
    RDMAAggregator calls;
    const ThreadId to;
  };
  using Access = internal::ChannelAccess<RDMAAggregator>;

  // The path to one destination (call_forms.h), for calls with copied arguments and buffers.
  class Path {
   public:
    static constexpr bool kWritesOutcome = false;
    Path(RoutedAggregator& owner, ThreadId destination)
        : owner_(owner), destination_(destination) {}
    [[nodiscard]] Fabric& fabric() const { return owner_.fabric_; }
    [[nodiscard]] ThreadId thread() const { return destination_; }
    [[nodiscard]] Rank rank() const { return owner_.fabric_.rank_of(destination_); }
    template <typename Options, typename Call>
    [[nodiscard]] __attribute__((always_inline)) CallResult send(const Call& call) const {
      return owner_.send(destination_, call, when<Options>());
    }
    template <typename Options>
    [[nodiscard]] CallResult send(const OutgoingCall& call, internal::CallEnd& end) const {
      return owner_.send_reporting(destination_, call, when<Options>(), end);
    }

   private:
    template <typename Options>
    static constexpr internal::WhenNoRoom when() {
      return internal::WhenNoRoom::of(Options::kWhenFull, false);
    }
    RoutedAggregator& owner_;
    const ThreadId destination_;
  };

  template <typename Call>
  CallResult send(ThreadId destination, const Call& call, internal::WhenNoRoom when) {
    Route& route = route_to(destination);
    if (route.to == destination) {
      return Access::sender(route.calls).template send<true>(call, when);
    }
    if (any_failure_->load(std::memory_order_relaxed)) [[unlikely]] {
      if (absl::Status failed = failure_of(route, destination); !failed.ok()) return failed;
    }
    const CallResult sent =
        Access::sender(route.calls)
            .template send<true>(internal::RoutedCall<const Call&>(
                                     internal::RoutedHead::name(destination, order_), call),
                                 when);
    if (!sent.ok()) [[unlikely]]
      return explain(route, destination, sent.status());
    ++routed_;
    return sent;
  }

  // Sends a call whose events are reported to the objects of `end`.
  CallResult send_reporting(ThreadId destination, const OutgoingCall& call,
                            internal::WhenNoRoom when, internal::CallEnd& end);

  // Routes are numbered. kDirect: by destination. kNode: by node, except the sender's node; then by
  // thread of the sender's node.
  [[nodiscard]] size_t slot_of(ThreadId destination) const {
    if (node_of_ == nullptr) return destination;
    const uint32_t rank = destination / threads_;
    const uint32_t node = node_of_[rank];
    if (node != own_node_) return node;
    return nodes_in_job_ + size_t{place_of_[rank]} * threads_ + destination % threads_;
  }
  [[nodiscard]] Route& route_to(ThreadId destination) {
    const std::unique_ptr<Route>& known = routes_[slot_of(destination)];
    if (known != nullptr) [[likely]]
      return *known;
    return open(destination);
  }
  [[nodiscard]] Route& open(ThreadId destination);
  [[nodiscard]] ThreadId router_for(ThreadId destination) const;
  [[nodiscard]] absl::Status no_such(ThreadId destination) const;
  // Returns the failure that the router has reported for calls to `destination`, or OK.
  [[nodiscard]] absl::Status failure_of(const Route& route, ThreadId destination) const;
  // Returns the error of a routed call, which names the destination and the router.
  [[nodiscard]] absl::Status explain(const Route& route, ThreadId destination,
                                     const absl::Status& why) const;
  // Returns the first failure of a router or of a destination that this object has used.
  [[nodiscard]] absl::Status first_failure() const;

  ThreadContext& thread_;
  Fabric& fabric_;
  const RoutingOptions options_;
  const uint32_t total_;    // threads of the job
  const uint32_t threads_;  // of a process
  const uint32_t order_;    // RoutedHead::chunk_order
  std::shared_ptr<const internal::NodeMap> nodes_;
  std::shared_ptr<const internal::RouteFailures> failures_;
  const std::atomic<bool>* any_failure_;
  // Parts of *nodes_, for calls. nullptr with kDirect.
  const uint32_t* node_of_ = nullptr;
  const uint32_t* place_of_ = nullptr;
  uint32_t nodes_in_job_ = 0;
  uint32_t own_node_ = 0;
  std::vector<std::unique_ptr<Route>> routes_;  // by slot_of()
  uint64_t routed_ = 0;
  internal::IdleTimer idle_{options_.messenger.return_after};
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_ROUTED_AGGREGATOR_H_
