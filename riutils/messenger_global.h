// Messengers and aggregators to every thread of the job, made on first use (Seriema §4.4.1).
//
//   RDMAMessengerGlobal messenger(*fabric.this_thread());
//   messenger.call(destination, [x] { ... });
//   messenger.call_buffer<RetryAsync>(destination, [](void* b, uint64_t n) { ... }, memory, 0, n,
//                                     on_transmitted(done));
//   messenger.process_calls_all();
//   absl::Status ended = messenger.shutdown_all(deadline_after(std::chrono::seconds(10)));
//
// Offers every call of CallInterface, with the destination's ThreadId as the first argument, and
// broadcasts. Memory: 8 bytes per thread of the job and about 1 KiB per destination that was
// called, in addition to the channel memory that messenger_options.h states.
#ifndef CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_
#define CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dsfabric/process.h"
#include "dsfabric/send_call.h"
#include "riutils/aggregator.h"
#include "riutils/broadcast.h"
#include "riutils/messenger.h"

namespace cariama {

// The channel to one destination: a messenger with an aggregator on it, or a messenger alone.
template <Aggregation kMode>
struct AggregatedMessenger {
  AggregatedMessenger(ThreadContext& thread, ThreadId destination, const MessengerOptions& options)
      : messenger(thread, destination, options), calls(messenger) {}
  RDMAMessenger messenger;
  BasicAggregator<kMode> calls;
  static constexpr uint32_t kRouteKind = 1 + static_cast<uint32_t>(kMode);  // of broadcasts
};
struct PlainMessenger {
  PlainMessenger(ThreadContext& thread, ThreadId destination, const MessengerOptions& options)
      : calls(thread, destination, options) {}
  RDMAMessenger calls;
  static constexpr uint32_t kRouteKind = 0;
};

// Thread-compatible: only the thread of its ThreadContext may use it.
template <typename Channel>
class BasicGlobal : private internal::AddressedCalls {
 public:
  explicit BasicGlobal(ThreadContext& thread, const MessengerOptions& options = {})
      : thread_(internal::require_context(&thread)),
        options_(options),
        channels_(thread_.fabric().total_threads()),
        registration_(internal::add_broadcast_route(thread_, route_)) {}
  BasicGlobal(const BasicGlobal&) = delete;
  BasicGlobal& operator=(const BasicGlobal&) = delete;
  // Uses the ThreadContext of the calling thread. Requires: the calling thread is a worker of the
  // process's fabric (process.h: init_thread()).
  BasicGlobal() : BasicGlobal(*thread_information) {}

  using internal::AddressedCalls::call, internal::AddressedCalls::call_buffer,
      internal::AddressedCalls::call_return, internal::AddressedCalls::async_call;
  template <auto... Options, typename... Args>
  CallResult call(ThreadId destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call<Options...>(std::forward<Args>(arguments)...);
  }
  template <auto... Options, typename... Args>
  CallResult call_buffer(ThreadId destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call_buffer<Options...>(std::forward<Args>(arguments)...);
  }
  template <auto... Options, typename... Args>
  CallResult call_return(ThreadId destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call_return<Options...>(std::forward<Args>(arguments)...);
  }

  template <auto... Options, typename... Args>
  [[nodiscard]] auto async_call(ThreadId destination, Args&&... arguments) {
    using Result =
        decltype((*this)[0].template async_call<Options...>(std::forward<Args>(arguments)...));
    if (destination >= channels_.size()) [[unlikely]] {
      return Result::failed(thread_.fabric(), no_such(destination));
    }
    return (*this)[destination].template async_call<Options...>(std::forward<Args>(arguments)...);
  }

  // Every thread of the job calls function(arguments...): the one-sided form of broadcast()
  // (broadcast.h), with the same completions and errors. The caller's worker index names the worker
  // that receives the call in each process. That worker forwards the call through its own object of
  // this type; if it has none, or if helpers run its calls, the process forwards it by service
  // calls. A worker that runs no calls delays the processes below it in the tree. A broadcast is
  // not ordered with the calls of call(), because it may arrive on another path. Blocks for the
  // set-up of channels to the children that are not set up, and with `targets` until the WRITE to
  // each child has completed.
  template <auto... Options, typename F, typename... Given>
  CallResult broadcast(F&& function, Given&&... given) {
    return internal::issue_broadcast<CallOptions<Options...>>(thread_.fabric(), &route_, function,
                                                              std::forward<Given>(given)...);
  }
  // Every thread calls function(buffer, size): the one-sided form of broadcast_buffer()
  // (broadcast.h). A process that READs the buffer forwards the call by service calls.
  template <auto... Options, typename F, typename... Given>
  CallResult broadcast_buffer(F&& function, std::span<const std::byte> source, Given&&... given) {
    return internal::issue_broadcast_buffer<CallOptions<Options...>>(
        thread_.fabric(), &route_, function, source, std::forward<Given>(given)...);
  }
  template <auto... Options, typename F, typename... Given>
  CallResult broadcast_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                              Given&&... given) {
    return internal::issue_broadcast_buffer<CallOptions<Options...>>(
        thread_.fabric(), &route_, function, internal::MemoryRange{source, offset, size},
        std::forward<Given>(given)...);
  }

  // This overload matches broadcasts that lack a part, and does not compile: see send_call.h.
  template <auto... Options, typename... Given>
  requires(!internal::kIsWhole<internal::CallForm::kBuffer, Given...>) CallResult
      broadcast_buffer(Given&&...) {
    return internal::refuse<internal::CallForm::kBuffer, Given...>();
  }

  // Returns the channel to thread `destination`; creates it on first use. Requires: destination <
  // total_threads().
  [[nodiscard]] auto& operator[](ThreadId destination) {
    std::unique_ptr<Channel>& channel = channels_[destination];
    if (channel == nullptr) [[unlikely]] {
      channel = std::make_unique<Channel>(thread_, destination, options_);
    }
    return channel->calls;
  }

  // Publishes batches that are older than flush_age, then runs the calls that have arrived for this
  // thread, from any sender. Never blocks. Returns the number of calls that ran. One in 64 calls of
  // this function that find none looks for channels that were not used since the last look, at
  // least MessengerOptions::return_after ago, and returns their chunks.
  size_t process_calls_all() {
    if (options_.flush_age.count() != 0) {
      for_each([](auto& calls) {
        using Access = internal::ChannelAccess<std::remove_reference_t<decltype(calls)>>;
        if (Access::sender(calls).batch_is_old()) static_cast<void>(calls.flush());
      });
    }
    const size_t ran = thread_.fabric().process_calls();
    if (ran == 0 && idle_.expired()) return_idle_chunks();
    return ran;
  }
  // Returns the chunks of all channels on which no call was issued since the last call of this
  // function (RDMAMessenger::return_idle_chunks). Never blocks. Returns the number of channels that
  // use no chunks any more.
  size_t return_idle_chunks() {
    size_t count = 0;
    for_each([&](auto& calls) { count += calls.return_idle_chunks() ? 1 : 0; });
    return count;
  }
  // Publishes all batches. Returns the first error, after it has tried every channel.
  absl::Status flush_all() {
    absl::Status first;
    for_each([&](auto& calls) { first.Update(calls.flush()); });
    return first;
  }
  // Ends all channels (RDMAMessenger::shutdown). Returns the first error, after it has tried every
  // channel.
  absl::Status shutdown_all(Deadline deadline) {
    absl::Status first;
    for_each([&](auto& calls) { first.Update(calls.shutdown(deadline)); });
    return first;
  }

  // Returns the number of channels created so far.
  [[nodiscard]] size_t channels() const {
    size_t count = 0;
    for (const auto& channel : channels_) count += channel != nullptr ? 1 : 0;
    return count;
  }

 private:
  class Route final : public internal::BroadcastRoute {
   public:
    explicit Route(BasicGlobal& global)
        : internal::BroadcastRoute(Channel::kRouteKind), global_(global) {}

   private:
    [[nodiscard]] CallResult send(Rank rank, const OutgoingCall& call) override {
      ThreadContext& thread = global_.thread_;
      auto& calls = global_[thread.fabric().thread_of(rank, thread.index())];
      using Access = internal::ChannelAccess<std::remove_reference_t<decltype(calls)>>;
      internal::EventReceiver nothing;
      CallResult sent = Access::sender(calls).send_slowly(
          call, internal::WhenNoRoom::of(WhenFull::kRetryAsync, Access::kDefer), Access::kBatch,
          nothing);
      return sent.ok() ? CallResult(calls.flush()) : sent;
    }

    BasicGlobal& global_;
  };

  template <typename Function>
  void for_each(Function&& function) {
    for (const auto& channel : channels_) {
      if (channel != nullptr) function(channel->calls);
    }
  }
  [[nodiscard]] absl::Status no_such(ThreadId destination) const {
    return internal::check_destination(thread_.fabric(), kNoRank, destination);
  }

  ThreadContext& thread_;
  const MessengerOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;
  internal::IdleTimer idle_{options_.return_after};
  Route route_{*this};
  std::shared_ptr<void> registration_;  // of route_; destroyed first
};

using RDMAMessengerGlobal = BasicGlobal<PlainMessenger>;
using RDMAAggregatorGlobal = BasicGlobal<AggregatedMessenger<Aggregation::kTraditional>>;
using RDMAOverflowAggregatorGlobal = BasicGlobal<AggregatedMessenger<Aggregation::kOverflow>>;

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_
