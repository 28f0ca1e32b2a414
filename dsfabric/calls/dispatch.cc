#include "dsfabric/calls/dispatch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dsfabric/calls/running_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"

namespace cariama::internal {

namespace {

// The number of calls after which a consumer switches between messages and its CallSource. A thread
// that serves several workers then serves the next worker.
constexpr size_t kTurn = 256;

}  // namespace

constinit thread_local RunningCall this_running_call;

// ---- Arrival ------------------------------------------------------------------------------------

void Dispatch::deliver(ArrivedMessage* message) {
  MessageHeader header;
  if (message->size < sizeof header + sizeof(CallHeader)) {
    rejected_.add(message->rank, "it is too short");
    return end(message);
  }
  std::memcpy(&header, message->bytes, sizeof header);
  if (header.destination == kService) return run(message);
  if (header.destination >= workers_.count()) {
    rejected_.add(message->rank, "its destination is not a thread of this process");
    return end(message);
  }
  Connection* const connection = message->connection;
  if (connection != nullptr && connection->mark_waiting(message) &&
      workers_.buffered().reserve(message->size)) {
    message = buffered(message);
  }
  workers_.push(header.destination, message);
}

ArrivedMessage* Dispatch::buffered(ArrivedMessage* message) {
  OwnMessage* copy = nullptr;
  try {
    copy = new OwnMessage(message->size, message->rank);
  } catch (const std::bad_alloc&) {
    workers_.buffered().release(message->size);
    return message;
  }
  std::memcpy(copy->bytes, message->bytes, message->size);
  copy->arrow = message->arrow;
  ports_.finish(message);
  return copy;
}

void Dispatch::end(ArrivedMessage* message) {
  counts_.end(message->rank);
  if (message->connection != nullptr) {
    ports_.finish(message);
  } else {
    workers_.buffered().release(message->size);
    delete static_cast<OwnMessage*>(message);
  }
}

void Dispatch::run(ArrivedMessage* message) {
  // Also after an exception of a coroutine: otherwise the receive unit would stay in use, and
  // finalize() would wait for the call.
  struct Ended {
    ~Ended() {
      if (message != nullptr) dispatch.end(message);
    }
    Dispatch& dispatch;
    ArrivedMessage* message;
  } ended{*this, message};
  const uint32_t from = message->rank;
  if (message->resume) {
    const RunningScope running(job_.fabric(), from);
    message->resume.resume();
    return;
  }
  MessageHeader header;
  std::memcpy(&header, message->bytes, sizeof header);
  auto parsed = parse_call({message->bytes + sizeof header, message->size - sizeof header});
  if (!parsed.ok()) {
    const auto why = parsed.status().message();
    rejected_.add(from, {why.data(), why.size()});
  } else {
    const TraceScope trace("dsfabric", "call", "function", parsed->header.id().value);
    if (message->arrow != 0) [[unlikely]]
      trace_arrow_end("dsfabric", "call", message->arrow);
    std::string result;
    IncomingCall call;
    call.closure = parsed->closure;
    call.source_thread = header.source;
    if ((parsed->header.flags() & kCallReturn) != 0) call.result = &result;
    if (parsed->has_notify) call.notify = &parsed->notify;
    const RunningScope running(job_.fabric(), from);
    run_call(parsed->header, call);
    if (call.outcome == CallOutcome::kDone || call.outcome == CallOutcome::kThrew) {
      calls_run_.fetch_add(1, std::memory_order_relaxed);
    } else {
      rejected_.add(from, call.outcome == CallOutcome::kUnknown ? "no function has its id"
                                                                : "its closure is malformed");
    }
    if (call.answered_later) return;
    try {
      answers_.answer(from, call.notify, call, result);
    } catch (const std::bad_alloc&) {
      // The message has no room for the result: its caller gets an error.
      const bool loses_result = !result.empty() && call.outcome == CallOutcome::kDone;
      message->unanswered = loses_result ? CallOutcome::kThrew : call.outcome;
      ended.message = nullptr;
      unanswered_.push(message);  // last: another thread may answer now
    }
  }
}

bool Dispatch::answer(const ArrivedMessage& message) {
  const auto parsed =
      parse_call({message.bytes + sizeof(MessageHeader), message.size - sizeof(MessageHeader)});
  IncomingCall call;
  call.outcome = *message.unanswered;
  try {
    if (call.outcome == CallOutcome::kThrew) call.error_type = "std::bad_alloc";
    answers_.answer(message.rank, &parsed->notify, call, {});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Dispatch::answer_again() {
  if (unanswered_.empty() || !unanswered_.try_consume()) return;
  const struct Done {
    ~Done() { inbox.done(); }
    Inbox& inbox;
  } done{unanswered_};
  while (InboxNode* const node = unanswered_.pop()) {
    auto* const message = static_cast<ArrivedMessage*>(node);
    if (!answer(*message))
      return unanswered_.push(message);  // there is no memory for others either
    message->unanswered.reset();
    end(message);
  }
}

Dispatch::~Dispatch() {
  while (InboxNode* const node = unanswered_.pop()) {
    auto* const message = static_cast<ArrivedMessage*>(node);
    if (message->connection == nullptr) delete static_cast<OwnMessage*>(message);
  }
}

// ---- Workers ------------------------------------------------------------------------------------

absl::Status Dispatch::take_worker(uint32_t index, CallConsumer consumer, ThreadContext* context) {
  if (absl::Status taken = workers_.take(index, consumer, context); !taken.ok()) return taken;
  if (consumer == CallConsumer::kProcess) {
    const std::lock_guard lock(process_consumer_mutex_);
    if (!process_consumer_.joinable()) {
      auto thread = start_thread([this] { help(CallConsumer::kProcess); });
      if (!thread.ok()) {
        workers_.leave(index);
        return thread.status();
      }
      process_consumer_ = *std::move(thread);
    }
  }
  name_trace_thread("thread " + std::to_string(job_.rank() * job_.threads() + index));
  workers_.ring_helpers();  // calls may have arrived before
  return absl::OkStatus();
}

size_t Dispatch::process_calls(uint32_t index, size_t most) {
  const size_t count = consume(index, most, /*marks=*/false);
  // A helper thread that found the inbox in use may have gone to sleep since, with calls left.
  Worker& worker = workers_.at(index);
  if (!worker.runs_own_calls() && worker.skipped.take()) workers_.ring_helpers();
  return count;
}

// Runs at most `most` calls that arrived as messages.
size_t Dispatch::run_messages(Inbox& inbox, size_t most) {
  size_t count = 0;
  for (; count < most; ++count) {
    InboxNode* const node = inbox.pop();
    if (node == nullptr) break;
    run(static_cast<ArrivedMessage*>(node));
  }
  return count;
}

size_t Dispatch::consume(uint32_t index, size_t most, bool marks) {
  answer_again();  // not only at heartbeats: a job of one process has none
  Worker& worker = workers_.at(index);
  Inbox& inbox = worker.inbox;
  CallSource* const source = worker.source.load(std::memory_order_acquire);
  // Another consumer may hold the inbox; it may also be this thread, in an outer frame. A call that
  // polls for calls must not run later calls before it has ended itself.
  if (inbox.empty() && source == nullptr) return 0;
  if (!(marks ? worker.try_consume_or_mark() : inbox.try_consume())) return 0;
  size_t count = 0;
  try {
    // Also after an exception (no memory): otherwise no later call of the worker would run.
    const struct Done {
      ~Done() { inbox.done(); }
      Inbox& inbox;
    } done{inbox};
    const ConsumingScope consuming({&workers_, index});
    // In turns: neither of the two waits while the other one always has calls.
    for (bool more = true; more && count < most;) {
      const size_t turn = std::min(most - count, kTurn);
      size_t ran = 0;
      if (source == nullptr || worker.inbox_is_first) ran = run_messages(inbox, turn);
      if (source != nullptr && ran < turn) ran += source->run(turn - ran);
      if (source != nullptr && !worker.inbox_is_first && ran < turn)
        ran += run_messages(inbox, turn - ran);
      worker.inbox_is_first = !worker.inbox_is_first;
      more = ran == turn;
      count += ran;
    }
  } catch (...) {  // the calls before it may have ended a wait
    workers_.notify_waiters();
    throw;
  }
  if (count != 0) workers_.notify_waiters();
  return count;
}

void Dispatch::process_calls_of_absent_workers() {
  for (uint32_t i = 0; i < workers_.count(); ++i) {
    if (!workers_.at(i).taken.load(std::memory_order_acquire)) process_calls(i, kTurn);
  }
}

size_t Dispatch::progress() {
  return pulls_.run_arrived() + transfers_.run_ended() + answers_.take_results(nullptr) +
         ports_.progress();
}

// ---- Helper threads -----------------------------------------------------------------------------

void Dispatch::help(CallConsumer role) {
  name_trace_thread("helper thread");
  Workers::HelperSleeper sleeper(workers_, role);
  const auto round = [&] {
    static_cast<void>(wait_until(
        [&] {
          size_t count = 0;
          for (uint32_t i = 0; i < workers_.count(); ++i) {
            if (workers_.at(i).consumer.load(std::memory_order_acquire) == role) {
              count += consume(i, kTurn, /*marks=*/true);
            }
          }
          return count != 0 || job_.lifecycle().is_stopping();
        },
        unanswered_.empty() ? kForever : deadline_after(kMemoryPause), &sleeper));
  };
  while (!job_.lifecycle().is_stopping()) {
    if (!has_memory_for("dsfabric.helper.memory", "a helper thread lacks memory to run calls",
                        round)) {
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

absl::Status Dispatch::start() {
  // push_back() must not throw once a thread runs.
  helpers_.reserve(job_.options().helper_threads);
  for (uint32_t i = 0; i < job_.options().helper_threads; ++i) {
    auto thread = start_thread([this] { help(CallConsumer::kHelpers); });
    if (!thread.ok()) {
      return make_error(
          thread.status().code(), ErrorScope::kProcess,
          absl::StrCat("FabricOptions::helper_threads is ", job_.options().helper_threads,
                       ", of which ", i, " could be started: ", thread.status().message()),
          "use fewer helper threads");
    }
    helpers_.push_back(*std::move(thread));
  }
  return absl::OkStatus();
}

void Dispatch::stop() {
  workers_.ring_helpers();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  const std::lock_guard lock(process_consumer_mutex_);
  if (process_consumer_.joinable()) process_consumer_.join();
}

}  // namespace cariama::internal
