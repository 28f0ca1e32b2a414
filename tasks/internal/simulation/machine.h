// SimulatedMachine: a process of a simulated cluster: its fiber, its own time, and its access to
// the memory of its peers. SimulatedWorker (worker.h) and SimulatedPoolWorker (pool_worker.h) run
// on it.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_MACHINE_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tasks/internal/remote_access.h"
#include "tasks/internal/simulation/cluster.h"
#include "tasks/internal/simulation/fiber.h"

namespace cariama::tasks {

// RemoteAccess of a simulated machine. The machine's fiber is suspended while it waits for an
// operation.
class SimulatedAccess : public RemoteAccess {
 public:
  // An atomic operation on the machine's own memory takes `own_atomic`.
  SimulatedAccess(Cluster& cluster, SimulatedMachine& machine, int rank, SimTime own_atomic)
      : RemoteAccess(rank, cluster.options().workers),
        cluster_(cluster),
        machine_(machine),
        own_atomic_(own_atomic) {}

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

  // Executes the operation that the machine waits for, when it arrives at its target. Called by the
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
  [[nodiscard]] int64_t arrival(int peer, int64_t transfer = 0);
  [[nodiscard]] int64_t transfer_time(size_t bytes) const;
  void apply(Operation& operation);
  void maybe_pause();

  Cluster& cluster_;
  SimulatedMachine& machine_;
  const SimTime own_atomic_;
  Operation operation_;
  int64_t last_arrival_ = 0;
};

class SimulatedMachine {
 public:
  SimulatedMachine(Cluster& cluster, int rank, SimTime own_atomic)
      : cluster_(cluster), rank_(rank), access_(cluster, *this, rank, own_atomic) {}
  virtual ~SimulatedMachine() = default;
  SimulatedMachine(const SimulatedMachine&) = delete;
  SimulatedMachine& operator=(const SimulatedMachine&) = delete;

  void start(std::byte* stack, size_t bytes) { fiber_.start(stack, bytes, &main_entry, this); }
  // Runs the machine until it waits.
  virtual void switch_to() { fiber_.resume(); }
  // The memory that peers access. It has the same layout in every machine of a cluster.
  [[nodiscard]] virtual std::byte* memory() = 0;
  // Returns the task on this machine's stack with entry `entry`, or nullptr.
  [[nodiscard]] virtual const SimulatedTask* find(const PublicEntry& /*entry*/) const {
    return nullptr;
  }
  // Interrupts the running step if it polls, and `address` is the word that it polls. A peer has
  // written to this address.
  void on_write(const void* address);

  [[nodiscard]] SimulatedAccess& access() { return access_; }
  [[nodiscard]] int64_t worked() const { return worked_; }
  // Returns the machine's own time, in picoseconds, and how far it is ahead of the clock.
  [[nodiscard]] int64_t own_time() const { return cluster_.events().now() + ahead_; }
  [[nodiscard]] int64_t ahead() const { return ahead_; }
  // Advances the machine's own time. If it is a quantum ahead, waits until the clock has reached
  // it.
  void spend(SimTime time) {
    ahead_ += time.count();
    if (ahead_ >= cluster_.options().quantum.count()) sleep(0);
  }
  // Suspends the fiber until the clock is at the machine's own time plus `time`. Events of other
  // machines happen meanwhile.
  void sleep(int64_t time);
  // Suspends the fiber until the outstanding operation is answered.
  void wait_for_operation() {
    ahead_ = 0;
    sleep_for_ever();
  }
  // Schedules the machine to continue at `time`. Replaces an earlier schedule.
  void run_at(int64_t time);
  // The outstanding operation has been executed; its answer arrives after `latency`.
  void answer(int64_t latency);
  [[nodiscard]] bool runs_at(int64_t time) const { return next_run_ == time; }
  // SimulatedFaults::stops: the machine does not run in [stopped_from, stopped_until).
  int64_t stopped_from = 0;
  int64_t stopped_until = 0;

 protected:
  // The program of the machine. Must not return.
  virtual void main() = 0;

  void sleep_for_ever() {
    next_run_ = kNever;
    fiber_.suspend();
  }
  // Runs the computation of one step. If it polls, calls serve() at the beginning and whenever a
  // peer has written `polled`.
  template <typename Serve>
  void compute(SimTime cost, bool polls, const void* polled, const Serve& serve) {
    worked_ += cost.count();
    if (!polls || cost < cluster_.options().quantum) return spend(cost);
    for (int64_t left = cost.count(); left > 0;) {
      serve();
      const int64_t begin = own_time();
      polled_ = polled;
      sleep(left);
      polled_ = nullptr;
      left -= own_time() - begin;
    }
  }
  // Returns the time of a pause between two attempts to find work, as idle_pause() does it.
  [[nodiscard]] int64_t pause_time(uint64_t round) const;

  Cluster& cluster_;
  const int rank_;
  SimulatedAccess access_;
  // The machine is searching for work. Its next operation then depends only on the answers that it
  // gets. So answer() resumes it immediately, and the machine runs ahead of the clock until it
  // accesses its own memory. This halves the number of events of idle machines, which are most of
  // all events.
  bool seeks_ = false;
  int64_t ahead_ = 0;

 private:
  static void main_entry(void* argument) {
    Fiber::arrived();
    static_cast<SimulatedMachine*>(argument)->main();
  }

  Fiber fiber_;
  static constexpr int64_t kNever = -1;
  int64_t next_run_ = kNever;
  const void* polled_ = nullptr;  // the word that the running step polls
  int64_t worked_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_MACHINE_H_
