// The distributed-system fabric: processes and long-lived threads with names, connected on first
// use, that call each other (Seriema §3, §4.3). The main header of this layer.
//
//   int main() {
//     auto job = Fabric::create({.threads = 1});  // started by cariama-run, mpirun, or alone
//     Fabric& fabric = **job;
//     auto self = fabric.init_thread(0);          // this thread is now worker 0
//     CallResult sent = call(fabric, fabric.thread_of(0), [from = fabric.rank()] { ... });
//     while (...) fabric.process_calls();         // runs the calls sent to this thread
//     absl::Status ended = fabric.finalize(deadline_after(10s));
//   }
//
// Names. A process has a Rank, 0 to size() - 1. Each has threads() long-lived threads; thread
// `index` of process `rank` has the ThreadId (global id) rank * threads() + index, and calls go to
// ThreadIds. These are distinct types (ids.h): thread_of(), rank_of() and index_of() convert.
// Short-lived threads have no name; they may call without set-up.
//
// Delivery. An accepted call runs at most once, and calls from one thread to one thread run in the
// order of issue. A call runs unless a process dies or the destination rejects the call. Only a
// completion for `consumed` (completions.h) reports a call that did not run. The destination thread
// chooses where its calls run: in the thread itself, when it calls process_calls() or waits; in
// helper threads of the process; or in one consumer thread for the whole process. At any time, one
// thread runs the calls to a given destination, except calls with Async (send_call.h).
//
// Inside a call no operation waits for credits. If the receiver has no room, calls sent inside a
// call are deferred, up to deferred_bytes per process, and sent later in order. So calls that send
// calls back, and do not wait, cannot deadlock.
#ifndef CARIAMA_DSFABRIC_FABRIC_H_
#define CARIAMA_DSFABRIC_FABRIC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/fabric_statistics.h"
#include "dsfabric/ids.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/device.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"

namespace cariama {

class Fabric;

namespace internal {
class FabricAccess;
class FabricCore;

// Detects that an object which uses a fabric outlives it. Holds no reference to the fabric.
class CARIAMA_DSFABRIC_EXPORT FabricUse {
 public:
  FabricUse() = default;  // of an object that uses no fabric
  // `object`: for the message, with its article.
  FabricUse(const Fabric& fabric, const char* object);
  // Called first by the destructor of the object. Aborts with a message if the fabric is destroyed.
  void end() const;

 private:
  std::weak_ptr<const FabricCore> fabric_;
  const char* object_ = nullptr;
};
}  // namespace internal

// A long-lived thread's registration in the fabric. Created by Fabric::init_thread; its destructor
// ends the registration. Thread-compatible: only its own thread uses it.
class CARIAMA_DSFABRIC_EXPORT ThreadContext {
 public:
  ~ThreadContext();
  ThreadContext(const ThreadContext&) = delete;
  ThreadContext& operator=(const ThreadContext&) = delete;

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] ThreadIndex index() const { return index_; }  // within the process
  [[nodiscard]] ThreadId global_id() const { return global_id_; }
  [[nodiscard]] int numa_node() const { return numa_node_; }  // NUMA node of its memory, or -1

  // Registered memory on this thread's NUMA node, for buffers to transfer. The allocator recycles
  // the buffers automatically.
  [[nodiscard]] CircularAllocator& buffers() { return *buffers_; }

  // The paper's name for &buffers() (Listing 1).
  CircularAllocator* const circular_allocator;

 private:
  friend class Fabric;
  ThreadContext(Fabric& fabric, ThreadIndex index, ThreadId global_id, int numa_node,
                std::unique_ptr<CircularAllocator> buffers)
      : circular_allocator(buffers.get()),
        buffers_(std::move(buffers)),
        fabric_(fabric),
        index_(index),
        global_id_(global_id),
        numa_node_(numa_node) {}

  const std::unique_ptr<CircularAllocator> buffers_;
  Fabric& fabric_;
  ThreadIndex index_;
  ThreadId global_id_;
  int numa_node_;
  bool named_ = false;  // the fabric has registered this thread
  const internal::FabricUse use_{fabric_, "a ThreadContext"};
};

namespace internal {
// Returns *context. Prints why there is none and aborts if it is nullptr.
CARIAMA_DSFABRIC_EXPORT ThreadContext& require_context(ThreadContext* context);
}  // namespace internal

// One process of a job. Thread-safe unless a function says otherwise. Usually there is one per
// operating-system process; tests in simulated time run several in one operating-system process.
class CARIAMA_DSFABRIC_EXPORT Fabric {
 public:
  // Joins the job: finds the launcher, opens devices, exchanges set-up data with all processes.
  // Collective. Errors: those of make_bootstrap and open_device; INVALID_ARGUMENT (an option out of
  // its range), FAILED_PRECONDITION (another build, other options; no device reaches a process),
  // DEADLINE_EXCEEDED (a process did not join within FabricOptions::timeout).
  //
  // In a job of several processes, a signal that ends the process by default (SIGSEGV, SIGBUS,
  // SIGFPE, SIGILL, SIGABRT) prints the rank and the function with its callers first, unless the
  // program handles the signal or CARIAMA_CRASH_REPORT is 0.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Fabric>> create(
      const FabricOptions& options = {});

  // Requires: the objects that use the fabric are destroyed: a ThreadContext, messenger,
  // aggregator, GlobalMemory, TaskPool, HashTable, TableAccess or bdd::Manager that is destroyed
  // later aborts with a message.
  //
  // Without a preceding finalize(), the destructor leaves the job immediately. The other processes
  // see this as the death of the process; this process's own threads and memory are released in
  // order.
  //
  // In a child of fork() the fabric cannot be used: calls return UNAVAILABLE, and the destructor
  // does nothing, so that the parent stays in the job. Messengers, global memory and thread
  // contexts must not be touched there: only exec and _exit are safe.
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] Rank rank() const;
  [[nodiscard]] uint32_t size() const;     // processes
  [[nodiscard]] uint32_t threads() const;  // per process
  [[nodiscard]] uint32_t total_threads() const { return size() * threads(); }
  [[nodiscard]] Rank rank_of(ThreadId thread) const { return thread / threads(); }
  [[nodiscard]] ThreadIndex index_of(ThreadId thread) const { return thread % threads(); }
  // Returns the global id of thread `index` of process `rank`.
  [[nodiscard]] ThreadId thread_of(Rank rank, ThreadIndex index = 0) const {
    return rank * threads() + index;
  }
  // Returns the name of a process for texts: "rank 3 (on node1, pid 4711)". Requires: rank <
  // size().
  [[nodiscard]] std::string label(Rank rank) const;

  // Makes the calling thread worker `index` of this process. Does not bind it to a core; creates
  // its allocator on its NUMA node. Errors: OUT_OF_RANGE, ALREADY_EXISTS (another thread has that
  // index, or this thread is a worker already), FAILED_PRECONDITION (kHelpers, and
  // FabricOptions::helper_threads is 0), those of RDMAAllocator::create. The same thread must
  // destroy the context, before the fabric.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(
      ThreadIndex index, CallConsumer consumer = CallConsumer::kThread);
  // Returns the context of the calling thread in this fabric, or nullptr: in a thread that has not
  // called init_thread(), in a service call, in a call that runs after its thread has left, and in
  // a call that a helper thread, the process consumer or the thread of Async calls runs.
  [[nodiscard]] ThreadContext* this_thread() const;

  // Runs at most `most` calls that have arrived for the calling worker thread, whatever its
  // CallConsumer is. If there are none, or if there are no service threads, polls the devices once
  // for new calls. Does not wait. But while calls arrive faster than they run, it returns only
  // after `most` calls. Returns the number of calls that ran. In a thread that is no worker, or
  // that is inside a call, only polls, and returns 0.
  size_t process_calls(size_t most = SIZE_MAX);
  // Does the work of the service threads once: receives messages, sends deferred calls, detects
  // failed peers. Without service threads, a thread that computes for a long time calls it now and
  // then; process_calls() and the wait functions do this work, too. Also runs functions of Async
  // calls; never blocks unless one of these does. Returns the number of messages, results, buffers
  // and awaited transfers that were handled.
  size_t progress();

  // The wait functions block the calling thread. Meanwhile the thread receives messages, and a
  // worker with CallConsumer::kThread runs its calls. In a task that lets other tasks run
  // (tasks/await.h), the worker also runs other tasks. Inside a call no further call to the same
  // thread runs. The thread sleeps when it has nothing to do; with service_threads == 0 it polls.
  // kForever is a deadline that never comes.
  //
  // Blocks until `condition` is true. A condition that becomes true by a call or by progress of the
  // fabric is noticed. Another thread that makes it true must call wake() afterwards; wake()
  // reaches worker threads only, so a thread without a context may sleep until its deadline.
  // Returns false if the deadline came first.
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline);
  // Blocks until no operation of `done` is left, and returns its status(): OK or the first failure.
  // Returns DEADLINE_EXCEEDED if the deadline came first. The operations then continue, and `done`
  // must live until they end. (An operation may itself have failed with that code; done.done()
  // tells.)
  [[nodiscard]] absl::Status wait(const Synchronizer& done, Deadline deadline);
  // As wait(), for a condition that a plain RDMA WRITE makes true. A plain WRITE does not wake a
  // sleeping thread, so this function polls and never sleeps.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition, Deadline deadline);
  // Wakes worker `index` of this process, so that it re-checks its condition. Also resumes the
  // coroutines of this process that await a Synchronizer (finished(), future.h) without an
  // operation left.
  void wake(ThreadIndex index);

  // Ends the job. Every process calls finalize(), from one thread; the process's other threads have
  // left, or continue to run their calls. Runs all calls in flight, including calls to threads that
  // have left. Blocks until all processes have called finalize() and no call is in flight. From
  // then on no call is accepted. (A call that another thread issues at that moment may be accepted
  // and not run.) The job ends without processes that have failed, and the result is
  // then OK. Errors: DEADLINE_EXCEEDED (the text names the processes that did not call finalize(),
  // or one that did not finish it, in time, or says that calls have not run; this process may call
  // it again), UNAVAILABLE
  // (the other processes consider this process failed, and the job ends without it), those of the
  // bootstrap.
  [[nodiscard]] absl::Status finalize(Deadline deadline);

  // Returns true if finalize() has detected the end of the job: no call is accepted any more.
  [[nodiscard]] bool finalized() const;

  // Returns OK, or UNAVAILABLE with the reason if that process is considered failed.
  [[nodiscard]] absl::Status peer_status(Rank rank) const;

  // Registered memory of the process. Any thread may use the allocator.
  [[nodiscard]] GeneralAllocator& memory();
  // Returns the connection that worker `thread_index` uses to process `rank`, and makes it if
  // necessary. For code that posts its own transfers (one Transmitter per thread) beside calls. The
  // fabric owns the connection. Its Transmitters must be destroyed before the fabric. Do not call
  // repair() on it. Blocks while connecting. Errors: UNAVAILABLE, FAILED_PRECONDITION (refused:
  // another build), INVALID_ARGUMENT (no such rank, or this process's own rank).
  [[nodiscard]] absl::StatusOr<TransmitQueue*> connection(Rank rank, ThreadIndex thread_index = 0);
  // Returns the protection domain of the device through which process `rank` is reached; nullptr
  // for this process, and if there is no such rank.
  [[nodiscard]] const ProtectionDomain* domain(Rank rank) const;

  // Returns the bootstrap of the job. The fabric uses it too, in create() and finalize(), and a
  // Bootstrap is thread-compatible: call it only outside of these functions.
  [[nodiscard]] Bootstrap& bootstrap();
  // Returns the options in effect: those of create(), with the resulting number of queue pairs.
  [[nodiscard]] const FabricOptions& options() const;
  // Returns the counters of this process since the fabric was created.
  [[nodiscard]] FabricStatistics statistics() const;
  // Returns a description of the device through which process `rank` is reached; "" for this
  // process.
  [[nodiscard]] std::string device_description(Rank rank) const;
  // Returns the sums over the superpages of all NUMA nodes that this process has used.
  [[nodiscard]] RDMAAllocatorStatistics memory_statistics() const;

 private:
  friend class internal::FabricAccess;
  friend class internal::FabricUse;

  explicit Fabric(std::unique_ptr<internal::FabricCore> core);
  std::shared_ptr<internal::FabricCore> core_;  // the only reference, which FabricUse observes
};

// Returns the fabric whose call the calling thread is running, or nullptr if it runs none.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT Fabric* running_fabric();
// Returns the rank of the process that sent the call that the calling thread is running; kNoRank if
// it runs none.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT Rank running_source();

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FABRIC_H_
