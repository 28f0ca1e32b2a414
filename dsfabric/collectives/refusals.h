// Processes that this process cannot connect, because descriptors or memory are missing.
#ifndef CARIAMA_DSFABRIC_COLLECTIVES_REFUSALS_H_
#define CARIAMA_DSFABRIC_COLLECTIVES_REFUSALS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

#include "absl/status/status.h"

namespace cariama::internal {

// Thread-safe. `now`: of steady_clock.
class Refusals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Records the result of connecting the process and sending to it.
  void note(uint32_t rank, const absl::Status& sent, Time now) {
    const std::lock_guard lock(mutex_);
    // Two processes that offer to connect at the same time may both miss the deadline.
    if (absl::IsDeadlineExceeded(sent)) return;
    if (!absl::IsResourceExhausted(sent)) {
      refusals_.erase(rank);
      return;
    }
    const auto [refusal, is_first] = refusals_.try_emplace(rank);
    refusal->second.why = sent;
    if (is_first) refusal->second.since = now;
  }

  // Returns the last error RESOURCE_EXHAUSTED of the process if it has lasted for kPatience, else
  // OK.
  [[nodiscard]] absl::Status error(uint32_t rank, Time now) const {
    const std::lock_guard lock(mutex_);
    const auto refusal = refusals_.find(rank);
    const bool lasts = refusal != refusals_.end() && now >= refusal->second.since + kPatience;
    return lasts ? refusal->second.why : absl::OkStatus();
  }

 private:
  // Another thread may free descriptors or memory meanwhile.
  static constexpr std::chrono::milliseconds kPatience{1000};
  struct Refusal {
    absl::Status why;
    Time since;
  };
  mutable std::mutex mutex_;
  std::map<uint32_t, Refusal> refusals_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_COLLECTIVES_REFUSALS_H_
