// Messengers and aggregators to every thread of the job, made on first use (Seriema §4.4.1).
//
//   RDMAMessengerGlobal messenger(*fabric.this_thread());
//   messenger.call(destination, [x] { ... });
//   messenger.call_buffer<RetryAsync>(destination, [](void* b, uint64_t n) { ... }, memory, 0, n,
//                                     done);
//   messenger.process_calls_all();
//   messenger.shutdown_all();
//
// Offers every call of CallInterface, with the destination's global thread id as the first
// argument. Memory: 8 bytes per thread of the job and about 1 KiB per destination that was called,
// in addition to the channel memory that messenger_options.h states.
#ifndef CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_
#define CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dsfabric/process.h"
#include "dsfabric/send_call.h"
#include "riutils/aggregator.h"
#include "riutils/messenger.h"

namespace cariama {

// The channel to one destination: a messenger with an aggregator on it, or a messenger alone.
template <Aggregation kMode>
struct AggregatedMessenger {
  AggregatedMessenger(ThreadContext& thread, uint32_t destination, const MessengerOptions& options)
      : messenger(thread, destination, options), calls(messenger) {}
  RDMAMessenger messenger;
  BasicAggregator<kMode> calls;
};
struct PlainMessenger {
  PlainMessenger(ThreadContext& thread, uint32_t destination, const MessengerOptions& options)
      : calls(thread, destination, options) {}
  RDMAMessenger calls;
};

// Thread-compatible: only the thread of its ThreadContext may use it.
template <typename Channel>
class BasicGlobal {
 public:
  explicit BasicGlobal(ThreadContext& thread, const MessengerOptions& options = {})
      : thread_(thread), options_(options), channels_(thread.fabric().total_threads()) {}
  // Uses the ThreadContext of the calling thread. Requires: the calling thread is a worker of the
  // process's fabric (process.h: init_thread()).
  BasicGlobal() : BasicGlobal(*thread_information) {}

  template <auto... Options, typename... Args>
  CallResult call(uint32_t destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call<Options...>(std::forward<Args>(arguments)...);
  }
  template <auto... Options, typename... Args>
  CallResult call_buffer(uint32_t destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call_buffer<Options...>(std::forward<Args>(arguments)...);
  }
  template <auto... Options, typename... Args>
  CallResult call_return(uint32_t destination, Args&&... arguments) {
    if (destination >= channels_.size()) [[unlikely]]
      return no_such(destination);
    return (*this)[destination].template call_return<Options...>(std::forward<Args>(arguments)...);
  }

  template <auto... Options, typename... Args>
  [[nodiscard]] auto async_call(uint32_t destination, Args&&... arguments) {
    using Result =
        decltype((*this)[0].template async_call<Options...>(std::forward<Args>(arguments)...));
    if (destination >= channels_.size()) [[unlikely]] {
      return Result::failed(thread_.fabric(), no_such(destination));
    }
    return (*this)[destination].template async_call<Options...>(std::forward<Args>(arguments)...);
  }

  // Returns the channel to thread `destination`; creates it on first use. Requires: destination <
  // total_threads().
  [[nodiscard]] auto& operator[](uint32_t destination) {
    std::unique_ptr<Channel>& channel = channels_[destination];
    if (channel == nullptr) [[unlikely]] {
      channel = std::make_unique<Channel>(thread_, destination, options_);
    }
    return channel->calls;
  }

  // Publishes batches that are older than flush_age, then runs calls that have arrived for this
  // thread, from any sender, until none is left. Never blocks. Returns the number of calls that
  // ran.
  size_t process_calls_all() {
    if (options_.flush_age.count() != 0) {
      for_each([](auto& calls) {
        if (calls.sender().batch_is_old()) calls.flush();
      });
    }
    return thread_.fabric().process_calls();
  }
  // Publishes all batches. Returns the first error, after it has tried every channel.
  CallResult flush_all() {
    CallResult first;
    for_each([&](auto& calls) {
      CallResult result = calls.flush();
      if (first.ok() && !result.ok()) first = std::move(result);
    });
    return first;
  }
  // Ends all channels (RDMAMessenger::shutdown). Returns the first error, after it has tried every
  // channel.
  CallResult shutdown_all(Deadline deadline = kForever) {
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
  template <typename Function>
  void for_each(Function&& function) {
    for (const auto& channel : channels_) {
      if (channel != nullptr) function(channel->calls);
    }
  }
  [[nodiscard]] absl::Status no_such(uint32_t destination) const {
    return absl::OutOfRangeError("there is no thread " + std::to_string(destination) +
                                 ": the job has " + std::to_string(channels_.size()));
  }

  ThreadContext& thread_;
  const MessengerOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

using RDMAMessengerGlobal = BasicGlobal<PlainMessenger>;
using RDMAAggregatorGlobal = BasicGlobal<AggregatedMessenger<Aggregation::kTraditional>>;
using RDMAOverflowAggregatorGlobal = BasicGlobal<AggregatedMessenger<Aggregation::kOverflow>>;

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_MESSENGER_GLOBAL_H_
