// The phases of the jobs of the sweep of faults (fault_sweep_test.cc). Each phase uses one group of
// protocols, and returns its first error.
#ifndef CARIAMA_TESTS_SWEEP_TESTING_PHASES_H_
#define CARIAMA_TESTS_SWEEP_TESTING_PHASES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dtutils/process_group.h"

namespace cariama::testing {

inline constexpr uint32_t kSweepProcesses = 3;
// The rank at which the faults occur. Rank 0 combines the results of many protocols, rank 2 is a
// leaf of their trees.
inline constexpr uint32_t kSweepVictim = 1;

// Memory that the processes of a job and the test share.
struct SweepBoard {
  std::atomic<pid_t> victim{0};
  std::atomic<bool> reached{false};          // the victim has reached the step
  std::atomic<int> rounds{0};                // of a phase, which rank 0 has decided to begin
  std::atomic<bool> enough_rounds{false};    // rank 0 begins no further one
  std::atomic<uint32_t> phase_ended{0};      // processes that have ended the phase
  std::atomic<bool> survivors_ended{false};  // rank 0 has ended its program
  std::atomic<bool> victim_ended{false};     // the victim has executed its whole program
  std::atomic<uint32_t> finalized{0};        // processes whose finalize() succeeded
};

struct SweepMember {
  Fabric& fabric;
  std::unique_ptr<ThreadContext> self;
  SweepBoard& board;

  [[nodiscard]] uint32_t rank() const { return fabric.rank(); }
  [[nodiscard]] uint32_t next() const { return (rank() + 1) % fabric.size(); }
};

struct SweepPhase {
  std::string_view name;
  absl::Status (*run)(SweepMember& member);
  // Events of the trace that begin in the victim, "category: name". Each is a step of a protocol.
  std::vector<std::string_view> steps;
  std::string_view selected;  // the step of a selection, which takes one of each phase
};

// All phases but that of tasks.
[[nodiscard]] std::span<const SweepPhase> sweep_phases();

// The phase of tasks, which need no fabric.
[[nodiscard]] absl::Status run_sweep_tasks(Exchange& exchange, SweepBoard& board);
[[nodiscard]] std::span<const std::string_view> sweep_task_steps();

// Prints a row of the matrix of a cell that took so long, and appends it to the file that the
// environment variable CARIAMA_SWEEP_TABLE names, if it is set.
void print_sweep_row(std::string_view phase, std::string_view step, std::string_view fault,
                     std::string_view transport, bool failed, std::chrono::milliseconds time);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_SWEEP_TESTING_PHASES_H_
