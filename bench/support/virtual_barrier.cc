#include "bench/support/virtual_barrier.h"

#include <algorithm>
#include <chrono>

namespace cariama::bench {
namespace {

// From the time at which the last process comes to that at which all continue. Credits and other
// messages that no process waits for arrive in it.
constexpr SimTime kPause = std::chrono::microseconds(100);

}  // namespace

bool VirtualBarrier::meet(Fabric& fabric, const std::function<void()>& last, Deadline deadline) {
  latest_ = std::max(latest_, now(fabric));
  if (++reached_ == taking_part_) {
    reached_ = 0;
    last();
    start_ = latest_ + kPause;
    ++meetings_;
    cluster_.wake_all();
  } else {
    const uint64_t meeting = meetings_;
    // A wait runs a part of the calls that have come and then, in a VirtualCluster, sleeps.
    const auto met = [&] {
      fabric.process_calls();
      return meetings_ != meeting;
    };
    if (!fabric.wait(met, deadline)) return false;
  }
  VirtualCluster::spend(std::max(start_ - now(fabric), SimTime(0)));
  return true;
}

}  // namespace cariama::bench
