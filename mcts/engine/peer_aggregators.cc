#include "mcts/engine/peer_aggregators.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <type_traits>

namespace cariama::mcts {
namespace {

// The bytes of deferred calls have no limit. A handler cannot wait for room, so beyond a limit its
// answer would be refused, and the requester would wait for it without end. The search limits the
// requests in flight: for each copy, ticket and offer there is one.
MessengerOptions channel_options(std::chrono::milliseconds timeout) {
  MessengerOptions options;
  options.timeout = timeout;
  options.deferred_bytes = UINT64_MAX;
  options.first_chunk_bytes = options.chunk_bytes;  // a search fills its channels at once
  return options;
}

// Ends the process with a message: calls that were accepted cannot be sent.
[[noreturn]] void end_for_lost_calls(const absl::Status& failure) {
  std::fprintf(stderr, "cariama: the search cannot send a call: %s\n",
               std::string(failure.message()).c_str());
  ::_exit(1);
}

}  // namespace

void internal::check_refusal(const absl::Status& refusal) {
  if (absl::IsResourceExhausted(refusal) || absl::IsInternal(refusal)) end_for_lost_calls(refusal);
}

PeerAggregators::PeerAggregators(ThreadContext& thread, Aggregation kind, PostCounts& posts,
                                 std::chrono::milliseconds timeout)
    : aggregators_(std::in_place_index<0>, thread, channel_options(timeout)),
      fabric_(thread.fabric()),
      posts_(posts),
      used_(thread.fabric().total_threads()),
      open_(thread.fabric().total_threads()) {
  if (kind == Aggregation::kOverflow) aggregators_.emplace<1>(thread, channel_options(timeout));
}

void PeerAggregators::check() {
  dirty_ = false;
  const absl::Status published =
      std::visit([](auto& aggregators) { return aggregators.flush_all(); }, aggregators_);
  if (!published.ok()) [[unlikely]]
    check_failed();
}

void PeerAggregators::shutdown(Deadline deadline) {
  std::visit([&](auto& aggregators) { static_cast<void>(aggregators.shutdown_all(deadline)); },
             aggregators_);
}

std::pair<uint64_t, uint64_t> PeerAggregators::channels() {
  std::pair<uint64_t, uint64_t> count{0, 0};
  for (uint32_t thread = 0; thread < used_.size(); ++thread) {
    if (!used_[thread]) continue;
    ++count.first;
    std::visit(
        [&](auto& aggregators) {
          const MessengerStatistics known = aggregators[thread].statistics();
          count.second += known.deferred_bytes_high_water > MessengerOptions{}.chunk_bytes;
        },
        aggregators_);
  }
  return count;
}

bool PeerAggregators::exists(ThreadId thread) const {
  if (thread < used_.size()) [[likely]]
    return true;
  internal::note_malformed("it names a thread that does not exist");
  return false;
}

bool PeerAggregators::is_open(ThreadId thread) {
  if (!open_[thread]) [[unlikely]] {
    open_[thread] =
        std::visit([&](auto& aggregators) { return aggregators[thread].statistics().chunks != 0; },
                   aggregators_);
  }
  return open_[thread];
}

bool PeerAggregators::send(ThreadId thread, const OutgoingCall& call, IfLate if_late) {
  if (!exists(thread)) return false;
  used_[thread] = true;
  const auto issue = [&](WhenFull when) {
    return std::visit(
        [&](auto& aggregators) {
          auto& calls = aggregators[thread];
          using Access = cariama::internal::ChannelAccess<std::remove_reference_t<decltype(calls)>>;
          cariama::internal::EventReceiver nothing;
          return Access::sender(calls).send_slowly(
              call, cariama::internal::WhenNoRoom::of(when, Access::kDefer), Access::kBatch,
              nothing);
        },
        aggregators_);
  };
  // A stopped destination grants no first chunk, so a call that may be deferred does not wait for
  // it. Later calls wait while the channel is full: this limits the memory of deferred calls.
  const bool opens = if_late != kRefused && !is_open(thread);
  CallResult sent = issue(opens ? RetryAsync : Retry);
  // Waits for the connection, or for a chunk that the channel lacks. If the destination fails, the
  // channel fails. A stopped destination does not fail; the search leaves it out.
  while (if_late == kDeferred && absl::IsDeadlineExceeded(sent.status()) &&
         !internal::left_out(fabric_.rank_of(thread)))
    [[unlikely]] sent = issue(RetryAsync);
  if (!sent.ok()) [[unlikely]]
    internal::check_refusal(sent.status());
  // Set after the call, not before: a call that has to open or grow its channel first runs received
  // calls. These may flush and clear dirty_ while this call is not yet batched.
  dirty_ = true;
  return sent.ok();
}

void PeerAggregators::check_failed() {
  absl::Status failed;
  for (uint32_t thread = 0; thread < used_.size() && !fabric_.finalized(); ++thread) {
    if (!used_[thread]) continue;
    const absl::Status status =
        std::visit([&](auto& aggregators) { return aggregators[thread].flush(); }, aggregators_);
    if (!status.ok() && fabric_.peer_status(fabric_.rank_of(thread)).ok()) failed.Update(status);
  }
  const auto now = std::chrono::steady_clock::now();
  if (failed.ok()) {
    failed_since_ = {};
  } else if (failed_since_ == std::chrono::steady_clock::time_point()) {
    failed_since_ = now;
  }
  if (failed.ok() || (absl::IsUnavailable(failed) && now - failed_since_ < kPatience)) return;
  end_for_lost_calls(failed);
}

}  // namespace cariama::mcts
