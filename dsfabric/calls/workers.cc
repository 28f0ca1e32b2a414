#include "dsfabric/calls/workers.h"

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "dsfabric/fabric.h"
#include "dtutils/error.h"
#include "dtutils/internal/first_exception.h"
#include "dtutils/trace.h"

namespace cariama::internal {

namespace {

// Also after an exception: otherwise no later call of the worker would run.
struct EndOfConsumption {
  ~EndOfConsumption() { inbox.done(); }
  Inbox& inbox;
};

}  // namespace

constinit thread_local WorkerPlace this_thread_place;
constinit thread_local WorkerPlace this_thread_consumes;

Workers::Workers(const FabricJob& job, CallCounts& counts)
    : job_(job), counts_(counts), buffered_(job.options().buffered_bytes) {
  for (uint32_t i = 0; i < job.threads(); ++i) workers_.push_back(std::make_unique<Worker>());
}

absl::Status Workers::place_doorbells(FabricMemory& memory) {
  auto placed = memory.general().allocate((workers_.size() + 1) * sizeof(CallDoorbells));
  if (!placed.ok()) return placed.status();
  doorbells_ = *std::move(placed);
  std::memset(doorbells_.get_buffer(), 0, doorbells_.size());
  calls_ = reinterpret_cast<CallDoorbells*>(doorbells_.get_buffer());
  return absl::OkStatus();
}

void Workers::drop_messages() {
  for (auto& worker : workers_) {
    if (!worker->inbox.try_consume()) continue;
    while (InboxNode* node = worker->inbox.pop()) {
      auto* const message = static_cast<ArrivedMessage*>(node);
      if (message->resume) message->resume.destroy();
      if (message->connection == nullptr) delete static_cast<OwnMessage*>(message);
    }
  }
}

absl::Status Workers::take(uint32_t index, CallConsumer consumer, ThreadContext* context) {
  if (index >= count()) {
    return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                      "there is no worker " + std::to_string(index) + ": the process has " +
                          std::to_string(count()) + " threads",
                      "raise threads");
  }
  if (this_thread_place.workers != nullptr) {
    return make_error(
        absl::StatusCode::kAlreadyExists, ErrorScope::kOperation,
        "this thread is worker " + std::to_string(this_thread_place.index) + " already");
  }
  if (consumer == CallConsumer::kHelpers && job_.options().helper_threads == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "this fabric has no helper threads", "set helper_threads");
  }
  Worker& worker = *workers_[index];
  if (worker.taken.exchange(true)) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kOperation,
                      "another thread is worker " + std::to_string(index) + " of this process");
  }
  worker.context.store(context, std::memory_order_release);
  worker.node.store(context->numa_node(), std::memory_order_release);
  worker.consumer.store(consumer, std::memory_order_seq_cst);
  this_thread_place = {this, index};
  return absl::OkStatus();
}

void Workers::leave(uint32_t index) {
  Worker& worker = *workers_[index];
  worker.context.store(nullptr, std::memory_order_release);
  worker.node.store(Worker::kAbsent, std::memory_order_release);
  worker.taken.store(false, std::memory_order_release);
  if (this_worker() == index) this_thread_place = {};
  if (job_.lifecycle().is_finalizing()) notify_waiters();
}

std::string Workers::why_no_calls() const {
  if (this_thread_consumes.workers == this) {
    return "; the wait is inside of a call, so no other call to its thread ran meanwhile";
  }
  if (this_worker() != kNoThread) return "";
  return "; the waiting thread ran no calls meanwhile, because it has not called init_thread()";
}

void Workers::push(uint32_t index, ArrivedMessage* message) {
  Worker& worker = *workers_[index];
  worker.inbox.push(message);
  // If a helper or the process consumer runs the worker's calls, that thread has armed this
  // doorbell too. If it has not seen the worker yet, take_worker() rings for it.
  if (calls_ != nullptr) ring_for_calls(doorbells_.get_buffer(), count(), index);
  if (job_.lifecycle().is_finalizing()) notify_waiters();
}

// ---- Coroutines ---------------------------------------------------------------------------------

std::unique_ptr<OwnMessage> Workers::prepare_resumption() {
  const uint32_t index = this_worker();
  if (index == kNoThread) return nullptr;
  auto message =
      std::make_unique<OwnMessage>(sizeof(MessageHeader) + sizeof(CallHeader), job_.rank());
  const MessageHeader header{index, kNoThread};
  std::memcpy(message->bytes, &header, sizeof header);
  counts_.reserve(job_.rank());
  return message;
}

void Workers::resume(std::unique_ptr<OwnMessage> message, std::coroutine_handle<> coroutine) {
  if (message == nullptr) return coroutine.resume();
  MessageHeader header;
  std::memcpy(&header, message->bytes, sizeof header);
  message->resume = coroutine;
  counts_.begin(job_.rank());
  buffered_.add(message->size);
  push(header.destination, message.release());
}

// Resumes no other coroutine: its exception would be thrown into this one.
bool Workers::resume_after(Synchronizer& done, std::coroutine_handle<> coroutine) {
  std::list<AwaitedSynchronizer> added;
  added.push_back({&done, prepare_resumption(), coroutine});
  const std::lock_guard lock(awaited_mutex_);
  awaited_.splice(awaited_.end(), added);
  awaited_count_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that counts `done` down later sees the count above.
  if (!done.done()) return true;
  added.splice(added.end(), awaited_, std::prev(awaited_.end()));
  awaited_count_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void Workers::resume_finished() {
  std::list<AwaitedSynchronizer> finished;
  {
    const std::lock_guard lock(awaited_mutex_);
    for (auto one = awaited_.begin(); one != awaited_.end();) {
      const auto next = std::next(one);
      if (one->done->done()) finished.splice(finished.end(), awaited_, one);
      one = next;
    }
    awaited_count_.fetch_sub(finished.size(), std::memory_order_relaxed);
  }
  FirstException exceptions;
  for (AwaitedSynchronizer& one : finished) {
    exceptions.run([&] { resume(std::move(one.message), one.coroutine); });
  }
  exceptions.rethrow();
}

// ---- Sleeping and waking ------------------------------------------------------------------------

uint32_t Workers::arm_calls(uint32_t index) {
  Worker& worker = at(index);
  const uint32_t expected = calls_[index].doorbell.arm();
  CallSource* const source = worker.source.load(std::memory_order_acquire);
  if (source == nullptr) return expected;
  Machine::fence_ringers();
  // If another thread is running the worker's calls, its senders stay disarmed: see
  // recheck_calls() and Worker::skipped.
  if (worker.try_consume_or_mark()) {
    const EndOfConsumption done{worker.inbox};
    source->remote_sleepers().arm();
  }
  return expected;
}

bool Workers::recheck_calls(uint32_t index, bool if_in_use) {
  Worker& worker = at(index);
  CallSource* const source = worker.source.load(std::memory_order_acquire);
  if (source == nullptr) return false;
  if (!worker.try_consume_or_mark()) return if_in_use;
  const EndOfConsumption done{worker.inbox};
  return source->remote_sleepers().recheck();
}

void Workers::WaitSleeper::arm() {
  // Inside of a call of this worker, its later calls cannot run.
  runs_calls_ =
      index_ != kNoThread && workers_.at(index_).runs_own_calls() &&
      !(this_thread_consumes.workers == &workers_ && this_thread_consumes.index == index_);
  if (runs_calls_) {
    doorbell_ = &workers_.calls_[index_].doorbell;
    expected_ = workers_.arm_calls(index_);
  } else {
    doorbell_ = index_ == kNoThread ? &workers_.bystanders_ : &workers_.at(index_).waits;
    expected_ = doorbell_->arm();
  }
  static_cast<void>(workers_.waiters_.arm());
}

// The thread runs no call between arm() and take() of `receives`. So a message that waits for this
// thread to wake takes no receive unit for the time of a call.
void Workers::WaitSleeper::wait(Deadline deadline) {
  must_receive_ = false;
  if (!runs_calls_) return doorbell_->wait(expected_, deadline);
  Doorbell& receives = workers_.calls_[index_].receives;
  static_cast<void>(receives.arm());
  doorbell_->wait(expected_, deadline);
  must_receive_ = !receives.take();
  // A sender takes `receives` when its message has arrived. So a thread that finds it taken, and
  // polls afterwards, finds the message.
  Machine::full_fence();
}

void Workers::HelperSleeper::arm() {
  expected_ = workers_.calls_[workers_.count()].doorbell.arm();
  armed_.clear();
  for (uint32_t i = 0; i < workers_.count(); ++i) {
    // take_worker() stores the consumer, then rings for the helpers.
    if (workers_.at(i).consumer.load(std::memory_order_seq_cst) != role_) continue;
    static_cast<void>(workers_.arm_calls(i));
    armed_.push_back(i);
  }
}

bool Workers::HelperSleeper::recheck() {
  bool in_flight = false;
  // A helper that is running a worker's calls re-checks them before it sleeps itself.
  for (const uint32_t i : armed_) in_flight |= workers_.recheck_calls(i, false);
  return in_flight;
}

void Workers::HelperSleeper::wait(Deadline deadline) {
  const TraceScope trace("dsfabric", "sleep");
  workers_.calls_[workers_.count()].doorbell.wait(expected_, deadline);
}

void Workers::notify_waiters() {
  // Also after an exception of a coroutine: otherwise the other threads would miss the event.
  const struct Ring {
    ~Ring() { workers.ring_waiters(); }
    Workers& workers;
  } ring{*this};
  if (awaited_count_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    resume_finished();
}

void Workers::ring_waiters() {
  if (!waiters_.take()) [[likely]]
    return;
  for (uint32_t i = 0; i < count(); ++i) {
    if (at(i).runs_own_calls()) calls_[i].doorbell.ring();
    at(i).waits.ring();
  }
  bystanders_.ring();
}

void Workers::wake(uint32_t index) {
  if (index >= count()) return;
  if (calls_ != nullptr) ring_for_calls(doorbells_.get_buffer(), count(), index);
  workers_[index]->waits.ring();
  if (awaited_count_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    resume_finished();
}

}  // namespace cariama::internal
