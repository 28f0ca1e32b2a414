#include "dsfabric/calls/workers.h"

#include <cstring>
#include <string>
#include <utility>

#include "dtutils/error.h"

namespace cariama::internal {

constinit thread_local WorkerPlace this_thread_place;
constinit thread_local WorkerPlace this_thread_consumes;

Workers::Workers(const FabricJob& job, CallCounts& counts)
    : job_(job), counts_(counts), buffered_(job.options().deferred_bytes) {
  for (uint32_t i = 0; i < job.threads(); ++i) workers_.push_back(std::make_unique<Worker>());
}

absl::Status Workers::place_wake_words(FabricMemory& memory) {
  auto words = memory.general().allocate((workers_.size() + 1) * kWakeWordStride);
  if (!words.ok()) return words.status();
  wake_words_ = *words;
  std::memset(wake_words_.get_buffer(), 0, wake_words_.size());
  const auto word = [&](size_t i) {
    return reinterpret_cast<WakeWord*>(wake_words_.get_buffer() + i * kWakeWordStride);
  };
  for (size_t i = 0; i < workers_.size(); ++i) workers_[i]->inbox.place_arrivals(*word(i));
  helpers_word_ = word(workers_.size());
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
  worker.consumer.store(consumer, std::memory_order_seq_cst);
  this_thread_place = {this, index};
  return absl::OkStatus();
}

void Workers::leave(uint32_t index) {
  Worker& worker = *workers_[index];
  worker.context.store(nullptr, std::memory_order_release);
  worker.taken.store(false, std::memory_order_release);
  if (this_worker() == index) this_thread_place = {};
  if (job_.lifecycle().is_finalizing()) notify_waiters();
}

void Workers::push(uint32_t index, ArrivedMessage* message) {
  Worker& worker = *workers_[index];
  worker.inbox.push(message);
  // This load comes after the push, and both are sequentially consistent. take() stores the
  // consumer; its caller then wakes the helpers, which examine the inbox. So this thread sees the
  // new consumer, or the helpers see the message.
  if (worker.consumer.load(std::memory_order_seq_cst) != CallConsumer::kThread) wake_helpers();
  if (job_.lifecycle().is_finalizing()) notify_waiters();
}

// ---- Coroutines ---------------------------------------------------------------------------------

void Workers::resume(uint32_t index, std::coroutine_handle<> coroutine) {
  if (index == kNoThread) return coroutine.resume();
  auto message =
      std::make_unique<OwnMessage>(sizeof(MessageHeader) + sizeof(CallHeader), job_.rank());
  const MessageHeader header{index, kNoThread};
  std::memcpy(message->bytes, &header, sizeof header);
  message->resume = coroutine;
  counts_.begin(job_.rank());
  buffered_.add(message->size);
  push(index, message.release());
}

void Workers::resume_after(Synchronizer& done, std::coroutine_handle<> coroutine) {
  {
    const std::lock_guard lock(awaited_mutex_);
    awaited_.push_back({&done, this_worker(), coroutine});
    awaited_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  resume_finished();  // `done` may have finished meanwhile
}

void Workers::resume_finished() {
  std::vector<AwaitedSynchronizer> finished;
  {
    const std::lock_guard lock(awaited_mutex_);
    std::erase_if(awaited_, [&](const AwaitedSynchronizer& one) {
      if (!one.done->done()) return false;
      finished.push_back(one);
      return true;
    });
    awaited_count_.fetch_sub(finished.size(), std::memory_order_relaxed);
  }
  for (const AwaitedSynchronizer& one : finished) resume(one.worker, one.coroutine);
}

// ---- Waking -------------------------------------------------------------------------------------

void Workers::notify_waiters() {
  if (awaited_count_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    resume_finished();
  if (sleeping_threads_.fetch_add(0, std::memory_order_acq_rel) == 0) [[likely]]
    return;
  for (auto& worker : workers_) worker->inbox.arrivals().wake();
  bystanders_.wake();
}

void Workers::wake(uint32_t index) {
  if (index >= count()) return;
  workers_[index]->inbox.arrivals().wake();
  if (workers_[index]->consumer.load(std::memory_order_seq_cst) != CallConsumer::kThread) {
    wake_helpers();
  }
}

}  // namespace cariama::internal
