// The counters of one worker, which the statistics of a search and the observers of a job read.
#ifndef CARIAMA_MCTS_ENGINE_ROLLOUT_COUNTERS_H_
#define CARIAMA_MCTS_ENGINE_ROLLOUT_COUNTERS_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "dtutils/statistics.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Never reset: observers of the job compute rates from two readings. Only the worker counts; any
// thread may read. The meaning of each counter is that of the member of Statistics with its name.
struct RolloutCounters {
  Counter visits;
  Counter completions;
  Counter handed_over;
  Counter cancelled;
  Counter playouts;
  Counter evaluations;
  Counter evaluation_batches;
  Counter nodes_created_remotely;
  Counter remote_selections;
  Counter deferred_selections;
  Counter sampled_instead;

  struct Entry {
    std::string_view name;
    Counter RolloutCounters::*counter;
    uint64_t Statistics::*member;
  };
  [[nodiscard]] static const auto& entries() {
    using C = RolloutCounters;
    using S = Statistics;
    static constexpr std::array kEntries{
        Entry{"visits", &C::visits, &S::visits},
        Entry{"completions", &C::completions, &S::completions},
        Entry{"handed_over", &C::handed_over, &S::handed_over},
        Entry{"cancelled", &C::cancelled, &S::cancelled},
        Entry{"playouts", &C::playouts, &S::playouts},
        Entry{"evaluations", &C::evaluations, &S::evaluations},
        Entry{"evaluation_batches", &C::evaluation_batches, &S::evaluation_batches},
        Entry{"nodes_created_remotely", &C::nodes_created_remotely, &S::nodes_created_remotely},
        Entry{"remote_selections", &C::remote_selections, &S::remote_selections},
        Entry{"deferred_selections", &C::deferred_selections, &S::deferred_selections},
        Entry{"sampled_instead", &C::sampled_instead, &S::sampled_instead}};
    return kEntries;
  }
  [[nodiscard]] CounterSet::Values values() const {
    CounterSet::Values values;
    values.reserve(entries().size());
    for (const Entry& entry : entries()) {
      values.push_back({entry.name, (this->*entry.counter).value()});
    }
    return values;
  }
  [[nodiscard]] Statistics read() const {
    Statistics sum;
    for (const Entry& entry : entries()) sum.*entry.member = (this->*entry.counter).value();
    return sum;
  }
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_ROLLOUT_COUNTERS_H_
