// The workers of a process: their threads, the inboxes of their calls, and the doorbells of the
// threads that wait.
#ifndef CARIAMA_DSFABRIC_CALLS_WORKERS_H_
#define CARIAMA_DSFABRIC_CALLS_WORKERS_H_

#include <atomic>
#include <climits>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/internal/call_doorbells.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/peers/byte_budget.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/peers/inbox.h"
#include "dtutils/doorbell.h"
#include "dtutils/synchronizer.h"

namespace cariama {
class ThreadContext;
}  // namespace cariama

namespace cariama::internal {

struct Worker {
  [[nodiscard]] bool runs_own_calls() const {
    return consumer.load(std::memory_order_relaxed) == CallConsumer::kThread;
  }

  // As inbox.try_consume(), for a thread that sleeps if another thread is the consumer. A consumer
  // that is not a helper thread takes `skipped` after inbox.done().
  [[nodiscard]] bool try_consume_or_mark() {
    if (inbox.try_consume()) return true;
    static_cast<void>(skipped.arm());
    return inbox.try_consume();  // the other thread may have ended before `skipped` was armed
  }

  Inbox inbox;
  // Armed by a thread that found another consumer. No thread sleeps on it: the worker's thread
  // takes it after it has polled for calls, and rings for the helper threads.
  Doorbell skipped;
  // Rung for the worker's thread while it waits and cannot run its calls.
  Doorbell waits;
  std::atomic<CallConsumer> consumer{CallConsumer::kThread};
  std::atomic<ThreadContext*> context{nullptr};  // read by the worker's thread only
  // ThreadContext::numa_node() while there is a context, else kAbsent. Other threads read it here,
  // because the worker's thread destroys its context.
  static constexpr int kAbsent = INT_MIN;
  std::atomic<int> node{kAbsent};
  std::atomic<bool> taken{false};
  std::atomic<CallSource*> source{nullptr};  // set once there is a registry
  // The next turn begins with the inbox, not with the source. Of the consumer of the inbox.
  bool inbox_is_first = false;
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

// Thread-safe, except for place_doorbells(). Its mutex is never held while another part is called.
class Workers {
 public:
  // `job` and `counts` must outlive this object.
  Workers(const FabricJob& job, CallCounts& counts);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Places the doorbells for calls in registered memory. Called once, before the threads of the
  // fabric start.
  [[nodiscard]] absl::Status place_doorbells(FabricMemory& memory);
  // See doorbells() in call_source.h.
  [[nodiscard]] const RDMAMemory& doorbells() const { return doorbells_; }
  // Frees the messages that have not run. Requires: no thread uses this object any more.
  void drop_messages();

  // Makes the calling thread worker `index`, or ends that. Errors: those of Fabric::init_thread().
  [[nodiscard]] absl::Status take(uint32_t index, CallConsumer consumer, ThreadContext* context);
  void leave(uint32_t index);
  // Returns the calling thread's worker index, or kNoThread.
  [[nodiscard]] uint32_t this_worker() const {
    return this_thread_place.workers == this ? this_thread_place.index : kNoThread.value();
  }
  [[nodiscard]] uint32_t this_thread_id() const {
    const uint32_t index = this_worker();
    return index == kNoThread ? kNoThread.value() : job_.rank() * job_.threads() + index;
  }
  // Returns the calling thread's context, or nullptr if it is not a worker.
  [[nodiscard]] ThreadContext* this_context() const {
    const uint32_t index = this_worker();
    return index == kNoThread ? nullptr : workers_[index]->context.load(std::memory_order_acquire);
  }
  // Returns ThreadContext::numa_node() of worker `index`; nullopt if there is no such worker, or no
  // thread is it now.
  [[nodiscard]] std::optional<int> node_of(uint32_t index) const {
    if (index >= count()) return std::nullopt;
    const int node = workers_[index]->node.load(std::memory_order_acquire);
    return node == Worker::kAbsent ? std::nullopt : std::optional<int>(node);
  }
  // Returns why the calling thread runs no calls while it waits, as the end of a sentence; else "".
  [[nodiscard]] std::string why_no_calls() const;
  // Returns true if the calling thread is inside of a call to the thread with that global id.
  [[nodiscard]] bool is_running_calls_of(uint32_t thread) const {
    return this_thread_consumes.workers == this &&
           thread == job_.rank() * job_.threads() + this_thread_consumes.index;
  }
  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(workers_.size()); }
  [[nodiscard]] Worker& at(uint32_t index) { return *workers_[index]; }

  // Adds a message to the inbox of worker `index`, and rings for the thread that runs its calls.
  void push(uint32_t index, ArrivedMessage* message);
  // Limits the bytes of the messages that are in their own memory.
  [[nodiscard]] ByteBudget& buffered() { return buffered_; }

  // Sleeping (dtutils/doorbell.h). Each worker has a doorbell for its calls, which the thread that
  // runs them arms, and which all senders of calls ring. A thread that cannot run calls sleeps on
  // Worker::waits, or on the doorbell of all threads that are not workers. Helper threads and the
  // process consumer arm the doorbells of the workers that they serve, and sleep on their own.
  //
  // Sleeps in place of a thread that waits. `index`: of the calling thread, or kNoThread.
  class WaitSleeper;
  // Sleeps in place of a helper thread of that role.
  class HelperSleeper;
  void ring_helpers() {
    if (calls_ != nullptr) calls_[count()].doorbell.ring();
  }
  // Wakes the thread that runs the calls of worker `index`, and that worker's thread, so that they
  // re-check. Resumes the coroutines whose Synchronizer has no operation left.
  void wake(uint32_t index);
  // Makes every waiting thread re-check its condition. Called after every event that may have
  // changed one. Resumes the coroutines whose Synchronizer has finished, all of them; then throws
  // the first of their exceptions.
  void notify_waiters();

  // A coroutine that suspends is resumed in the thread that runs the calls of its worker, by a
  // message. prepare_resumption() makes the message for a coroutine of the calling thread, so that
  // the thread that resumes it needs no memory. Returns nullptr if the calling thread is no worker.
  // Throws std::bad_alloc.
  [[nodiscard]] std::unique_ptr<OwnMessage> prepare_resumption();
  // Resumes a coroutine; without a message, in the calling thread. Needs no memory. Throws what the
  // coroutine throws.
  void resume(std::unique_ptr<OwnMessage> message, std::coroutine_handle<> coroutine);
  // Resumes a coroutine of the calling thread once `done` has no operation left. Returns false, and
  // does not resume it, if that is so already. Throws std::bad_alloc, and then does not resume it.
  [[nodiscard]] bool resume_after(Synchronizer& done, std::coroutine_handle<> coroutine);

 private:
  struct AwaitedSynchronizer {
    Synchronizer* done;
    std::unique_ptr<OwnMessage> message;  // prepare_resumption()
    std::coroutine_handle<> coroutine;
  };
  void resume_finished();
  void ring_waiters();
  // Arms the doorbells of all senders of calls to worker `index`. Returns what the wait on the
  // worker's own doorbell expects.
  uint32_t arm_calls(uint32_t index);
  // See Sleeper::recheck(). Returns `if_in_use` if another thread is running the worker's calls.
  [[nodiscard]] bool recheck_calls(uint32_t index, bool if_in_use);

  const FabricJob& job_;
  CallCounts& counts_;
  std::vector<std::unique_ptr<Worker>> workers_;
  RDMAMemory doorbells_;
  CallDoorbells* calls_ = nullptr;  // in doorbells_: of each worker, then of all helper threads
  ByteBudget buffered_;
  Doorbell waiters_;     // armed by each thread that waits, after its own doorbell
  Doorbell bystanders_;  // of the waiting threads that are not workers
  std::atomic<size_t> awaited_count_{0};
  std::mutex awaited_mutex_;
  std::list<AwaitedSynchronizer> awaited_;
};

class Workers::WaitSleeper final : public Sleeper {
 public:
  WaitSleeper(Workers& workers, uint32_t index) : workers_(workers), index_(index) {}
  void arm() override;
  [[nodiscard]] bool recheck() override {
    return runs_calls_ && workers_.recheck_calls(index_, true);
  }
  void wait(Deadline deadline) override;
  // Returns true if a sender has woken the thread in the last wait() instead of the service thread.
  // Then the thread must receive messages.
  [[nodiscard]] bool must_receive() const { return must_receive_; }

 private:
  Workers& workers_;
  const uint32_t index_;
  bool runs_calls_ = false;
  bool must_receive_ = false;
  Doorbell* doorbell_ = nullptr;
  uint32_t expected_ = 0;
};

class Workers::HelperSleeper final : public Sleeper {
 public:
  HelperSleeper(Workers& workers, CallConsumer role) : workers_(workers), role_(role) {
    armed_.reserve(workers.count());
  }
  void arm() override;
  [[nodiscard]] bool recheck() override;
  void wait(Deadline deadline) override;

 private:
  Workers& workers_;
  const CallConsumer role_;
  std::vector<uint32_t> armed_;  // the workers that it serves
  uint32_t expected_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_WORKERS_H_
