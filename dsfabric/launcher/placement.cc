#include "dsfabric/launcher/placement.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtutils/error.h"
#include "dtutils/verbs/verbs_device.h"

namespace cariama::internal {
namespace {

absl::Status bad_line(int line, const std::string& what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    absl::StrCat("place file, line ", line, ": ", what),
                    "write RANK NODE [DEVICE[:PORT]]");
}

std::set<int> nodes_of(const std::vector<Core>& cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.numa_node);
  return nodes;
}

absl::Status check_place(int rank, const Place& place, const std::set<int>& nodes,
                         const std::vector<Endpoint>& endpoints) {
  if (place.numa_node >= 0 && !nodes.contains(place.numa_node)) {
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                      absl::StrCat("rank ", rank, " is placed on NUMA node ", place.numa_node,
                                   ", and the launcher may use cores of node ",
                                   absl::StrJoin(nodes, ", "), " only"));
  }
  const bool there =
      place.device.empty() ||
      std::any_of(endpoints.begin(), endpoints.end(), [&](const Endpoint& one) {
        return one.device == place.device && (place.port == 0 || one.port == place.port);
      });
  if (there) return absl::OkStatus();
  return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                    absl::StrCat("rank ", rank, " is placed on device ", place.device,
                                 place.port == 0 ? "" : absl::StrCat(":", place.port),
                                 ", which has no active port here"),
                    "see cariama-info for those that have");
}

}  // namespace

std::vector<Endpoint> list_endpoints() {
  std::vector<Endpoint> endpoints;
  for (const VerbsDeviceInfo& device : list_verbs_devices()) {
    if (!device.usable) continue;
    for (const VerbsPortInfo& port : device.ports) {
      if (port.active) endpoints.push_back({device.name, port.number});
    }
  }
  return endpoints;
}

absl::StatusOr<std::vector<Place>> parse_place_file(std::string_view text, int processes) {
  std::vector<std::optional<Place>> places(processes);
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    int rank = 0;
    Place place;
    if (words.size() > 3 || words.size() < 2 || !absl::SimpleAtoi(words[0], &rank) ||
        !absl::SimpleAtoi(words[1], &place.numa_node) || place.numa_node < 0) {
      return bad_line(number, absl::StrCat("'", line, "' is not understood"));
    }
    if (words.size() == 3) {
      const size_t colon = words[2].find(':');
      place.device = words[2].substr(0, colon);
      if (place.device.empty() ||
          (colon != std::string::npos &&
           (!absl::SimpleAtoi(words[2].substr(colon + 1), &place.port) || place.port == 0))) {
        return bad_line(number, absl::StrCat("'", words[2], "' is not a device"));
      }
    }
    if (rank < 0 || rank >= processes) {
      return bad_line(number, absl::StrCat("there is no rank ", rank, " in a job of ", processes));
    }
    if (places[rank]) return bad_line(number, absl::StrCat("rank ", rank, " was placed before"));
    places[rank] = std::move(place);
  }
  std::vector<Place> all;
  for (int rank = 0; rank < processes; ++rank) {
    if (!places[rank]) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        absl::StrCat("place file: no line for rank ", rank),
                        absl::StrCat("give each of the ", processes, " processes a line"));
    }
    all.push_back(*std::move(places[rank]));
  }
  return all;
}

std::vector<Place> zone_endpoint_places(const std::vector<Core>& cores,
                                        const std::vector<Endpoint>& endpoints) {
  std::vector<Place> places;
  for (const int node : nodes_of(cores)) {
    if (endpoints.empty()) places.push_back({.numa_node = node});
    for (const Endpoint& endpoint : endpoints) {
      places.push_back({.numa_node = node, .device = endpoint.device, .port = endpoint.port});
    }
  }
  return places;
}

absl::StatusOr<JobPlan> plan_job(int processes, uint32_t threads, Binding bind,
                                 const std::vector<Place>& places, const std::vector<Core>& cores,
                                 const std::vector<Endpoint>& endpoints) {
  const std::set<int> nodes = nodes_of(cores);
  const std::vector<int> node_list(nodes.begin(), nodes.end());
  JobPlan job;
  std::map<int, size_t> taken;  // number of cores assigned so far, by node (-1: any node)
  for (int rank = 0; rank < processes; ++rank) {
    ProcessPlan process;
    if (!places.empty()) {
      process.place = places[rank];
      if (absl::Status there = check_place(rank, process.place, nodes, endpoints); !there.ok()) {
        return there;
      }
    } else if (bind == Binding::kNuma && !node_list.empty()) {
      process.place.numa_node =
          node_list[static_cast<size_t>(rank) * node_list.size() / static_cast<size_t>(processes)];
    }
    const int node = process.place.numa_node;
    std::vector<const Core*> pool;
    for (const Core& core : cores) {
      if (node < 0 || core.numa_node == node) pool.push_back(&core);
    }
    std::vector<const Core*> own;
    if (bind == Binding::kCore && !pool.empty()) {
      const size_t wanted = std::min<size_t>(threads, pool.size());
      size_t& next = taken[node];
      for (size_t i = 0; i < wanted; ++i) own.push_back(pool[next++ % pool.size()]);
      if (next > pool.size() || threads > pool.size()) {
        job.warning = absl::StrCat("there are ", pool.size(), " cores",
                                   node < 0 ? "" : absl::StrCat(" on NUMA node ", node),
                                   ", fewer than the threads to bind: some share a core; start "
                                   "fewer, or use --bind none");
      }
    } else if (node >= 0) {
      own = std::move(pool);
    }
    for (const Core* core : own) {
      process.cpus.insert(process.cpus.end(), core->cpus.begin(), core->cpus.end());
    }
    job.processes.push_back(std::move(process));
  }
  return job;
}

}  // namespace cariama::internal
