// PeerAggregators: the aggregators of one thread to all other threads of the job, of the kind that
// the host options select.
#ifndef CARIAMA_MCTS_ENGINE_PEER_AGGREGATORS_H_
#define CARIAMA_MCTS_ENGINE_PEER_AGGREGATORS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/statistics.h"
#include "mcts/engine/post_counts.h"
#include "mcts/export.h"
#include "riutils/call.h"

namespace cariama::mcts {

namespace internal {
// Prints that a message of a search was ignored, and why.
CARIAMA_MCTS_EXPORT void note_malformed(const char* what);
// Reports, once per process, that a node with so many moves does not fit into a call.
CARIAMA_MCTS_EXPORT void note_large_node(size_t moves);
// The run of one call of a search by the calling thread.
class CARIAMA_MCTS_EXPORT Reception {
 public:
  // caller: the process that sent the call. also_dead: accepts it if the host has marked the caller
  // as dead.
  explicit Reception(Rank caller, bool also_dead = false);
  ~Reception();
  Reception(const Reception&) = delete;
  Reception& operator=(const Reception&) = delete;

  // Returns false if the call must not run: the calling thread is not a worker of a host, or the
  // host has marked the caller as dead (unless also_dead was set).
  [[nodiscard]] bool accepted() const { return accepted_; }
  // Counts the call as a post that has run.
  void end_post();
  // Records the exception that is being handled, which the call's function has thrown: the host
  // ends its search with it. Requires: accepted().
  void fail() noexcept;

 private:
  const Rank caller_;
  bool accepted_;
};
// Ends the process with a message if a call was refused with this error for a cause that only the
// end of the process mends: lack of memory, or an error of the destination's process.
void check_refusal(const absl::Status& refusal);
// Returns true if the host of the calling thread has marked the process as dead.
[[nodiscard]] bool left_out(Rank rank);
}  // namespace internal

// Not thread-safe, except messages() and bytes(): only the thread that owns it may use it.
class CARIAMA_MCTS_EXPORT PeerAggregators {
 public:
  // A buffer of this length fits into a call, with its function.
  static constexpr uint64_t kMostBufferBytes = MessengerOptions{}.chunk_bytes - 1024;

  // timeout: see MessengerOptions. Requires: `posts` outlives this object.
  PeerAggregators(ThreadContext& thread, Aggregation kind, PostCounts& posts,
                  std::chrono::milliseconds timeout = MessengerOptions{}.timeout);

  // Send a call to a thread, like CallInterface::call and call_buffer. The call may stay batched
  // until flush(). They return false if the call was not accepted: the destination has failed, it
  // has granted no chunk within MessengerOptions::timeout, or the call is longer than a chunk. If
  // there is no memory for the call, here or in the destination's process, this process ends; if
  // the function throws, for example a function of the game, the search of the destination's
  // process ends with the exception (Search::run(), Host::serve()). A call that arrives when the
  // destination's host has ended, or when it has marked this process as dead, does nothing.
  template <typename F>
  bool call(ThreadId thread, const F& function) {
    return send_call(thread, function, [](internal::Reception&) {});
  }
  template <typename F>
  bool call_buffer(ThreadId thread, const F& function, std::span<const std::byte> buffer) {
    return send_buffer(thread, function, buffer, [](internal::Reception&) {});
  }
  // Like call_buffer(), for an answer, which the destination waits for without end: if no chunk is
  // granted in time, the call is deferred, so that only a failed destination loses it.
  template <typename F>
  bool answer_buffer(ThreadId thread, const F& function, std::span<const std::byte> buffer) {
    return send_buffer<kDeferred>(thread, function, buffer, [](internal::Reception&) {});
  }
  // Like call(), for a call by which rank 0 controls the searches. Does not wait for the first
  // chunk of the channel, which a stopped process does not grant: the call is deferred until then.
  template <typename F>
  bool command(ThreadId thread, const F& function) {
    return send_call<kSentLater>(thread, function, [](internal::Reception&) {});
  }
  // Like command(), and also runs if the destination has marked this process as dead.
  template <typename F>
  bool announce(ThreadId thread, const F& function) {
    return send_call<kSentLater, /*kAlsoDead=*/true>(thread, function, [](internal::Reception&) {});
  }
  // Like call() and call_buffer(), and count the call at both ends (PostCounts). The call is
  // deferred like that of answer_buffer().
  template <typename F>
  bool post(ThreadId thread, const F& function) {
    return count_post(thread, [&] {
      return send_call<kDeferred>(thread, function,
                                  [](internal::Reception& run) { run.end_post(); });
    });
  }
  template <typename F>
  bool post_buffer(ThreadId thread, const F& function, std::span<const std::byte> buffer) {
    return count_post(thread, [&] {
      return send_buffer<kDeferred>(thread, function, buffer,
                                    [](internal::Reception& run) { run.end_post(); });
    });
  }

  // Publishes all batched calls.
  void flush() {
    if (dirty_) check();
  }
  // Publishes all batched calls, and looks for channels that have failed. If the destination of one
  // is not considered failed, the search would wait without end for the calls that the channel has
  // lost: this process ends with a message, after kPatience if the error is UNAVAILABLE, since the
  // failure of the destination may be detected later than that of the channel. Called repeatedly
  // while the thread has no work.
  void check();
  void shutdown(Deadline deadline);

  // Returns the number of channels that were used, and the number of those that deferred more than
  // one chunk of calls at some time.
  [[nodiscard]] std::pair<uint64_t, uint64_t> channels();
  // Returns true if there may be batched calls.
  [[nodiscard]] bool dirty() const { return dirty_; }
  // Returns the number of calls that were sent. Thread-safe. Acquire: a reader that observes
  // a message in the count also observes the owner's writes before that message.
  [[nodiscard]] uint64_t messages() const { return messages_.load(std::memory_order_acquire); }
  // Returns the size of the closures and buffers of these calls. Thread-safe.
  [[nodiscard]] uint64_t bytes() const { return bytes_.value(); }

 private:
  // Time from the failure of a channel to the end of the process, unless the destination is
  // considered failed by then.
  static constexpr std::chrono::seconds kPatience{10};

  // Returns true if the destination has granted chunks.
  [[nodiscard]] bool is_open(ThreadId thread);

  // The action for a call whose channel gets no chunk in time.
  enum IfLate : uint8_t {
    kRefused,    // the call is not accepted
    kSentLater,  // the first calls of the channel are deferred; a later call is not accepted
    kDeferred,   // the call is deferred
  };

  // ended: called in the destination with the Reception, after the function. It has no captures.
  template <IfLate kIfLate = kRefused, bool kAlsoDead = false, typename F, typename Ended>
  bool send_call(ThreadId thread, const F& function, const Ended&) {
    count_message(sizeof(F));
    const auto call = [function, caller = fabric_.rank()]() noexcept {
      internal::Reception run(caller, kAlsoDead);
      if (!run.accepted()) return;
      try {
        function();
      } catch (...) {
        run.fail();
      }
      Ended()(run);
    };
    return send(thread, OutgoingCall::of(make_call(call)), kIfLate);
  }
  template <IfLate kIfLate = kRefused, typename F, typename Ended>
  bool send_buffer(ThreadId thread, const F& function, std::span<const std::byte> buffer,
                   const Ended&) {
    count_message(sizeof(F) + buffer.size());
    const auto call = [function, caller = fabric_.rank()](void* data, uint64_t size) noexcept {
      internal::Reception run(caller);
      if (!run.accepted()) return;
      try {
        function(data, size);
      } catch (...) {
        run.fail();
      }
      Ended()(run);
    };
    return send(thread, OutgoingCall::of(make_buffer_call(call, buffer)), kIfLate);
  }
  template <typename Send>
  bool count_post(ThreadId thread, Send&& send) {
    if (!exists(thread)) return false;
    const Rank to = fabric_.rank_of(thread);
    posts_.begin(to);
    if (send()) return true;
    posts_.end(to);
    return false;
  }
  // Returns false if the job has no such thread, and prints that: the thread may be that of a
  // message.
  [[nodiscard]] bool exists(ThreadId thread) const;
  // One function for all calls: an instance for each call and each kind of aggregator would double
  // the time to compile a search. Requires: the closure of `call` stays valid during the call.
  bool send(ThreadId thread, const OutgoingCall& call, IfLate if_late);
  // Looks for channels that have failed.
  void check_failed();
  void count_message(uint64_t bytes) {
    bytes_.add(bytes);
    messages_.store(messages_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::variant<RDMAAggregatorGlobal, RDMAOverflowAggregatorGlobal> aggregators_;
  Fabric& fabric_;
  PostCounts& posts_;
  std::vector<bool> used_;  // by destination thread
  std::vector<bool> open_;  // by destination thread: is_open() has returned true
  std::atomic<uint64_t> messages_{0};
  Counter bytes_;
  bool dirty_ = false;
  std::chrono::steady_clock::time_point failed_since_{};  // of a channel to a living process
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_PEER_AGGREGATORS_H_
