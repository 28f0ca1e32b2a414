// Feeds the parser of place files, and the planner behind it, with arbitrary text.
//
// An accepted file has one place for each process, and its places, written again, give the same
// places. A plan binds each process to cores of its node.
//
// Longest input: 256 bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/launcher/placement.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::internal {
namespace {

std::string written(const std::vector<Place>& places) {
  std::string text;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    text += std::to_string(rank) + " " + std::to_string(place.numa_node);
    if (!place.device.empty()) text += " " + place.device;
    if (place.port != 0) text += ":" + std::to_string(place.port);
    text += "\n";
  }
  return text;
}

void check_plan(int processes, Binding bind, const std::vector<Place>& places) {
  const std::vector<Core> cores = {{{0, 1}, 0}, {{2, 3}, 0}, {{4}, 2}};
  const std::vector<Endpoint> endpoints = {{"mlx5_0", 1}, {"rxe0", 2}};
  const auto plan = plan_job(processes, 2, bind, places, cores, endpoints);
  if (!plan.ok()) {
    require(absl::IsNotFound(plan.status()));
    return;
  }
  require(plan->processes.size() == static_cast<size_t>(processes));
  for (const ProcessPlan& process : plan->processes) {
    for (const int cpu : process.cpus) {
      const auto core = std::find_if(cores.begin(), cores.end(), [&](const Core& one) {
        return std::count(one.cpus.begin(), one.cpus.end(), cpu) != 0;
      });
      require(core != cores.end());
      require(process.place.numa_node < 0 || process.place.numa_node == core->numa_node);
    }
  }
}

}  // namespace
}  // namespace cariama::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  cariama::FuzzInput input(data, size);
  const int processes = 1 + input.take<uint8_t>() % 4;
  const auto bind = static_cast<cariama::Binding>(input.take<uint8_t>() % 3);
  const std::string_view text = input.take_bytes(size);
  const auto places = parse_place_file(text, processes);
  if (!places.ok()) {
    cariama::require(absl::IsInvalidArgument(places.status()));
    return 0;
  }
  cariama::require(places->size() == static_cast<size_t>(processes));
  const auto again = parse_place_file(written(*places), processes);
  cariama::require(again.ok() && *again == *places);
  check_plan(processes, bind, *places);
  return 0;
}
