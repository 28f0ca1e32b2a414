#include "dsfabric/calls/answers.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/running_call.h"
#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/first_exception.h"
#include "dtutils/trace.h"

namespace cariama::internal {

// ---- In the process that ran the call -----------------------------------------------------------

void Answers::report_exception(uint32_t from, const IncomingCall& call) {
  try {
    std::fprintf(stderr, "cariama: rank %u: a call from %s threw %s\n", job_.rank(),
                 job_.label(from).c_str(),
                 describe_exception(call.error_type, call.error_text).c_str());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "cariama: rank %u: a call from rank %u threw %s\n", job_.rank(), from,
                 call.error_type.c_str());
  }
}

void Answers::write_outcome(uint32_t to, const NotifyTarget& target, CallOutcome outcome) {
  const RemoteMemoryLocator word{target.handle, sizeof(uint64_t), {target.key}, to, 0};
  if (to == job_.rank()) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(word.address))
        .store(1 + static_cast<uint64_t>(outcome), std::memory_order_release);
  } else if (auto connected = sender_.connection_of_this_thread(to); connected.ok()) {
    static_cast<void>(sender_.transfer(**connected, [&](Connection& connection) {
      return connection.write_outcome(outcome, word);
    }));
  }
}

absl::Status Answers::send_answer(uint32_t to, OutgoingCall answer) {
  answer.is_unlimited = true;
  // Does not wait for credit: a service thread that reports a failure answers the calls that wait
  // for the failed process, and a waiting service thread returns no credits itself. An answer is
  // never refused.
  return sender_.send(to, kService, answer, WhenFull::kRetryAsync);
}

absl::Status Answers::send_result(uint32_t to, uint64_t handle, const std::string& result) {
  const auto complete = make_buffer_call(
      [handle](void* bytes, uint64_t size) {
        const RunningCall& here = this_running_call;
        answers_of(*here.fabric)
            .complete(here.source, handle, CallOutcome::kDone, {}, {},
                      std::span(static_cast<const std::byte*>(bytes), size));
      },
      std::as_bytes(std::span(result)));
  return send_answer(to, OutgoingCall::of(complete));
}

// The texts are the bytes of a buffer, so that the caller needs no memory to take the answer.
absl::Status Answers::send_failure(uint32_t to, uint64_t handle, CallOutcome outcome,
                                   const std::string& type, const std::string& text) {
  std::string texts = type;
  if (!text.empty()) texts.append(1, '\0').append(text);
  const auto complete = make_buffer_call(
      [handle, outcome](void* bytes, uint64_t size) {
        const std::string_view both(static_cast<const char*>(bytes), size);
        const size_t end = std::min(both.find('\0'), both.size());
        const RunningCall& here = this_running_call;
        answers_of(*here.fabric)
            .complete(here.source, handle, outcome, both.substr(0, end),
                      both.substr(std::min(end + 1, both.size())), {});
      },
      std::as_bytes(std::span(texts)));
  return send_answer(to, OutgoingCall::of(complete));
}

void Answers::answer(uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
                     const std::string& result) {
  if (wanted == nullptr) {
    if (call.outcome == CallOutcome::kThrew) report_exception(to, call);
    return;
  }
  if (wanted->key != 0) {
    write_outcome(to, *wanted, call.outcome);
    // An outcome word has no room for the exception's text, so print it here.
    if (call.outcome == CallOutcome::kThrew) report_exception(to, call);
    return;
  }
  const TraceScope trace("dsfabric", "answer", "bytes", result.size());
  const uint64_t handle = wanted->handle;
  if (call.outcome == CallOutcome::kDone && answer_in_slot(to, handle, result)) return;
  const absl::Status sent =
      send_outcome(to, handle, call.outcome, call.error_type, call.error_text, result);
  if (may_be_repeated(to, sent)) {
    unsent_.add({to, handle, call.outcome, call.error_type, call.error_text, result});
  } else {
    report_dropped(to, sent);
  }
}

absl::Status Answers::send_outcome(uint32_t to, uint64_t handle, CallOutcome outcome,
                                   const std::string& type, const std::string& text,
                                   const std::string& result) {
  if (outcome != CallOutcome::kDone) {
    absl::Status sent = send_failure(to, handle, outcome, type, text);
    if (!absl::IsInvalidArgument(sent)) return sent;
    // The exception's type and text are too long for a message. Cut them: the shortest receive unit
    // has room for two texts of kMost bytes.
    constexpr size_t kMost = 64;
    return send_failure(to, handle, outcome, type.substr(0, kMost), text.substr(0, kMost) + "...");
  }
  absl::Status sent = send_result(to, handle, result);
  if (!absl::IsInvalidArgument(sent)) return sent;
  // The result is too long for a message.
  return send_failure(
      to, handle, CallOutcome::kThrew, "cariama::ResultTooLong",
      "the result takes " + std::to_string(result.size()) +
          (to == job_.rank() ? " bytes, more than the " + std::to_string(CallHeader::kMaxBytes) +
                                   " of the longest call"
                             : " bytes, more than a receive unit: raise receive_unit_bytes"));
}

// The caller is not connected if another process has forwarded its call.
bool Answers::may_be_repeated(uint32_t to, const absl::Status& sent) const {
  return (absl::IsDeadlineExceeded(sent) || absl::IsResourceExhausted(sent)) && to != job_.rank() &&
         !job_.lifecycle().is_closed() && peers_.status(to).ok();
}

bool Answers::repeat(const UnsentAnswer& answer) {
  const absl::Status sent = send_outcome(answer.to, answer.handle, answer.outcome, answer.type,
                                         answer.text, answer.result);
  if (may_be_repeated(answer.to, sent)) return false;
  report_dropped(answer.to, sent);
  return true;
}

void Answers::report_dropped(uint32_t to, const absl::Status& sent) {
  if (sent.ok() || job_.lifecycle().is_closed() || !peers_.status(to).ok()) return;
  std::fprintf(stderr, "cariama: rank %u could not answer %s: %s\n", job_.rank(),
               job_.label(to).c_str(), std::string(sent.message()).c_str());
}

// An answer in a slot counts as a begun call until the caller has taken it, like the message that
// it replaces. So finalize() does not end while a result has not been taken.
bool Answers::answer_in_slot(uint32_t to, uint64_t handle, const std::string& result) {
  const uint32_t slot = PendingCalls::slot_of(handle);
  if (slot == 0 || slot > AnswerSlots::kCount || to == job_.rank()) return false;
  Connection* const connection = peers_.connected(to);
  AnswerSlot* const slots = connection == nullptr ? nullptr : connection->peer_answers();
  if (slots == nullptr) return false;
  counts_.begin(to);
  if (slots[slot - 1].answer(handle, std::as_bytes(std::span(result)))) return true;
  counts_.end(to);
  return false;
}

// ---- In the process that called -----------------------------------------------------------------

absl::Status Answers::error_of(uint32_t from, CallOutcome outcome, std::string_view type,
                               std::string_view text) const {
  switch (outcome) {
    case CallOutcome::kDone:
      return absl::OkStatus();
    case CallOutcome::kThrew:
      return error_or_code(absl::StatusCode::kInternal, [&] {
        return make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                          "the call threw at " + job_.label(from) + ": " +
                              describe_exception(std::string(type), std::string(text)));
      });
    case CallOutcome::kMalformed:
      return error_or_code(absl::StatusCode::kInvalidArgument, [&] {
        return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                          job_.label(from) + " found the arguments of the call malformed");
      });
    case CallOutcome::kUnknown:
    default:
      return error_or_code(absl::StatusCode::kUnimplemented, [&] {
        return make_error(absl::StatusCode::kUnimplemented, ErrorScope::kOperation,
                          job_.label(from) + " has no function with the id of the call");
      });
  }
}

void Answers::complete(uint32_t from, uint64_t handle, CallOutcome outcome, std::string_view type,
                       std::string_view text, std::span<const std::byte> result) {
  std::unique_ptr<PendingCall> call = pending_.take(handle, from);
  if (call == nullptr) return;  // the peer was considered failed before
  call->complete(error_of(from, outcome, type, text), result);
}

void Answers::fail(uint32_t rank, const absl::Status& status) {
  PendingCalls::Cursor from;
  while (const auto call = pending_.take_failed(rank, from)) call->complete(status, {});
}

void Answers::fail_routed(uint32_t rank, uint32_t router, const absl::Status& status) {
  PendingCalls::Cursor from;
  while (const auto call = pending_.take_routed(rank, router, from)) call->complete(status, {});
}

void Answers::fail_carried(uint32_t rank, uint64_t channel, const absl::Status& status) {
  PendingCalls::Cursor from;
  while (const auto call = pending_.take_carried(rank, channel, from)) call->complete(status, {});
}

AnswerSlots* Answers::slots_of(uint32_t rank) {
  if (rank >= job_.size()) return nullptr;
  Connection* const connection = peers_.connected(rank);
  if (connection == nullptr) return nullptr;
  // If this process can store into the peer's memory, the peer can store into this process's
  // memory.
  return connection->peer_answers() != nullptr ? &connection->answers() : nullptr;
}

template <typename Function>
void Answers::for_slots(Function&& function) {
  if (!pending_.any_in_slots()) return;
  peers_.for_each_connected(
      [&](uint32_t rank, Connection& connection) { function(rank, connection.answers()); });
}

size_t Answers::take_results(PollerId poller) {
  size_t count = 0;
  FirstException exceptions;  // of the coroutines that await the results
  for_slots([&](uint32_t rank, AnswerSlots& slots) {
    count += slots.take(poller, [&](const AnswerSlots::Answer& answer) {
      exceptions.run([&] {
        if (answer.handle == 0) {
          rejected_.add(rank, "its answer slot contains the handle of another call");
        } else {
          const RunningScope running(job_.fabric(), rank);
          complete(rank, answer.handle, CallOutcome::kDone, {}, {},
                   std::span(answer.result).first(answer.bytes));
        }
      });
      counts_.end(rank);
    });
  });
  if (count != 0) exceptions.run([&] { workers_.notify_waiters(); });
  exceptions.rethrow();
  return count;
}

void Answers::start_polling() {
  for_slots([&](uint32_t, AnswerSlots& slots) { pending_.start_polling(slots, this_poller()); });
}

void Answers::stop_polling() {
  for_slots([](uint32_t, AnswerSlots& slots) { slots.stop_polling(this_poller()); });
  static_cast<void>(take_results(this_poller()));
}

}  // namespace cariama::internal
