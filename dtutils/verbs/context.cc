#include "dtutils/verbs/context.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "dtutils/error.h"
#include "dtutils/verbs/limits.h"
#include "dtutils/verbs/selection.h"
#include "dtutils/verbs/verbs_device.h"

namespace cariama::verbs {
namespace {

absl::StatusOr<std::optional<ArrivalOrder>> order_from_environment() {
  const char* text = std::getenv("CARIAMA_VERBS_IN_ORDER");
  if (text == nullptr || *text == '\0') return std::optional<ArrivalOrder>();
  const std::string_view word(text);
  if (word == "none") return std::optional(ArrivalOrder::kNone);
  if (word == "within") return std::optional(ArrivalOrder::kWithinWrite);
  if (word == "writes") return std::optional(ArrivalOrder::kWrites);
  if (word == "bytes") return std::optional(ArrivalOrder::kBytes);
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                    std::string("CARIAMA_VERBS_IN_ORDER is '").append(word).append("'"),
                    "set it to none, within, writes or bytes, or unset it");
}

ContextHandle open_by_name(const std::string& name) {
  ibv_device** devices = ibv_get_device_list(nullptr);
  ContextHandle handle;
  for (ibv_device** device = devices; device != nullptr && *device != nullptr; ++device) {
    if (name == ibv_get_device_name(*device)) {
      handle.reset(ibv_open_device(*device));
      break;
    }
  }
  const int error = errno;
  if (devices != nullptr) ibv_free_device_list(devices);
  errno = error;
  return handle;
}

// Returns the largest inline size of a queue pair with one segment. No query reports it, so this
// function finds it by creating queue pairs.
uint32_t probe_max_inline(ibv_context* context) {
  const DomainHandle domain(ibv_alloc_pd(context));
  if (domain == nullptr) return 0;
  const CompletionQueueHandle completions(ibv_create_cq(context, 1, nullptr, nullptr, 0));
  if (completions == nullptr) return 0;
  const auto accepted = [&](uint32_t bytes) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = completions.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {.max_send_wr = 1,
                      .max_recv_wr = 1,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = bytes};
    return QueuePairHandle(ibv_create_qp(domain.get(), &attributes)) != nullptr;
  };
  constexpr uint32_t kStep = 4;
  uint32_t low = 0;  // accepted
  uint32_t high = kMostInline + kStep;
  while (high - low > kStep) {
    const uint32_t middle = low + (high - low) / (2 * kStep) * kStep;
    (accepted(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

DeviceLimits limits_of(const ibv_device_attr& device, const ibv_port_attr& port) {
  const auto count = [](int value) { return static_cast<uint32_t>(std::max(value, 0)); };
  const auto less = [](uint32_t value, uint32_t reserve) {
    return value > reserve ? value - reserve : 0;
  };
  DeviceLimits limits;
  limits.max_completions = count(device.max_cqe);
  // A failed queue pair reports each request, so both its queues must fit into one completion
  // queue.
  const uint32_t depth = std::min(count(device.max_qp_wr), limits.max_completions / 2);
  limits.max_send_depth = less(depth, kMarkerSlots);
  limits.max_receive_depth = depth;
  // One limit for all operations, although some devices accept fewer segments for a READ.
  limits.max_segments = std::min(count(device.max_sge), kMostSegments);
  if (device.max_sge_rd > 0)
    limits.max_segments = std::min(limits.max_segments, count(device.max_sge_rd));
  limits.max_outstanding_reads =
      std::min({count(device.max_qp_init_rd_atom), count(device.max_qp_rd_atom), kMostReads});
  limits.mtu = 128U << port.active_mtu;
  limits.max_message = port.max_msg_sz;
  limits.atomics = device.atomic_cap != IBV_ATOMIC_NONE;
  return limits;
}

absl::StatusOr<std::shared_ptr<const Context>> open_context(const DeviceOptions& options) {
  const auto request = read_request(options);
  if (!request.ok()) return request.status();
  const auto forced_order = order_from_environment();
  if (!forced_order.ok()) return forced_order.status();
  const std::vector<VerbsDeviceInfo> devices = list_verbs_devices();
  const auto choice = choose(devices, *request);
  if (!choice.ok()) return choice.status();

  const VerbsDeviceInfo& info = devices[choice->device];
  const VerbsPortInfo& port = info.ports[choice->port];
  auto context = std::make_shared<Context>();
  context->forced_order = *forced_order;
  context->numa_node = info.numa_node;
  context->port = static_cast<uint8_t>(port.number);
  context->handle = open_by_name(info.name);
  if (context->handle == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess, "opening RDMA device " + info.name,
                            "check that it is still there (ibv_devices)");
  }
  ibv_context* device = context->handle.get();
  context->description = info.name + " port " + std::to_string(port.number);
  if (const int error = ibv_query_device(device, &context->attributes); error != 0) {
    return make_errno_error(error, ErrorScope::kProcess, "querying " + info.name);
  }
  if (const int error = ibv_query_port(device, context->port, &context->port_attributes);
      error != 0) {
    return make_errno_error(error, ErrorScope::kProcess, "querying " + context->description);
  }
  if (choice->gid.has_value()) {
    const VerbsGidInfo& gid = port.gids[*choice->gid];
    context->gid_index = static_cast<uint8_t>(gid.index);
    if (ibv_query_gid(device, context->port, static_cast<int>(gid.index), &context->gid) != 0) {
      return make_errno_error(
          errno, ErrorScope::kProcess,
          "reading GID " + std::to_string(gid.index) + " of " + context->description,
          "its network interface has just lost the address: try again");
    }
    if (context->ethernet()) {
      context->description += " gid " + std::to_string(gid.index) + " (" + gid.text + ")";
    }
  }
  if (!context->ethernet()) {
    context->description += " lid " + std::to_string(context->port_attributes.lid);
  }
  // No vendor has this id: see rxe_param.h of the kernel.
  constexpr uint32_t kSoftRoceVendor = 0xffffff;
  context->soft_roce = context->attributes.vendor_id == kSoftRoceVendor;
  context->limits = limits_of(context->attributes, context->port_attributes);
  context->limits.max_inline = probe_max_inline(device);
  return context;
}

}  // namespace cariama::verbs
