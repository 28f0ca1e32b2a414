// An opened device, with the port and GID that its connections use. All objects created from it
// share it.
#ifndef CARIAMA_DTUTILS_VERBS_CONTEXT_H_
#define CARIAMA_DTUTILS_VERBS_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/handles.h"

namespace cariama::verbs {

// Immutable once opened.
struct Context {
  ContextHandle handle;
  std::string description;
  int numa_node = -1;
  uint8_t port = 1;
  uint8_t gid_index = 0;
  ibv_gid gid{};
  ibv_port_attr port_attributes{};
  ibv_device_attr attributes{};
  DeviceLimits limits;
  bool soft_roce = false;  // the kernel's rdma_rxe, which reports some errors with other codes
  std::optional<ArrivalOrder> forced_order;  // CARIAMA_VERBS_IN_ORDER

  [[nodiscard]] bool ethernet() const {
    return port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  }
};

// Chooses and opens a device. Blocks for system calls, and creates a few temporary queue pairs to
// find the largest inline size, which no query reports. Errors: those of open_verbs_device().
[[nodiscard]] absl::StatusOr<std::shared_ptr<const Context>> open_context(
    const DeviceOptions& options);

// Returns the limits that the device and one of its ports report; max_inline is 0.
[[nodiscard]] DeviceLimits limits_of(const ibv_device_attr& device, const ibv_port_attr& port);

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_CONTEXT_H_
