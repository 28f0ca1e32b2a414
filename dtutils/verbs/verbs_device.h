// The verbs transport: libibverbs on InfiniBand, RoCE and soft-RoCE, with reliable connections.
//
// Programs use open_device() (device.h). This header is for programs that list or choose devices
// (cariama-info), and needs no libibverbs header.
//
// Environment, in addition to the variables named at DeviceOptions:
//   CARIAMA_VERBS_IN_ORDER=none|within|writes|bytes
//       The result of QueuePair::write_order() (kNone, kWithinWrite, kWrites, kBytes), in place of
//       the device's own answer (ibv_query_qp_data_in_order). For tests of the paths that poll
//       memory, on devices that guarantee no order. The library then relies on an order that the
//       device does not guarantee. Soft-RoCE in an emulated machine keeps `within`, but neither
//       `writes` nor `bytes`: an aligned 8-byte WRITE was seen in part there.
//
// Memory of the library per queue pair: 16 bytes for each slot of the send queue, 8 for each slot
// of the receive queue, and about 500 bytes; the driver's queues need additional memory.
#ifndef CARIAMA_DTUTILS_VERBS_VERBS_DEVICE_H_
#define CARIAMA_DTUTILS_VERBS_VERBS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/export.h"

namespace cariama {

// One entry of a port's GID table.
struct VerbsGidInfo {
  uint32_t index = 0;
  std::string type{};        // "IB", "RoCE v1", "RoCE v2"
  std::string text{};        // "fe80::5054:ff:fe77:1", "::ffff:10.77.0.1"
  std::string net_device{};  // "eth0", or "" when the device has none
};

struct VerbsPortInfo {
  uint32_t number = 0;
  bool active = false;
  std::string state{};       // "ACTIVE", "DOWN", "INIT", "ARMED", "ACTIVE_DEFER"
  std::string link_layer{};  // "Ethernet", "InfiniBand"
  uint32_t lid = 0;          // 0 on Ethernet
  uint32_t mtu = 0;          // bytes
  uint64_t max_message = 0;
  std::vector<VerbsGidInfo> gids{};
};

struct VerbsDeviceInfo {
  std::string name{};      // "mlx5_0", "rxe0"
  std::string firmware{};  // as reported by the device
  int numa_node = -1;
  bool usable = false;   // false: it could not be opened, or needs a connection manager (iWARP)
  std::string reason{};  // cause of usable == false, with the remedy
  // Limits of its first active port; max_inline is 0, because only open_device() measures it.
  DeviceLimits limits;
  std::vector<VerbsPortInfo> ports{};
};

// Returns the RDMA devices of this machine, in the order of libibverbs; empty if there is none, or
// if the kernel has no RDMA support. Opens each device temporarily (system calls). Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<VerbsDeviceInfo> list_verbs_devices();

// Returns true if a device is usable and has an active port. open_device({}) uses this criterion.
[[nodiscard]] bool has_active_verbs_port(const std::vector<VerbsDeviceInfo>& devices);

// Opens a device, chosen according to DeviceOptions (its field `transport` is ignored). Errors:
// NOT_FOUND (no such device, port or GID index; the text lists the available ones),
// FAILED_PRECONDITION (the port is not active), PERMISSION_DENIED, INVALID_ARGUMENT (a malformed
// environment variable).
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_verbs_device(
    const DeviceOptions& options);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_VERBS_VERBS_DEVICE_H_
