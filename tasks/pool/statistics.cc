#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tasks/pool.h"

namespace cariama {
namespace {

// The list of all summed counters but those by level.
struct NamedCounter {
  const char* name;
  uint64_t PoolStatistics::*value;
};
constexpr NamedCounter kPoolSums[] = {
    {"steals", &PoolStatistics::steals},
    {"stolen_tasks", &PoolStatistics::stolen_tasks},
    {"attempts", &PoolStatistics::attempts},
    {"blocked", &PoolStatistics::blocked},
    {"busy", &PoolStatistics::busy},
    {"rejected", &PoolStatistics::rejected},
    {"leapfrog_attempts", &PoolStatistics::leapfrog_attempts},
    {"leapfrog_steals", &PoolStatistics::leapfrog_steals},
    {"detections", &PoolStatistics::detections},
    {"handed_over", &PoolStatistics::handed_over},
    {"requests", &PoolStatistics::requests},
    {"blockings", &PoolStatistics::blockings},
    {"syncs_waited", &PoolStatistics::syncs_waited},
    {"syncs_stolen", &PoolStatistics::syncs_stolen},
    {"round_trips", &PoolStatistics::round_trips},
};
struct NamedLevels {
  const char* name;
  std::array<uint64_t, kVictimLevels> PoolStatistics::*values;
};
constexpr NamedLevels kPoolLevels[] = {
    {"attempts_", &PoolStatistics::tried},
    {"steals_", &PoolStatistics::stolen},
    {"steal_ns_", &PoolStatistics::steal_ns},
    {"failed_ns_", &PoolStatistics::failed_ns},
};
constexpr const char* kLevelNames[kVictimLevels] = {"core_complex", "numa_node", "host", "network"};
static_assert(sizeof(PoolStatistics) ==
                  (std::size(kPoolSums) + 1 + std::size(kPoolLevels) * kVictimLevels) *
                      sizeof(uint64_t),
              "a counter is missing above");

}  // namespace

void PoolStatistics::add(const PoolStatistics& other) {
  for (const NamedCounter& sum : kPoolSums) this->*sum.value += other.*sum.value;
  for (const NamedLevels& levels : kPoolLevels) {
    for (size_t i = 0; i < kVictimLevels; ++i) {
      (this->*levels.values)[i] += (other.*levels.values)[i];
    }
  }
  deepest_deque = std::max(deepest_deque, other.deepest_deque);
}

std::vector<std::pair<std::string, uint64_t>> PoolStatistics::counters() const {
  std::vector<std::pair<std::string, uint64_t>> all;
  for (const NamedCounter& sum : kPoolSums) all.emplace_back(sum.name, this->*sum.value);
  all.emplace_back("deepest_deque", deepest_deque);
  for (const NamedLevels& levels : kPoolLevels) {
    for (size_t i = 0; i < kVictimLevels; ++i) {
      all.emplace_back(std::string(levels.name) + kLevelNames[i], (this->*levels.values)[i]);
    }
  }
  return all;
}

}  // namespace cariama
