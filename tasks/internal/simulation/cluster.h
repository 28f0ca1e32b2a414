// What all workers of a simulation share: the clock, their memory, and the network between them.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/join_protocol.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/shelf_thief.h"
#include "tasks/internal/simulation/event_queue.h"
#include "tasks/internal/simulation/fiber.h"
#include "tasks/internal/split_deque.h"
#include "tasks/join_record.h"
#include "tasks/simulation.h"

namespace cariama::tasks {

// Of a worker: what peers see, and where their memory is read to. As the scheduler's WorkerArea.
struct SimulatedArea {
  Shelf shelf;
  ShelfCopy shelf_copy;
  JoinCopy join_copy;
};

// A task of a simulated worker: what its frames would hold.
struct SimulatedTask {
  SimulatedFrame frame{};
  SimulatedCount count{};
  std::vector<uint64_t> outstanding{};  // records of children that may have ended or not
  uint64_t sp = 0;                      // of its frames
  uint64_t top = 0;
  bool joins = false;  // waits for its children before it goes on
  bool ends = false;   // ... and has nothing to do then
};

// What lies in pinned areas: a join record, or the frames of a suspended task. What real blocks do
// not have is behind it: what must not happen twice.
struct SimulatedBlock {
  JoinRecord record{};
  SimulatedTask frames{};
  bool is_live = false;
  bool is_taken = false;  // the entry beside this record, by a thief
  bool is_ended = false;  // its child
  bool is_resumed = false;
};

class SimulatedWorker;

class Cluster {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Cluster>> create(
      const SimulatedProgram& program, const SimulationOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  [[nodiscard]] SimulationResult run();

  // For workers.
  [[nodiscard]] const SimulationOptions& options() const { return options_; }
  [[nodiscard]] const SimulatedProgram& program() const { return program_; }
  [[nodiscard]] EventQueue& events() { return events_; }
  [[nodiscard]] SimulatedWorker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }
  [[nodiscard]] uint64_t random() { return mixed(random_++); }
  [[nodiscard]] bool happens(double probability) {
    return probability > 0 && static_cast<double>(random() >> 11) * 0x1p-53 < probability;
  }
  [[nodiscard]] int64_t up_to(SimTime most) {
    return most.count() <= 0 ? 0
                             : static_cast<int64_t>(random() % static_cast<uint64_t>(most.count()));
  }
  void violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  [[nodiscard]] int64_t latency(int from, int to);
  // When an operation that is at the host of `rank` at `time` is executed there.
  [[nodiscard]] int64_t through_port(int rank, int64_t time);

  // Blocks of pinned areas.
  [[nodiscard]] SimulatedBlock& allocate();
  void free(SimulatedBlock& block);
  // Of an address in it; complains if it is gone.
  SimulatedBlock& block_at(uint64_t address);

  // Operations that nobody waits for.
  struct Posted {
    int target;
    enum class Kind : uint8_t { kWrite, kAdd, kRelease } kind;
    uint64_t address;
    uint64_t addend;
    size_t bytes;
    std::array<std::byte, 128> data;
  };
  void post(int64_t arrival, const Posted& operation);
  // Where (rank, address) lies here.
  [[nodiscard]] void* memory(int from, int rank, uint64_t address);

 private:
  Cluster(const SimulatedProgram& program, const SimulationOptions& options);
  void execute(const Posted& operation);

  const SimulatedProgram& program_;
  const SimulationOptions options_;
  EventQueue events_;
  uint64_t random_;
  std::byte* stacks_ = nullptr;
  std::byte* heap_ = nullptr;
  size_t heap_used_ = 0;
  std::vector<SimulatedBlock*> free_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<int64_t> ports_;  // when each is free
  std::vector<Posted> posted_;
  std::vector<uint32_t> free_posted_;
  std::string violation_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_CLUSTER_H_
