// A worker of a simulation: the scheduler's loop (scheduler.h) over tasks that are plain data, with
// the real deque, join and victims.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/victims.h"

namespace cariama::tasks {

// The network as one worker sees it. Its fiber is suspended while an operation is under way.
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

  // Reads the frames [sp, top) of the task whose child reports to `record`, as they are then in the
  // peer's region, to `to`.
  void read_frames(int peer, const PublicEntry& entry, SimulatedTask& to);
  // ... or of a suspended one.
  void read_parked(SimulatedBlock& block, Reference frames, SimulatedTask& to);
  void release(Reference block);

  // The operation that the worker waits for is at its target. Called by the cluster.
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
    size_t bytes = 0;  // of the answer
    bool had_turn = false;
    PublicEntry entry{};
    SimulatedTask* frames = nullptr;
  };
  uint64_t perform(const Operation& operation);
  [[nodiscard]] int64_t arrival(int peer);
  void apply(Operation& operation);
  void hold_up();

  Cluster& cluster_;
  SimulatedWorker& worker_;
  Operation operation_;
  int64_t last_arrival_ = 0;
};

class SimulatedWorker {
 public:
  SimulatedWorker(Cluster& cluster, int rank);
  SimulatedWorker(const SimulatedWorker&) = delete;
  SimulatedWorker& operator=(const SimulatedWorker&) = delete;

  void start(std::byte* stack, size_t bytes) { fiber_.start(stack, bytes, &main_entry, this); }
  void install_root(const SimulatedFrame& root, Reference record);
  void resume() { fiber_.resume(); }
  [[nodiscard]] SimulatedAccess& access() { return access_; }
  [[nodiscard]] SimulatedArea& area() { return area_; }
  [[nodiscard]] TaskStatistics statistics() const;
  [[nodiscard]] int64_t worked() const { return worked_; }
  // The task on its stack whose entry is `entry`, or nullptr.
  [[nodiscard]] const SimulatedTask* find(const PublicEntry& entry) const;

  // How far its own time is ahead of the clock.
  [[nodiscard]] int64_t ahead() const { return ahead_; }
  void spend(SimTime time) {
    ahead_ += time.count();
    if (ahead_ >= cluster_.options().quantum.count()) sleep(0);
  }
  // Lets `time` pass, and what others do meanwhile happen.
  void sleep(int64_t time);
  // Waits for an operation to be done.
  void wait_for_operation() {
    ahead_ = 0;
    next_run_ = kNever;
    fiber_.suspend();
  }
  // It goes on at `time`: any earlier plan is void.
  void run_at(int64_t time);
  // What it waits for has happened, and is known to it after `latency`.
  void answer(int64_t latency);
  [[nodiscard]] bool runs_at(int64_t time) const { return next_run_ == time; }
  // Somebody has written its attention: a stretch that polls is interrupted.
  void was_asked();
  // Of a stop: it does not run before then.
  int64_t stopped_from = 0;
  int64_t stopped_until = 0;

 private:
  // The owner's side of its own shelf. Anything may happen between two accesses.
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

  static void main_entry(void* argument);
  void own_access();
  void run();
  void compute(SimTime cost, bool polls);
  void fork(const SimulatedFrame& child);
  void attend();
  [[nodiscard]] bool take_parent_back();
  void join_one();
  void end_task();
  void find_work();
  void pause(int64_t time);
  void settle();
  [[nodiscard]] bool steal(int victim);
  void install(const Suspended& task);
  [[nodiscard]] bool resume_waiting();
  void begin_region(uint64_t report);
  [[nodiscard]] Reference new_record();
  [[nodiscard]] SimulatedBlock& block_of(Reference reference) {
    return cluster_.block_at(reference.address());
  }

  Cluster& cluster_;
  const int rank_;
  SimulatedArea area_{};
  SimulatedAccess access_;
  OwnMemory memory_;
  ShelfOwner<OwnMemory> shelf_;
  JoinProtocol joins_;
  Victims victims_;
  Fiber fiber_;

  // As in the scheduler: the task at position i, and the record that it reports to. Positions below
  // floor_ are public or stolen, up to the last but one: their continuations are entries.
  std::vector<SimulatedTask> stack_;
  std::vector<uint64_t> reports_;
  size_t floor_ = 0;
  bool has_task_ = false;  // the last one runs
  SimulatedTask incoming_;
  // JoinPolicy::kWaitQueue: joiners that this worker itself looks after, and for whom they wait.
  struct Waiting {
    Suspended task;
    Reference record;
  };
  std::deque<Waiting> waiting_;
  uint64_t taken_ = 0;
  int64_t ahead_ = 0;
  static constexpr int64_t kNever = -1;
  int64_t next_run_ = kNever;
  bool polls_ = false;  // it is in a stretch that polls
  // It looks for work: what it does next depends on nothing but the answers that it gets, so it
  // gets them at once, and is ahead of the clock until it looks at its own memory. That halves the
  // events of those who have nothing to do, which are most of all events.
  bool seeks_ = false;
  int64_t worked_ = 0;
  TaskStatistics statistics_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_
