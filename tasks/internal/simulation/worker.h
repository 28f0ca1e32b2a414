// SimulatedWorker: a worker of a simulation. It is the machine below the scheduler's loop
// (scheduler.h), as Worker is in a process. Its tasks are plain data, and it accesses memory in
// virtual time.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tasks/context.h"
#include "tasks/internal/must.h"
#include "tasks/internal/scheduler_state.h"
#include "tasks/internal/simulation/cluster.h"

namespace cariama::tasks {

// RemoteAccess of a simulated worker. The worker's fiber is suspended while it waits for an
// operation.
class SimulatedAccess : public RemoteAccess {
 public:
  SimulatedAccess(Cluster& cluster, SimulatedWorker& worker, int rank)
      : RemoteAccess(rank, cluster.options().workers), cluster_(cluster), worker_(worker) {}

  using RemoteAccess::read;
  [[nodiscard]] absl::Status read(int peer, std::span<const ReadPiece> pieces) override;
  [[nodiscard]] absl::Status write(int peer, uint64_t address, const void* local,
                                   size_t bytes) override;
  [[nodiscard]] absl::StatusOr<uint64_t> fetch_add(int peer, uint64_t address,
                                                   uint64_t addend) override;
  [[nodiscard]] absl::StatusOr<uint64_t> compare_swap(int peer, uint64_t address, uint64_t expected,
                                                      uint64_t desired) override;
  [[nodiscard]] absl::Status post_add(int peer, uint64_t address, uint64_t addend) override;
  [[nodiscard]] absl::Status add_segment(size_t, const MemorySource&) override {
    return absl::OkStatus();
  }
  [[nodiscard]] void* mapped(int, uint64_t, size_t) override { return nullptr; }

  // Reads the task of `entry` from the peer's stack to `to`. Reports a violation if the task is not
  // there any more when the operation arrives.
  void read_frames(int peer, const PublicEntry& entry, SimulatedTask& to);
  // Reads a suspended task from `block`, which `frames` refers to, to `to`.
  void read_parked(SimulatedBlock& block, Reference frames, SimulatedTask& to);
  void release(Reference block);

  // Executes the operation that the worker waits for, when it arrives at its target. Called by the
  // cluster.
  void execute();

 private:
  struct Operation {
    enum class Kind : uint8_t { kRead, kAdd, kSwap, kFrames, kParked } kind{};
    int peer = 0;
    std::span<const ReadPiece> pieces{};
    size_t next_piece = 0;
    uint64_t address = 0;
    uint64_t operand = 0;
    uint64_t expected = 0;
    uint64_t result = 0;
    size_t bytes = 0;  // size of the answer
    bool had_turn = false;
    PublicEntry entry{};
    SimulatedTask* frames = nullptr;
  };
  uint64_t perform(const Operation& operation);
  [[nodiscard]] int64_t arrival(int peer);
  void apply(Operation& operation);
  void maybe_pause();

  Cluster& cluster_;
  SimulatedWorker& worker_;
  Operation operation_;
  int64_t last_arrival_ = 0;
};

class SimulatedWorker : public SchedulerState {
 public:
  // Creates a worker with the scheduler that the options of the cluster ask for.
  [[nodiscard]] static std::unique_ptr<SimulatedWorker> create(Cluster& cluster, int rank);
  SimulatedWorker(Cluster& cluster, int rank);
  virtual ~SimulatedWorker() = default;
  SimulatedWorker(const SimulatedWorker&) = delete;
  SimulatedWorker& operator=(const SimulatedWorker&) = delete;

  void start(std::byte* stack, size_t bytes) { fiber_.start(stack, bytes, &main_entry, this); }
  void install_root(const SimulatedFrame& root, Reference record);
  void resume() { fiber_.resume(); }
  [[nodiscard]] SimulatedAccess& access() { return access_; }
  [[nodiscard]] SimulatedArea& area() { return area_; }
  [[nodiscard]] const TaskStatistics& statistics() const { return statistics_; }
  [[nodiscard]] int64_t worked() const { return worked_; }
  // Returns the task on this worker's stack with entry `entry`, or nullptr.
  [[nodiscard]] const SimulatedTask* find(const PublicEntry& entry) const;

  // Returns how far the worker's own time is ahead of the clock, in picoseconds.
  [[nodiscard]] int64_t ahead() const { return ahead_; }
  // Advances the worker's own time. If it is a quantum ahead, waits until the clock has reached it.
  void spend(SimTime time) {
    ahead_ += time.count();
    if (ahead_ >= cluster_.options().quantum.count()) sleep(0);
  }
  // Suspends the fiber until the clock is at the worker's own time plus `time`. Events of other
  // workers happen meanwhile.
  void sleep(int64_t time);
  // Suspends the fiber until the outstanding operation is answered.
  void wait_for_operation() {
    ahead_ = 0;
    next_run_ = kNever;
    fiber_.suspend();
  }
  // Schedules the worker to continue at `time`. Replaces an earlier schedule.
  void run_at(int64_t time);
  // The outstanding operation has been executed; its answer arrives after `latency`.
  void answer(int64_t latency);
  [[nodiscard]] bool runs_at(int64_t time) const { return next_run_ == time; }
  // A thief has written the steal request word: interrupts the running step if it polls.
  void on_steal_request();
  // SimulatedFaults::stops: the worker does not run in [stopped_from, stopped_until).
  int64_t stopped_from = 0;
  int64_t stopped_until = 0;

 protected:
  // Implemented by the scheduler (scheduler.h).
  virtual void work(const RunEnd& end) = 0;
  virtual void serve_steal_request() = 0;
  [[nodiscard]] virtual bool take_parent_back() = 0;

  // Called by the scheduler. worker.h of the process documents these functions.
  struct PublicWords {
    PublicPart& part;
    PublicPartCopy& copy;
  };
  [[nodiscard]] PublicWords public_words() { return {area_.public_part, area_.public_part_copy}; }
  [[nodiscard]] ForkState& fork_state() { return fork_state_; }
  [[nodiscard]] ExceptionState& exceptions() { return exceptions_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Reference new_record();
  void run(const Context& context);
  void install(uint64_t top, uint64_t report, const Context& context);
  void copy_out(Suspended& task);
  void copy_in(const Suspended& task);
  void drop_copy(const Suspended& task) { cluster_.free(block_of(Reference(task.frames))); }
  [[nodiscard]] static uint64_t frames_of(const PublicEntry& entry) { return entry.sp; }
  void read_frames(int victim, uint64_t from, const PublicEntry& entry);
  void await_thief(uint64_t round);
  void note_taken(int /*victim*/) {}
  void before_publication(uint64_t /*begin*/, uint64_t /*end*/) {}
  void on_search_round() {}
  [[nodiscard]] bool has_sleepers() const { return false; }
  void wake_sleepers(uint32_t /*entries*/) {}
  struct StealTimer {
    explicit StealTimer(SimulatedWorker& /*worker*/) {}
    void mark(size_t /*step*/) {}
    void sample(uint64_t /*bytes*/, uint64_t /*trips*/) {}
  };
  class Search {
   public:
    explicit Search(SimulatedWorker& worker);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    void pause(uint64_t round);

   private:
    SimulatedWorker& worker_;
    const int64_t begin_;
  };

  // Accesses of the owner to its own public part. Events of other workers may happen between two
  // accesses.
  struct OwnMemory {
    SimulatedWorker& worker;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      worker.own_access();
      return word.load(std::memory_order_acquire);
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      worker.own_access();
      word.store(value, std::memory_order_release);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const;
  };

  Cluster& cluster_;
  const int rank_;
  SimulatedArea area_{};
  SimulatedAccess access_;
  OwnMemory memory_;
  PublicPartOwner<OwnMemory> public_part_;
  JoinProtocol joins_;

 private:
  static void main_entry(void* argument);
  void own_access();
  void compute(SimTime cost, bool polls);
  void fork(const SimulatedFrame& child);
  // Joins the newest outstanding child of the running task. Returns false if the task must wait.
  [[nodiscard]] bool join_child();
  // Ends the running task. Returns false if its parent does not continue here.
  [[nodiscard]] bool end_task();
  void pause(int64_t time);
  void resize_deque(size_t entries);
  [[nodiscard]] SimulatedBlock& block_of(Reference reference) {
    return cluster_.block_at(reference.address());
  }

  Fiber fiber_;
  // stack_[i] is the task at position i of the deque (scheduler_state.h). Tasks that have ended, or
  // that thieves have taken, stay until the next install().
  std::vector<SimulatedTask> stack_;
  std::vector<uint64_t> entry_words_;
  std::vector<uint64_t> report_words_;
  ForkState fork_state_{};
  ExceptionState exceptions_{};
  SimulatedTask incoming_;  // buffer for a stolen or resumed task
  int64_t ahead_ = 0;
  static constexpr int64_t kNever = -1;
  int64_t next_run_ = kNever;
  bool polls_ = false;  // the running step serves steal requests
  // The worker is searching for work. Its next operation then depends only on the answers that it
  // gets. So answer() resumes it immediately, and the worker runs ahead of the clock until it
  // accesses its own memory. This halves the number of events of idle workers, which are most of
  // all events.
  bool seeks_ = false;
  int64_t worked_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_
