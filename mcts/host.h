// Host: the threads that run a search, T workers in each of the P processes of a job.
//
//   auto host = Host::create(nullptr, {.threads = 2});    // this process alone
//   Search<ConnectFour> search(**host);                   // search.h
//
//   auto fabric = Fabric::create();                       // a job of several processes
//   auto host = Host::create(fabric->get());
//   if ((*host)->rank() != 0) return (*host)->serve().ok() ? 0 : 1;  // until rank 0 calls end()
//   Search<ConnectFour> search(**host);
//   ...
//   (*host)->end();                                       // serve() returns in the other ranks
//
// program.h contains these steps for a program that runs one search.
//
// The thread that creates the host is worker 0 of its process; the host starts the other workers.
// Workers without work sleep. Worker 0 works only within serve(), and within functions of Search:
// between two of them, rank 0's worker 0 runs no calls of searches, unless it runs the calls of the
// fabric (Fabric::process_calls()). A program with an event loop calls Search::poll() in it.
//
// Lifetime. The host must be destroyed by the thread that created it, before its fabric and after
// its Search objects. Threads of the program that are not workers may use only the functions
// that are marked "Thread-safe", and rank(), size(), threads(), id(), alive() and living().
#ifndef CARIAMA_MCTS_HOST_H_
#define CARIAMA_MCTS_HOST_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"
#include "mcts/engine/peer_aggregators.h"
#include "mcts/export.h"
#include "mcts/random.h"

namespace cariama::mcts {

class Host;

// Base of the instances of a distributed object: an object with one instance in each process, which
// a call finds by its type (Host::local_here()). The host owns the instances of its process and
// destroys them, in any order, after its workers have ended.
class CARIAMA_MCTS_EXPORT LocalInstance {
 public:
  virtual ~LocalInstance() = default;
  // Handles the failure of a process: ends all operations that wait for it. Called by worker 0.
  virtual void lost(Rank) {}
};

// One object of type T for each worker of a process. Requires: T has the constructor
// T(Host&, uint32_t index).
template <typename T>
class PerThread final : public LocalInstance {
 public:
  explicit PerThread(Host& host);
  [[nodiscard]] T& operator[](uint32_t index) { return *all_[index]; }
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<T>> all_;
};

// A process's part of the search for one type of game, as far as the host needs it. The workers of
// the process call it.
class CARIAMA_MCTS_EXPORT HostedSearch : public LocalInstance {
 public:
  // Runs a few rollouts, for some tens of microseconds, as worker `thread`. Returns false if there
  // was no work.
  virtual bool work(uint32_t thread) = 0;
  // Returns true if work(thread) would find work. Called by worker `thread`.
  [[nodiscard]] virtual bool has_work(uint32_t thread) = 0;
  // Called by worker 0 of rank 0 when process `rank` has called Host::serve(). Sends the last
  // command again, unless the process has answered it.
  virtual void repeat_command(Rank rank) = 0;
};

// Returns a new small number, unique in this process. Each type of instance takes one as its index
// in HostThread::instances. Numbers of the same type may differ between processes.
[[nodiscard]] CARIAMA_MCTS_EXPORT size_t new_instance_slot();
template <typename T>
[[nodiscard]] size_t instance_slot() {
  static const size_t slot = new_instance_slot();
  return slot;
}

namespace internal {
// Returns the error that stands for an exception of a search: INVALID_ARGUMENT for
// std::invalid_argument, RESOURCE_EXHAUSTED for std::bad_alloc, INTERNAL for all others.
[[nodiscard]] CARIAMA_MCTS_EXPORT absl::Status status_of(const std::exception_ptr& exception);
}  // namespace internal

// The state of one worker.
struct HostThread {
  explicit HostThread(uint32_t processes) : posts(processes) {}

  Host* host = nullptr;
  uint32_t index = 0;
  std::unique_ptr<ThreadContext> context;        // nullptr in a host without a fabric
  PostCounts posts;                              // outlives `aggregators`
  std::unique_ptr<PeerAggregators> aggregators;  // nullptr in a host without a fabric
  uint32_t receptions = 0;                       // calls that the worker is running
  bool failed = false;                           // its function threw: it runs calls only
  std::atomic<uint64_t> deaths{0};               // the last value of Host::deaths_ that it has read
  std::atomic<int64_t> idle_ns{0};               // time that it has slept
  std::vector<LocalInstance*> instances;         // cache of Host::local_here(), by instance_slot()
  Random random{0};                              // for rollouts and new nodes; each search seeds it
};

struct HostOptions {
  // Number of workers in a host without a fabric. With a fabric it is Fabric::threads().
  uint32_t threads = 1;
  Aggregation aggregation = Aggregation::kTraditional;
  // Rank 0: time in which a process has to answer a command of a search. Then this search and all
  // later searches run without the process, as after its death; its serve() returns UNAVAILABLE. A
  // function of the game or of an evaluator must not take longer. Also the time after which one of
  // two processes that have lost each other is left out. (The fabric does not consider the
  // process dead: see FabricOptions::lease.)
  std::chrono::milliseconds patience{10'000};
};

class CARIAMA_MCTS_EXPORT Host {
 public:
  // Creates the host and starts its workers. fabric: nullptr for a search in this process alone.
  // Otherwise the call is collective over the processes of the fabric, and requires that the fabric
  // outlives the host and that no thread has a context (Fabric::init_thread). A search waits until
  // all processes have called serve(), at most for HostOptions::patience. Each process connects to
  // all others, which takes at most FabricOptions::timeout for each one that does not answer.
  // Errors: those of Fabric::init_thread, and INVALID_ARGUMENT for zero threads.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Host>> create(
      Fabric* fabric, const HostOptions& options = {});
  // Ends the workers and closes their channels; blocks until both are done. Requires: the calling
  // thread has created the host.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return num_threads_; }
  [[nodiscard]] std::chrono::milliseconds patience() const { return options_.patience; }
  // Returns the id of worker `index` of process `rank`.
  [[nodiscard]] ThreadId id(Rank rank, ThreadIndex index) const {
    return rank * num_threads_ + index;
  }
  [[nodiscard]] bool alive(Rank rank) const { return !dead_[rank].load(std::memory_order_acquire); }
  // Returns the number of processes that are alive.
  [[nodiscard]] uint32_t living() const;
  // Returns a hash of the set of dead processes, to compare two sets; not their number. 0: none has
  // died.
  [[nodiscard]] uint64_t dead_set_hash() const;
  // Returns the hash of the set that consists of `rank`. The hash of a set is the exclusive or of
  // those of its processes.
  [[nodiscard]] static uint64_t dead_hash(Rank rank) { return Random::mix(uint64_t{rank} + 1); }

  // Called by worker 0 of each rank other than 0. Blocks and works until rank 0 calls end().
  // Returns at once if rank 0 has called it before, also if this process creates its host after
  // that.
  // Returns UNAVAILABLE if rank 0 dies, or has left out this process. Throws an exception that a
  // function of the game throws in a worker of this process, as step() and work_until() do. Then
  // this process cannot complete the search: destroy the host.
  [[nodiscard]] absl::Status serve();
  // Called by worker 0 of rank 0: ends the workers of all processes; serve() returns there.
  // Idempotent.
  void end();

  // ---- Used by the search implementations.

  // Returns the state of the calling worker. Requires: the calling thread is a worker.
  [[nodiscard]] static HostThread& here();
  [[nodiscard]] HostThread& thread(uint32_t index) { return *threads_[index]; }

  // Returns this process's instance of T. The first call creates it, as T(host); the constructor
  // may call this function for other types. Thread-safe.
  template <typename T>
  [[nodiscard]] T& local() {
    return static_cast<T&>(local(typeid(T), [](Host& host) -> std::unique_ptr<LocalInstance> {
      return std::make_unique<T>(host);
    }));
  }
  // Returns the instance of T of the calling worker's process. Without a lock after the first call
  // of each worker. Requires: the calling thread is a worker.
  template <typename T>
  [[nodiscard]] static T& local_here() {
    HostThread& thread = here();
    // Acquire: pairs with the release in hand_back().
    static_cast<void>(thread.host->handed_back_.load(std::memory_order_acquire));
    const size_t slot = instance_slot<T>();
    if (thread.instances.size() <= slot) thread.instances.resize(slot + 1, nullptr);
    LocalInstance*& known = thread.instances[slot];
    if (known == nullptr) known = &thread.host->template local<T>();
    return static_cast<T&>(*known);
  }
  // Returns the sum of the counts of posts of this process, without those to and from the processes
  // that it has marked as dead.
  struct Posts {
    uint64_t begun = 0;
    uint64_t ended = 0;
  };
  [[nodiscard]] Posts posts() const;
  // Called by worker 0, repeatedly. Returns true if each worker has been outside of calls at some
  // moment since a process was last marked as dead. Then no worker runs a call of a dead process,
  // and accepts none any more. Wakes the workers that have not been outside of calls.
  [[nodiscard]] bool passed();
  // Makes the workers of this process call work() of this search from now on.
  void activate(HostedSearch* search);
  // Called by worker 0 of rank 0: `search` has sent the last command.
  void note_command(HostedSearch* search) { commander_ = search; }
  // Wakes all sleeping workers of this process, except the calling one. They poll for work.
  void wake_workers();

  // Before and after a search, worker 0 accesses the state of a search that the other workers of
  // its process access during the search. The other workers are idle then: rank 0 knows this from
  // the calls that they sent. So the happens-before order between worker 0 and the other workers of
  // a process exists only through messages of other processes. take_over() and hand_back()
  // establish this order within each process. So its correctness can be checked without the other
  // processes, also by a race detector, which sees one process.
  //
  // Called by worker 0. Acquire: everything that another worker of this process did before it sent
  // a call happens before the return, if that call led to this command (pairs with the release in
  // PeerAggregators::count_message()).
  void take_over() const;
  // Called by worker 0. Release: everything before this call happens before every later
  // local_here() of another worker that runs a call sent as a consequence.
  void hand_back();

  // Called by worker 0. Runs one iteration of the worker loop: runs received calls, then work().
  // Returns false if there was neither a call nor work. Throws the exception of work(), or of a
  // call, in any worker of this process. Within a call, only the exception of its own work().
  bool step();
  // Called by worker 0. Runs calls and work until the condition holds. Returns false if the
  // deadline passes first.
  [[nodiscard]] bool work_until(const std::function<bool()>& condition, Deadline deadline);
  // As work_until(), for HostOptions::patience. Time in which this process itself was stopped or
  // got no processor time does not count.
  [[nodiscard]] bool work_patiently(const std::function<bool()>& condition);
  // Called by worker 0 of rank 0, not within a call. All processes mark this one as dead: it has
  // not answered, or another process has lost it.
  void leave_out(Rank late);
  void leave_out_lost(Rank lost);
  // One search runs at a time in a host. Begins one, until end_search(). Errors:
  // FAILED_PRECONDITION if a search is running, in a thread other than worker 0 of rank 0, within a
  // call, and after end(). The message begins with `function`, the function that the user called.
  [[nodiscard]] absl::Status begin_search(std::string_view function);
  void end_search() { searching_ = false; }
  // Returns the error that begin_search() would return. For functions that change the tree between
  // two searches.
  [[nodiscard]] absl::Status check_idle(std::string_view function) const;
  // Returns FAILED_PRECONDITION in a thread other than worker 0 of rank 0, and within a call.
  [[nodiscard]] absl::Status check_caller(std::string_view function) const;
  // Called by worker 0 of rank 0. Reports, once for each process, that `rank` has completed no
  // rollout of a search that has lasted for `seconds`.
  void report_no_part(Rank rank, double seconds) const;

  // Called by worker 0 of rank 0. A search that has returned its result before all processes have
  // ended their parts registers the function that ends it. The next search calls end_last_search()
  // before it uses the tree.
  void end_later(std::function<void()> end) { unended_ = std::move(end); }
  void end_last_search() {
    if (auto end = std::exchange(unended_, nullptr)) end();
  }

 private:
  friend class internal::Reception;
  using InstanceMaker = std::unique_ptr<LocalInstance> (*)(Host&);

  Host(Fabric* fabric, const HostOptions& options);
  LocalInstance& local(std::type_index type, InstanceMaker make);
  [[nodiscard]] absl::Status enter(uint32_t index);
  void leave(uint32_t index);
  // Records the exception that is being handled: worker 0 throws it.
  void note_failure(HostThread& self);
  void run_worker(uint32_t index);
  bool round(HostThread& self);
  void sleep(HostThread& self, Deadline deadline, const std::function<bool()>& until = nullptr);
  [[nodiscard]] bool may_sleep(const HostThread& self);
  void look_for_deaths();
  void mark_dead(Rank rank);
  void end_part_of(Rank rank);
  // Rank 0: tells process `to` that the searches have left out process `late`.
  void send_left_out(Rank to, Rank late);
  // Rank 0: process `rank` has called serve(). Repeats the call that it was left out, or else the
  // last command.
  void on_serving(Rank rank);

  Fabric* fabric_;
  Rank rank_ = 0;
  uint32_t size_ = 1;
  uint32_t num_threads_;
  const HostOptions options_;
  std::vector<std::unique_ptr<HostThread>> threads_;
  std::vector<std::thread> others_;
  std::vector<std::atomic<bool>> dead_;
  const uint64_t number_;  // of this host, among those of its process with this fabric; from 1
  // Guards instances_ and failure_. Recursive: the constructor of an instance may create another.
  std::recursive_mutex mutex_;
  std::unordered_map<std::type_index, std::unique_ptr<LocalInstance>> instances_;
  std::atomic<HostedSearch*> active_{nullptr};
  HostedSearch* commander_ = nullptr;     // see note_command(). Used by worker 0
  std::atomic<uint64_t> handed_back_{0};  // number of hand_back() calls
  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};  // another worker's work(), or a call, has thrown
  std::exception_ptr failure_;       // its exception. Written before failed_, once
  bool ended_ = false;
  bool searching_ = false;                // used by worker 0
  bool left_out_ = false;                 // by rank 0
  std::vector<Rank> left_out_by_rank_0_;  // not yet marked as dead. Used by worker 0
  std::function<void()> unended_;
  std::atomic<uint64_t> deaths_{0};  // number of processes that are marked as dead
  // Armed by each worker that sleeps. With a fabric it stands for the doorbells of Fabric::wait().
  Doorbell doorbell_;
  uint64_t rounds_ = 0;
};

template <typename T>
PerThread<T>::PerThread(Host& host) {
  for (uint32_t i = 0; i < host.threads(); ++i) all_.push_back(std::make_unique<T>(host, i));
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_HOST_H_
