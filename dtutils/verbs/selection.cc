#include "dtutils/verbs/selection.h"

#include <charconv>
#include <cstdlib>

#include "dtutils/error.h"

namespace cariama::verbs {
namespace {

constexpr std::string_view kSoftwareRemedy =
    "install an RDMA card with its driver, or make a software device (modprobe rdma_rxe; rdma link "
    "add rxe0 type rxe netdev eth0), or use CARIAMA_TRANSPORT=shm";

std::string_view environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

absl::StatusOr<std::optional<uint32_t>> number_from_environment(const char* name) {
  const std::string_view text = environment(name);
  if (text.empty()) return std::optional<uint32_t>();
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      std::string(name).append(" is '").append(text).append("'"),
                      "set it to a number, or unset it");
  }
  return std::optional(number);
}

std::string describe(const VerbsGidInfo& gid) {
  return std::to_string(gid.index).append(" (").append(gid.text).append(", ").append(gid.type) +
         ")";
}

std::string describe(const VerbsDeviceInfo& device) {
  std::string text(device.name);
  if (!device.usable) return text.append(" (").append(device.reason).append(")");
  text.append(" (");
  for (size_t i = 0; i < device.ports.size(); ++i) {
    text.append(i == 0 ? "" : ", ").append("port ").append(std::to_string(device.ports[i].number));
    text.append(" ").append(device.ports[i].state);
  }
  return text.append(device.ports.empty() ? "no port)" : ")");
}

template <typename T>
std::string list(const std::vector<T>& items) {
  std::string text;
  for (const T& item : items) text.append(text.empty() ? "" : ", ").append(describe(item));
  return text.empty() ? "nothing" : text;
}

// Ranks GIDs; a higher value is better supported by current routers and hosts.
int gid_preference(const VerbsGidInfo& gid) {
  const bool version_2 = gid.type == kRoceV2Gid;
  if (version_2 && gid.text.starts_with("::ffff:")) return 4;
  const bool link_local = gid.text.starts_with("fe80:");
  if (version_2 && !link_local) return 3;
  if (version_2) return 2;
  return 1;  // version 1 packets do not leave their Ethernet segment
}

absl::StatusOr<std::optional<size_t>> choose_gid(const std::string& where,
                                                 const VerbsPortInfo& port,
                                                 std::optional<uint32_t> wanted) {
  if (wanted.has_value()) {
    for (size_t i = 0; i < port.gids.size(); ++i) {
      if (port.gids[i].index == *wanted) return std::optional(i);
    }
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kProcess,
                      std::string(where).append(" has no GID ").append(std::to_string(*wanted)) +
                          ", it has " + list(port.gids),
                      "set CARIAMA_GID_INDEX to one of these, or unset it");
  }
  // An InfiniBand port is addressed by its LID; the first GID is for peers behind a router.
  if (port.link_layer == kInfiniBand) {
    return port.gids.empty() ? std::optional<size_t>() : std::optional<size_t>(0);
  }
  std::optional<size_t> best;
  for (size_t i = 0; i < port.gids.size(); ++i) {
    if (!best || gid_preference(port.gids[i]) > gid_preference(port.gids[*best])) best = i;
  }
  if (best) return best;
  return make_error(absl::StatusCode::kNotFound, ErrorScope::kProcess,
                    std::string(where).append(" has no GID"),
                    "give its network interface an IP address (ip address add ADDRESS dev NAME)");
}

absl::Status port_down(const std::string& where, const VerbsPortInfo& port) {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                    std::string(where).append(" is ").append(port.state).append(", not ACTIVE"),
                    port.link_layer == kEthernet
                        ? "bring its network interface up (ip link set NAME up) and check the cable"
                        : "check the cable and that a subnet manager runs (opensm)");
}

}  // namespace

absl::StatusOr<Request> read_request(const DeviceOptions& options) {
  Request request{options.name, options.port, options.gid_index};
  if (request.name.empty()) request.name = environment("CARIAMA_DEVICE");
  if (!request.port) {
    auto port = number_from_environment("CARIAMA_PORT");
    if (!port.ok()) return port.status();
    request.port = *port;
  }
  if (!request.gid_index) {
    auto index = number_from_environment("CARIAMA_GID_INDEX");
    if (!index.ok()) return index.status();
    request.gid_index = *index;
  }
  return request;
}

absl::StatusOr<Choice> choose(const std::vector<VerbsDeviceInfo>& devices, const Request& request) {
  if (devices.empty()) {
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kProcess,
                      request.name.empty()
                          ? "this machine has no RDMA device"
                          : "no RDMA device '" + request.name + "': this machine has none at all",
                      kSoftwareRemedy);
  }
  bool name_found = request.name.empty();
  for (size_t d = 0; d < devices.size(); ++d) {
    const VerbsDeviceInfo& device = devices[d];
    if (!request.name.empty() && device.name != request.name) continue;
    name_found = true;
    if (!device.usable) {
      if (request.name.empty()) continue;
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                        device.name + " cannot be used: " + device.reason);
    }
    for (size_t p = 0; p < device.ports.size(); ++p) {
      const VerbsPortInfo& port = device.ports[p];
      const std::string where = device.name + " port " + std::to_string(port.number);
      if (request.port && port.number != *request.port) continue;
      if (!port.active) {
        if (request.name.empty() || !request.port) continue;
        return port_down(where, port);
      }
      auto gid = choose_gid(where, port, request.gid_index);
      if (!gid.ok()) return gid.status();
      return Choice{d, p, *gid};
    }
    if (!request.name.empty() && request.port) {
      return make_error(
          absl::StatusCode::kNotFound, ErrorScope::kProcess,
          "no port " + std::to_string(*request.port) + ": there is " + describe(device),
          "set CARIAMA_PORT to one of these, or unset it");
    }
  }
  if (!name_found) {
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kProcess,
                      "no RDMA device '" + request.name + "', there is " + list(devices),
                      "set CARIAMA_DEVICE to one of these, or unset it");
  }
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                    "no active RDMA port" +
                        (request.port ? " " + std::to_string(*request.port) : std::string()) +
                        ", there is " + list(devices),
                    "bring a link up, or use CARIAMA_TRANSPORT=shm");
}

}  // namespace cariama::verbs
