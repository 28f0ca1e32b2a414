// Reports the end of a call to its caller. In the process that ran the call: sends the answer by a
// message, an answer slot, or an outcome word. In the process that called: completes the calls that
// wait for an answer.
#ifndef CARIAMA_DSFABRIC_CALLS_ANSWERS_H_
#define CARIAMA_DSFABRIC_CALLS_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/pending_calls.h"
#include "dsfabric/calls/rejected_calls.h"
#include "dsfabric/calls/unsent_answers.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/peers/answer_slots.h"
#include "dsfabric/peers/peer_table.h"

namespace cariama::internal {

// Thread-safe. Its lock, that of PendingCalls, is never held while a call is completed.
class Answers {
 public:
  // All arguments must outlive this object.
  Answers(const FabricJob& job, PeerTable& peers, Workers& workers, CallCounts& counts,
          CallSender& sender, RejectedCalls& rejected)
      : job_(job),
        peers_(peers),
        workers_(workers),
        counts_(counts),
        sender_(sender),
        rejected_(rejected),
        unsent_(job, counts, [this](const UnsentAnswer& answer) { return repeat(answer); }) {}
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // ---- In the process that called
  [[nodiscard]] PendingCalls& pending() { return pending_; }
  // Registers `call` as pending until `rank` answers, and returns its handle. The answer may arrive
  // in an answer slot. `router`: as for PendingCalls::add().
  [[nodiscard]] uint64_t expect_result(uint32_t rank, std::unique_ptr<PendingCall> call,
                                       uint32_t router = kNoRank) {
    return pending_.add(rank, std::move(call), slots_of(rank), router);
  }
  // Completes the call with an answer from process `from`.
  void complete(uint32_t from, uint64_t handle, CallOutcome outcome, std::string_view type,
                std::string_view text, std::span<const std::byte> result);
  // Completes all calls that wait for `rank` with an error. Needs no memory.
  void fail(uint32_t rank, const absl::Status& status);
  // Does the same with the calls to `rank` that `router` was to forward.
  void fail_routed(uint32_t rank, uint32_t router, const absl::Status& status);
  // Does the same with the calls that `channel` to process `rank` carries (PendingCalls::assign).
  void fail_carried(uint32_t rank, uint64_t channel, const absl::Status& status);
  // Completes calls whose results have arrived in slots; with `poller`, only that thread's calls.
  // Returns the number of completed calls.
  size_t take_results(PollerId poller);
  // Returns true if a call waits for an answer from `rank`.
  [[nodiscard]] bool awaits(uint32_t rank) const { return pending_.waits_for(rank); }
  // The calling thread starts, or stops, polling the slots of its calls. The callee sends results
  // after stop_polling() by messages; stop_polling() takes the results that arrived before.
  void start_polling();
  void stop_polling();

  // ---- In the process that ran the call
  // Sends the outcome of a call to its caller. Prints the exception if no message transports its
  // text: no caller waits, or the caller waits for an outcome word. Does not wait for credit: an
  // answer without credit is deferred. If the caller's process cannot be connected now, the answer
  // is repeated at heartbeats, until it is sent or that process fails. Throws std::bad_alloc if the
  // answer was not sent: the caller answers again.
  void answer(uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
              const std::string& result);
  // See UnsentAnswers.
  void heartbeat() { unsent_.heartbeat(); }
  void stop() { unsent_.stop(); }

 private:
  // Returns the slots for results from `rank`; nullptr if that process sends its results by
  // messages.
  [[nodiscard]] AnswerSlots* slots_of(uint32_t rank);
  // Returns the error of a call of this process with that outcome at `from`, or OK.
  [[nodiscard]] absl::Status error_of(uint32_t from, CallOutcome outcome, std::string_view type,
                                      std::string_view text) const;
  template <typename Function>
  void for_slots(Function&& function);
  void write_outcome(uint32_t to, const NotifyTarget& target, CallOutcome outcome);
  [[nodiscard]] bool answer_in_slot(uint32_t to, uint64_t handle, const std::string& result);
  // Sends a result, or the reason why there is none.
  [[nodiscard]] absl::Status send_outcome(uint32_t to, uint64_t handle, CallOutcome outcome,
                                          const std::string& type, const std::string& text,
                                          const std::string& result);
  // Returns true if an answer that was not sent because of `sent` may be sent later.
  [[nodiscard]] bool may_be_repeated(uint32_t to, const absl::Status& sent) const;
  [[nodiscard]] bool repeat(const UnsentAnswer& answer);
  // Prints the reason why an answer is dropped, unless its caller has ended.
  void report_dropped(uint32_t to, const absl::Status& sent);
  [[nodiscard]] absl::Status send_answer(uint32_t to, OutgoingCall answer);
  [[nodiscard]] absl::Status send_result(uint32_t to, uint64_t handle, const std::string& result);
  [[nodiscard]] absl::Status send_failure(uint32_t to, uint64_t handle, CallOutcome outcome,
                                          const std::string& type, const std::string& text);
  void report_exception(uint32_t from, const IncomingCall& call);

  const FabricJob& job_;
  PeerTable& peers_;
  Workers& workers_;
  CallCounts& counts_;
  CallSender& sender_;
  RejectedCalls& rejected_;
  PendingCalls pending_;
  UnsentAnswers unsent_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_ANSWERS_H_
