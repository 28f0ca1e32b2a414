// Runs the calls that have arrived: in their threads, in helper threads, or, for calls to the
// process, immediately. A thread that waits runs its calls meanwhile.
//
//   dispatch.cc  arrival, running, helper threads
//   waiting.cc   waiting
#ifndef CARIAMA_DSFABRIC_CALLS_DISPATCH_H_
#define CARIAMA_DSFABRIC_CALLS_DISPATCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/awaited_transfers.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/pulls.h"
#include "dsfabric/calls/rejected_calls.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/inbox.h"
#include "dsfabric/peers/ports.h"
#include "dtutils/wait.h"

namespace cariama {
class ThreadContext;
}  // namespace cariama

namespace cariama::internal {

// Thread-safe, except for start() and stop(). Holds no lock while a call runs; the inbox of a
// worker has one consumer at a time.
class Dispatch {
 public:
  // All arguments must outlive this object.
  Dispatch(const FabricJob& job, Ports& ports, Workers& workers, CallCounts& counts,
           Answers& answers, Pulls& pulls, AwaitedTransfers& transfers, RejectedCalls& rejected)
      : job_(job),
        ports_(ports),
        workers_(workers),
        counts_(counts),
        answers_(answers),
        pulls_(pulls),
        transfers_(transfers),
        rejected_(rejected) {}
  ~Dispatch();
  Dispatch(const Dispatch&) = delete;
  Dispatch& operator=(const Dispatch&) = delete;

  // Starts the helper threads, if FabricOptions::helper_threads asks for them. Error:
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status start();
  // Ends helper threads and process consumer. Requires: Lifecycle::stop() was called.
  void stop();

  // Handles a message that has arrived: puts a call to a worker into the worker's inbox, or runs a
  // call to the process.
  void deliver(ArrivedMessage* message);

  // See Fabric::init_thread(). leave: Workers::leave().
  [[nodiscard]] absl::Status take_worker(uint32_t index, CallConsumer consumer,
                                         ThreadContext* context);

  // Runs calls to worker `index`, unless another thread is running them. Returns the number of
  // calls that ran.
  size_t process_calls(uint32_t index, size_t most);
  // As process_calls(), for a worker that waits. Runs nothing if helpers run the worker's calls.
  size_t process_own_calls(uint32_t index, size_t most) {
    return workers_.at(index).runs_own_calls() ? process_calls(index, most) : 0;
  }
  // Answers the calls that have run and for whose answers there was no memory. Never blocks.
  void answer_again();
  // Runs the calls to workers whose thread has left or has not called init_thread() yet.
  void process_calls_of_absent_workers();
  // See Fabric::progress(). Returns the number of messages, results and awaited
  // transfers.
  size_t progress();

  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline);
  // As wait(), for a condition that plain WRITEs make true: polls and does not sleep.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition, Deadline deadline);

  [[nodiscard]] uint64_t calls_run() const { return calls_run_.load(std::memory_order_relaxed); }

 private:
  class WaitSleeper;

  void help(CallConsumer role);
  // As process_calls(), for a thread that runs the calls as their consumer. `marks`: the thread is
  // a helper thread (Worker::try_consume_or_mark).
  size_t consume(uint32_t index, size_t most, bool marks);
  size_t run_messages(Inbox& inbox, size_t most);
  // Throws no std::bad_alloc: a call whose answer finds no memory is kept for answer_again().
  void run(ArrivedMessage* message);
  // Sends the answer of a call of unanswered_. Returns false if there is no memory for it.
  [[nodiscard]] bool answer(const ArrivedMessage& message);
  // Returns a copy of a message, whose bytes of buffered_bytes are reserved, and ends the use of
  // its receive unit. Without memory, returns the message itself, and releases the bytes.
  [[nodiscard]] ArrivedMessage* buffered(ArrivedMessage* message);
  // Called when the message has been run or dropped, and every call that it caused has been sent.
  void end(ArrivedMessage* message);

  const FabricJob& job_;
  Ports& ports_;
  Workers& workers_;
  CallCounts& counts_;
  Answers& answers_;
  Pulls& pulls_;
  AwaitedTransfers& transfers_;
  RejectedCalls& rejected_;

  std::vector<std::thread> helpers_;
  std::mutex process_consumer_mutex_;
  std::thread process_consumer_;  // created for the first worker that selects it
  std::atomic<uint64_t> calls_run_{0};
  // Calls that have run, with ArrivedMessage::unanswered set. Each is kept in its receive unit or
  // its own memory, so that keeping it needs no memory.
  Inbox unanswered_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_DISPATCH_H_
