// The record of a process of the routed calls that their routers could not forward
// (routed_aggregator.h).
#ifndef CARIAMA_RIUTILS_INTERNAL_ROUTE_FAILURES_H_
#define CARIAMA_RIUTILS_INTERNAL_ROUTE_FAILURES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/ids.h"

namespace cariama::internal {

// Thread-safe.
class RouteFailures {
 public:
  // Records that process `router` reported `status` for calls to process `destination`. The first
  // report of a pair counts.
  void add(Rank router, Rank destination, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    failures_.try_emplace({router, destination}, status);
    any_.store(true, std::memory_order_release);
  }
  // True if there is any. For callers that read it often.
  [[nodiscard]] const std::atomic<bool>& any() const { return any_; }
  // Returns the status that was recorded for the pair, or OK.
  [[nodiscard]] absl::Status find(Rank router, Rank destination) const {
    const std::lock_guard lock(mutex_);
    const auto found = failures_.find({router, destination});
    return found == failures_.end() ? absl::OkStatus() : found->second;
  }
  // Returns the status of the pair with the lowest ranks for which `is_used`(router, destination),
  // or OK.
  template <typename IsUsed>
  [[nodiscard]] absl::Status first(const IsUsed& is_used) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [pair, status] : failures_) {
      if (is_used(Rank(pair.first), Rank(pair.second))) return status;
    }
    return absl::OkStatus();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, absl::Status> failures_;  // by router and destination
  std::atomic<bool> any_{false};
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_ROUTE_FAILURES_H_
