// Selection of device, port and GID, as a function of plain data, so that it can be tested without
// hardware.
#ifndef CARIAMA_DTUTILS_VERBS_SELECTION_H_
#define CARIAMA_DTUTILS_VERBS_SELECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/verbs_device.h"

namespace cariama::verbs {

// The requested device; each empty field matches any.
struct Request {
  std::string name{};
  std::optional<uint32_t> port{};
  std::optional<uint32_t> gid_index{};
};

// Returns the fields of `options`; empty fields are taken from the environment (CARIAMA_DEVICE,
// CARIAMA_PORT, CARIAMA_GID_INDEX). Error: INVALID_ARGUMENT if a variable is not a number.
[[nodiscard]] absl::StatusOr<Request> read_request(const DeviceOptions& options);

// Indices into a list of devices. `gid` is empty on an InfiniBand port without GIDs.
struct Choice {
  size_t device = 0;
  size_t port = 0;
  std::optional<size_t> gid;
};

// Returns the device, port and GID to use. The error texts list the available ones.
[[nodiscard]] absl::StatusOr<Choice> choose(const std::vector<VerbsDeviceInfo>& devices,
                                            const Request& request);

inline constexpr std::string_view kInfiniBandGid = "IB";
inline constexpr std::string_view kRoceV1Gid = "RoCE v1";
inline constexpr std::string_view kRoceV2Gid = "RoCE v2";
inline constexpr std::string_view kEthernet = "Ethernet";
inline constexpr std::string_view kInfiniBand = "InfiniBand";

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_SELECTION_H_
