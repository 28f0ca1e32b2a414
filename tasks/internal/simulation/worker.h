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
#include "tasks/internal/simulation/machine.h"

namespace cariama::tasks {

class SimulatedWorker : public SimulatedMachine, public SchedulerState {
 public:
  // Creates a worker with the scheduler that the options of the cluster ask for.
  [[nodiscard]] static std::unique_ptr<SimulatedWorker> create(Cluster& cluster, int rank);
  SimulatedWorker(Cluster& cluster, int rank);

  void install_root(const SimulatedFrame& root, Reference record);
  [[nodiscard]] std::byte* memory() override { return reinterpret_cast<std::byte*>(&area_); }
  [[nodiscard]] const SimulatedTask* find(const PublicEntry& entry) const override;
  [[nodiscard]] const TaskStatistics& statistics() const { return statistics_; }

 protected:
  void main() override { work(kEndless); }
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

  SimulatedArea area_{};
  OwnMemory memory_;
  PublicPartOwner<OwnMemory> public_part_;
  JoinProtocol joins_;

 private:
  static const RunEnd kEndless;
  void own_access();
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

  // stack_[i] is the task at position i of the deque (scheduler_state.h). Tasks that have ended, or
  // that thieves have taken, stay until the next install().
  std::vector<SimulatedTask> stack_;
  std::vector<uint64_t> entry_words_;
  std::vector<uint64_t> report_words_;
  ForkState fork_state_{};
  ExceptionState exceptions_{};
  SimulatedTask incoming_;  // buffer for a stolen or resumed task
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_WORKER_H_
