// Which device, port and GID to use: a choice over plain data, so that it can be tested without
// any.
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

// What is asked for; empty fields are free.
struct Request {
  std::string name{};
  std::optional<uint32_t> port{};
  std::optional<uint32_t> gid_index{};
};

// The fields of `options`, and the environment (CARIAMA_DEVICE, CARIAMA_PORT, CARIAMA_GID_INDEX)
// for those that are empty. INVALID_ARGUMENT if a variable is no number.
[[nodiscard]] absl::StatusOr<Request> read_request(const DeviceOptions& options);

// Positions within a list of devices. `gid` is none on an InfiniBand port without GIDs.
struct Choice {
  size_t device = 0;
  size_t port = 0;
  std::optional<size_t> gid;
};

// The device, port and GID to use. Errors list what there is.
[[nodiscard]] absl::StatusOr<Choice> choose(const std::vector<VerbsDeviceInfo>& devices,
                                            const Request& request);

inline constexpr std::string_view kInfiniBandGid = "IB";
inline constexpr std::string_view kRoceV1Gid = "RoCE v1";
inline constexpr std::string_view kRoceV2Gid = "RoCE v2";
inline constexpr std::string_view kEthernet = "Ethernet";
inline constexpr std::string_view kInfiniBand = "InfiniBand";

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_SELECTION_H_
