// Cluster: the state that all machines of a simulation share: the clock, the memory of the
// machines, and the network.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/join_protocol.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/simulation/event_queue.h"
#include "tasks/internal/simulation/fiber.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"
#include "tasks/join_record.h"
#include "tasks/simulation.h"

namespace cariama::tasks {

// The words of a worker that peers access, and the buffers into which the worker reads the memory
// of peers. Corresponds to the scheduler's WorkerArea.
struct SimulatedArea {
  PublicPart public_part;
  PublicPartCopy public_part_copy;
  JoinCopy join_copy;
};

// A task of a simulated worker: the data that its frames would contain.
struct SimulatedTask {
  SimulatedFrame frame{};
  SimulatedCount count{};
  std::vector<uint64_t> outstanding{};  // records of children that were not joined yet
  uint64_t sp = 0;                      // the frames are at the addresses [sp, top)
  uint64_t top = 0;
  bool joins = false;  // the task joins all outstanding children before its next step
  bool ends = false;   // the task ends after joining them
};

// A block of a pinned area: a join record, or the frames of a suspended task. The flags do not
// exist in real blocks; they detect violations of the protocol.
struct SimulatedBlock {
  JoinRecord record{};
  SimulatedTask frames{};
  bool is_live = false;     // the block is allocated
  bool is_taken = false;    // a thief has taken the entry that refers to this record
  bool is_ended = false;    // the child of this record has ended
  bool is_resumed = false;  // the suspended task has been resumed
};

class SimulatedMachine;

class Cluster {
 public:
  using MakeMachine = std::function<std::unique_ptr<SimulatedMachine>(Cluster& cluster, int rank)>;
  // Creates a machine for each worker, with a stack of `stack_bytes` bytes. Errors: as simulate().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Cluster>> create(
      const SimulatedProgram& program, const SimulationOptions& options, size_t stack_bytes,
      const MakeMachine& make);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Starts all machines, and executes events until ended() is true, there is no event, an invariant
  // is violated, or the limit of the virtual time is reached.
  void run_until(const std::function<bool()>& ended);
  // The invariant that was violated first, or "".
  [[nodiscard]] const std::string& violation() const { return violation_; }
  // The sum of the costs of the steps that all machines have computed.
  [[nodiscard]] SimTime work() const;

  // The functions below are called by machines.
  [[nodiscard]] const SimulationOptions& options() const { return options_; }
  // The size of the frames of a task: a stack pointer is a multiple of 8.
  [[nodiscard]] uint64_t frame_bytes() const { return (options_.frame_bytes + 7) / 8 * 8; }
  [[nodiscard]] const SimulatedProgram& program() const { return program_; }
  [[nodiscard]] EventQueue& events() { return events_; }
  [[nodiscard]] SimulatedMachine& machine(int rank) {
    return *machines_[static_cast<size_t>(rank)];
  }
  [[nodiscard]] uint64_t random() { return mixed(random_++); }
  [[nodiscard]] bool happens(double probability) {
    return probability > 0 && static_cast<double>(random() >> 11) * 0x1p-53 < probability;
  }
  [[nodiscard]] int64_t up_to(SimTime most) {
    return most.count() <= 0 ? 0
                             : static_cast<int64_t>(random() % static_cast<uint64_t>(most.count()));
  }
  // Reports the violation of an invariant, which ends the simulation.
  void violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  // Returns the distance of two machines (VictimLevel).
  [[nodiscard]] size_t level(int from, int to) const;
  [[nodiscard]] int64_t latency(int from, int to);
  // Passes an operation that arrives at the host of `rank` at `time` through the port of the host.
  // Returns the time at which the port executes it.
  [[nodiscard]] int64_t through_port(int rank, int64_t time);

  // Allocate and free blocks of pinned areas.
  [[nodiscard]] SimulatedBlock& allocate();
  void free(SimulatedBlock& block);
  // Returns the block that contains `address`. Reports a violation if it is not allocated.
  SimulatedBlock& block_at(uint64_t address);

  // An operation whose machine does not wait for its completion.
  struct Posted {
    int target;
    enum class Kind : uint8_t { kWrite, kAdd, kRelease } kind;
    uint64_t address;
    uint64_t addend;
    size_t bytes;
    std::array<std::byte, 128> data;  // of a write
    std::vector<std::byte> more;      // of a write that is larger than `data`
  };
  void post(int64_t arrival, Posted operation);
  // Returns the location in this process of `address` as used by machine `from` for memory of
  // `rank`.
  [[nodiscard]] void* memory(int from, int rank, uint64_t address);

 private:
  Cluster(const SimulatedProgram& program, const SimulationOptions& options);
  void execute(const Posted& operation);

  const SimulatedProgram& program_;
  const SimulationOptions options_;
  EventQueue events_;
  uint64_t random_;
  std::byte* stacks_ = nullptr;
  size_t stacks_bytes_ = 0;
  std::byte* heap_ = nullptr;
  size_t heap_used_ = 0;
  std::vector<SimulatedBlock*> free_;
  std::vector<std::unique_ptr<SimulatedMachine>> machines_;
  std::vector<int64_t> ports_;  // time from which on each host's port is free
  std::vector<Posted> posted_;
  std::vector<uint32_t> free_posted_;
  std::string violation_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_
