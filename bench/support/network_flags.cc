#include "bench/support/network_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(double, latency, 1000, "one-way latency in ns");
ABSL_FLAG(double, gigabytes, 12.5, "bandwidth of a port in bytes per ns");
ABSL_FLAG(double, message_gap, 5, "ns between two messages of a port");

namespace cariama::bench {

SimOptions network_options(uint64_t seed) {
  SimOptions sim{.seed = seed};
  sim.latency = sim.ack_latency = from_ns(absl::GetFlag(FLAGS_latency));
  sim.gigabytes_per_second = absl::GetFlag(FLAGS_gigabytes);
  sim.message_gap = from_ns(absl::GetFlag(FLAGS_message_gap));
  return sim;
}

void set_network_params(Params& params) {
  params.set("latency", absl::GetFlag(FLAGS_latency));
  params.set("gigabytes", absl::GetFlag(FLAGS_gigabytes));
  params.set("message_gap", absl::GetFlag(FLAGS_message_gap));
}

}  // namespace cariama::bench
