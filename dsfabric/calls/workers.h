// The workers of a process: which thread is which worker, the inboxes of their calls, and how
// waiting threads sleep and are woken.
#ifndef CARIAMA_DSFABRIC_CALLS_WORKERS_H_
#define CARIAMA_DSFABRIC_CALLS_WORKERS_H_

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/call_source.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/fabric.h"
#include "dsfabric/peers/byte_budget.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/peers/inbox.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama::internal {

struct Worker {
  [[nodiscard]] bool runs_own_calls() const {
    return consumer.load(std::memory_order_relaxed) == CallConsumer::kThread;
  }

  Inbox inbox;
  std::atomic<CallConsumer> consumer{CallConsumer::kThread};
  std::atomic<ThreadContext*> context{nullptr};
  std::atomic<bool> taken{false};
  std::atomic<CallSource*> source{nullptr};  // set once there is a registry
};

// A worker of a fabric, by its index.
class Workers;
struct WorkerPlace {
  const Workers* workers = nullptr;  // nullptr: no worker
  uint32_t index = kNoThread;
};
// The worker that the calling thread is, and the worker whose calls it is running.
extern constinit thread_local WorkerPlace this_thread_place;
extern constinit thread_local WorkerPlace this_thread_consumes;

// During its lifetime, the calling thread runs the calls of a worker.
class ConsumingScope {
 public:
  explicit ConsumingScope(WorkerPlace place) : outer_(this_thread_consumes) {
    this_thread_consumes = place;
  }
  ~ConsumingScope() { this_thread_consumes = outer_; }
  ConsumingScope(const ConsumingScope&) = delete;
  ConsumingScope& operator=(const ConsumingScope&) = delete;

 private:
  const WorkerPlace outer_;
};

// Thread-safe, except for place_wake_words(). Its mutex is never held while another part is called.
class Workers {
 public:
  // `job` and `counts` must outlive this object.
  Workers(const FabricJob& job, CallCounts& counts);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Places the words that the threads sleep on in registered memory. Called once, before the
  // threads of the fabric start.
  [[nodiscard]] absl::Status place_wake_words(FabricMemory& memory);
  // See wake_words() in call_source.h.
  [[nodiscard]] const RDMAMemory& wake_words() const { return wake_words_; }
  // Frees the messages that have not run. Requires: no thread uses this object any more.
  void drop_messages();

  // The calling thread becomes worker `index`, or stops being it. Errors: those of
  // Fabric::init_thread().
  [[nodiscard]] absl::Status take(uint32_t index, CallConsumer consumer, ThreadContext* context);
  void leave(uint32_t index);
  // Returns the calling thread's worker index, or kNoThread.
  [[nodiscard]] uint32_t this_worker() const {
    return this_thread_place.workers == this ? this_thread_place.index : kNoThread;
  }
  [[nodiscard]] uint32_t this_thread_id() const {
    const uint32_t index = this_worker();
    return index == kNoThread ? kNoThread : job_.rank() * job_.threads() + index;
  }
  [[nodiscard]] ThreadContext* context_of(uint32_t index) const {
    return workers_[index]->context.load(std::memory_order_acquire);
  }
  // Returns true if the calling thread is inside of a call to the thread with that global id.
  [[nodiscard]] bool is_running_calls_of(uint32_t thread) const {
    return this_thread_consumes.workers == this &&
           thread == job_.rank() * job_.threads() + this_thread_consumes.index;
  }
  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(workers_.size()); }
  [[nodiscard]] Worker& at(uint32_t index) { return *workers_[index]; }

  // Adds a message to the inbox of worker `index`, and wakes the thread that runs its calls.
  void push(uint32_t index, ArrivedMessage* message);
  // Limits the bytes of the messages that are in their own memory.
  [[nodiscard]] ByteBudget& buffered() { return buffered_; }

  // Sleeping. A thread sleeps on sleep_word(), helper threads and the process consumer on
  // helpers_word(). No wake-up is lost: a notifier makes its event visible, then reads the number
  // of sleepers; a sleeper is counted, then re-checks. Both accesses are read-modify-writes of one
  // word, so the notifier sees the sleeper, or the sleeper sees the event.
  //
  // `index`: of the calling thread, or kNoThread.
  [[nodiscard]] WakeWord& sleep_word(uint32_t index) {
    return index == kNoThread ? bystanders_ : workers_[index]->inbox.arrivals();
  }
  // Returns the ticket for sleep(). The caller re-checks its condition, then calls sleep() or
  // retract_sleep().
  [[nodiscard]] uint32_t announce_sleep(WakeWord& word) {
    sleeping_threads_.fetch_add(1, std::memory_order_acq_rel);
    return word.announce();
  }
  void sleep(WakeWord& word, uint32_t ticket, Deadline deadline) {
    word.sleep(ticket, deadline);
    sleeping_threads_.fetch_sub(1, std::memory_order_acq_rel);
  }
  void retract_sleep(WakeWord& word) {
    word.retract();
    sleeping_threads_.fetch_sub(1, std::memory_order_acq_rel);
  }
  [[nodiscard]] WakeWord& helpers_word() { return *helpers_word_; }
  void wake_helpers() {
    if (helpers_word_ != nullptr) helpers_word_->wake();
  }
  // Makes the thread that runs the calls of worker `index` wake and re-check.
  void wake(uint32_t index);
  // Makes every waiting thread re-check its condition. Called after every event that may have
  // changed one.
  void notify_waiters();

  // Resumes a coroutine in the thread that runs the calls of worker `index`; with kNoThread, in the
  // calling thread.
  void resume(uint32_t index, std::coroutine_handle<> coroutine);
  // Resumes a coroutine of the calling thread once `done` has no operation left.
  void resume_after(Synchronizer& done, std::coroutine_handle<> coroutine);

 private:
  struct AwaitedSynchronizer {
    Synchronizer* done;
    uint32_t worker;
    std::coroutine_handle<> coroutine;
  };
  void resume_finished();

  const FabricJob& job_;
  CallCounts& counts_;
  std::vector<std::unique_ptr<Worker>> workers_;
  RDMAMemory wake_words_;
  ByteBudget buffered_;
  std::atomic<uint32_t> sleeping_threads_{0};  // threads that sleep on sleep_word() or are about to
  WakeWord bystanders_;                        // wakes the threads among them that are not workers
  WakeWord* helpers_word_ = nullptr;           // the last entry of wake_words_
  std::atomic<size_t> awaited_count_{0};
  std::mutex awaited_mutex_;
  std::vector<AwaitedSynchronizer> awaited_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_WORKERS_H_
