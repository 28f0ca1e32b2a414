// The flags --latency, --gigabytes and --message-gap of the programs that run on a simulated
// cluster (virtual_cluster.h).
#ifndef CARIAMA_BENCH_SUPPORT_NETWORK_FLAGS_H_
#define CARIAMA_BENCH_SUPPORT_NETWORK_FLAGS_H_

#include <cmath>
#include <cstdint>

#include "absl/flags/declare.h"
#include "bench/support/report.h"
#include "dtutils/sim/sim_fabric.h"

ABSL_DECLARE_FLAG(double, latency);

namespace cariama::bench {

[[nodiscard]] inline SimTime from_ns(double nanoseconds) {
  return SimTime(std::llround(nanoseconds * 1000));
}
[[nodiscard]] inline double to_ns(SimTime time) { return static_cast<double>(time.count()) / 1000; }

// Returns the network that the flags describe.
[[nodiscard]] SimOptions network_options(uint64_t seed);
// Adds the flags to the params of a row.
void set_network_params(Params& params);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_NETWORK_FLAGS_H_
