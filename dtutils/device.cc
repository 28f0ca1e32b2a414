#include "dtutils/device.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/shm/shm_device.h"
#include "dtutils/verbs/verbs_device.h"

namespace cariama {
namespace {

absl::Status not_made_here(Transport transport, std::string_view how) {
  std::string what("open_device cannot make a ");
  what.append(transport_name(transport)).append(" device");
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, how);
}

// Returns the transport that the options or the environment select; empty if neither does.
absl::StatusOr<std::optional<Transport>> requested_transport(const DeviceOptions& options) {
  if (options.transport.has_value()) return options.transport;
  if (const char* text = std::getenv("CARIAMA_TRANSPORT"); text != nullptr && *text != '\0') {
    for (const Transport transport : {Transport::kVerbs, Transport::kShm}) {
      if (transport_name(transport) == text) return std::optional(transport);
    }
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      std::string("CARIAMA_TRANSPORT is '").append(text).append("'"),
                      "set it to 'verbs' or 'shm', or unset it");
  }
  // A request that names a card, a port or a GID must not be served by a different transport.
  if (!options.name.empty() || options.port.has_value() || options.gid_index.has_value()) {
    return std::optional(Transport::kVerbs);
  }
  if (const char* name = std::getenv("CARIAMA_DEVICE"); name != nullptr && *name != '\0') {
    return std::optional(Transport::kVerbs);
  }
  return std::optional<Transport>();
}

// Returns verbs if a port is active, else shm. Reports a diagnostic only if RDMA devices exist that
// cannot be used, not on a machine without any.
Transport best_transport() {
  const std::vector<VerbsDeviceInfo> devices = list_verbs_devices();
  if (has_active_verbs_port(devices)) return Transport::kVerbs;
  if (!devices.empty()) {
    const VerbsDeviceInfo& first = devices.front();
    report_once("transport.verbs", "no RDMA device with an active port, using shared memory",
                first.usable
                    ? "bring the link of " + first.name + " up (cariama-info shows its state)"
                    : first.name + ": " + first.reason);
  }
  return Transport::kShm;
}

}  // namespace

std::string_view transport_name(Transport transport) {
  switch (transport) {
    case Transport::kVerbs:
      return "verbs";
    case Transport::kShm:
      return "shm";
    case Transport::kSim:
      return "sim";
    case Transport::kFault:
      return "fault";
  }
  return "unknown";
}

absl::StatusOr<std::shared_ptr<Device>> open_device(const DeviceOptions& options) {
  const absl::StatusOr<std::optional<Transport>> requested = requested_transport(options);
  if (!requested.ok()) return requested.status();
  const Transport transport = requested->has_value() ? **requested : best_transport();
  switch (transport) {
    case Transport::kVerbs:
      return open_verbs_device(options);
    case Transport::kShm:
      return open_shm_device();
    case Transport::kSim:
      return not_made_here(transport, "make a SimFabric (dtutils/sim/sim_fabric.h)");
    case Transport::kFault:
      return not_made_here(transport, "decorate a device (dtutils/fault/fault_device.h)");
  }
  return not_made_here(transport, "ask for verbs or shm");
}

}  // namespace cariama
