// Every process sends calls to every other one through routers: few channels, whatever the number
// of processes. `example_routed_calls -n 64` starts 64 processes; four form a node here, so that
// one host can play several.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/run_job.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

constexpr uint64_t kCallsToEach = 1000;

std::vector<uint64_t> next_number;  // by sender, of the calls to this process
bool disorder = false;

// [routed_calls]
absl::Status call_everyone(ThreadContext& self, RoutedAggregator& calls) {
  Fabric& fabric = self.fabric();
  const uint32_t me = fabric.rank();
  for (uint64_t i = 0; i < kCallsToEach; ++i) {
    for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
      CallResult sent = calls.call(to, [me, i] {
        if (next_number[me]++ != i) disorder = true;
      });
      if (!sent) return sent;
    }
  }
  return calls.flush();
}
// [routed_calls]

absl::Status run(ThreadContext& self) {
  Fabric& fabric = self.fabric();
  check(fabric.threads() == 1, "this example counts with one thread in each process");
  const Deadline deadline = deadline_after(std::chrono::seconds(120));
  TerminationDetector detector(fabric);
  next_number.resize(fabric.size());
  check(detector.wait(deadline));  // every process is ready for calls
  // Without processes_per_node, the processes of one host form a node.
  RoutedAggregator calls(self, {.routing = Routing::kNode, .processes_per_node = 4});
  check(call_everyone(self, calls));
  check(detector.wait(deadline));  // all calls of the job have run
  for (const uint64_t number : next_number) check(number == kCallsToEach, "calls were lost");
  check(!disorder, "calls were reordered");
  const RoutingStatistics statistics = calls.statistics();
  if (fabric.rank() == 0) {
    std::printf("%u processes: a thread sends on %lu channels and forwards on %lu\n", fabric.size(),
                static_cast<unsigned long>(statistics.channels),
                static_cast<unsigned long>(statistics.forwarding_channels));
  }
  return calls.shutdown(deadline);
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  return run_job({.launch = {.processes = 16}}, argc, argv, run);
}
