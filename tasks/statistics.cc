#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tasks/runtime.h"

namespace cariama {
namespace {

// The list of all summed counters. The counters by level are handled separately below.
struct Named {
  const char* name;
  uint64_t TaskStatistics::*value;
};
constexpr Named kSums[] = {
    {"steals", &TaskStatistics::steals},
    {"steal_attempts", &TaskStatistics::steal_attempts},
    {"steal_lost", &TaskStatistics::steal_lost},
    {"stolen_bytes", &TaskStatistics::stolen_bytes},
    {"steal_trips", &TaskStatistics::steal_trips},
    {"stolen_from", &TaskStatistics::stolen_from},
    {"published", &TaskStatistics::published},
    {"taken_back", &TaskStatistics::taken_back},
    {"suspensions", &TaskStatistics::suspensions},
    {"suspended_bytes", &TaskStatistics::suspended_bytes},
    {"joins_waited", &TaskStatistics::joins_waited},
    {"resumed", &TaskStatistics::resumed},
    {"resumed_remote", &TaskStatistics::resumed_remote},
    {"records", &TaskStatistics::records},
    {"idle_ns", &TaskStatistics::idle_ns},
    {"wakeable_sleeps", &TaskStatistics::wakeable_sleeps},
    {"pinned_bytes", &TaskStatistics::pinned_bytes},
};
constexpr const char* kLevels[kVictimLevels] = {"core_complex", "numa_node", "host", "network"};
static_assert(sizeof(TaskStatistics) ==
                  (std::size(kSums) + 2 + 2 * kVictimLevels) * sizeof(uint64_t),
              "a counter is missing above");

}  // namespace

void TaskStatistics::add(const TaskStatistics& other) {
  for (const Named& sum : kSums) this->*sum.value += other.*sum.value;
  for (size_t i = 0; i < kVictimLevels; ++i) {
    tried[i] += other.tried[i];
    stolen[i] += other.stolen[i];
  }
  stack_high_water = std::max(stack_high_water, other.stack_high_water);
  stack_reserved = std::max(stack_reserved, other.stack_reserved);
}

std::vector<std::pair<std::string, uint64_t>> TaskStatistics::counters() const {
  std::vector<std::pair<std::string, uint64_t>> all;
  for (const Named& sum : kSums) all.emplace_back(sum.name, this->*sum.value);
  for (size_t i = 0; i < kVictimLevels; ++i) {
    all.emplace_back(std::string("attempts_") + kLevels[i], tried[i]);
    all.emplace_back(std::string("steals_") + kLevels[i], stolen[i]);
  }
  all.emplace_back("stack_high_water", stack_high_water);
  all.emplace_back("stack_reserved", stack_reserved);
  return all;
}

}  // namespace cariama
