// An opened device with the port and GID that its connections use. Everything made from it shares
// it.
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
  bool soft_roce = false;  // the kernel's rdma_rxe, which has its own words for some errors
  std::optional<ArrivalOrder> forced_order;  // CARIAMA_VERBS_IN_ORDER

  [[nodiscard]] bool ethernet() const {
    return port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  }
};

// Chooses and opens. Blocking: system calls, and a few scratch queue pairs to find the largest
// inline size, which no query tells. Errors as open_verbs_device().
[[nodiscard]] absl::StatusOr<std::shared_ptr<const Context>> open_context(
    const DeviceOptions& options);

// Limits as the device and one of its ports report them; max_inline stays 0.
[[nodiscard]] DeviceLimits limits_of(const ibv_device_attr& device, const ibv_port_attr& port);

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_CONTEXT_H_
