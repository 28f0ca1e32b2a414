// list_verbs_devices(): the devices of this machine, as plain data.
#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "dtutils/verbs/context.h"
#include "dtutils/verbs/handles.h"
#include "dtutils/verbs/selection.h"
#include "dtutils/verbs/verbs_device.h"

namespace cariama {
namespace {

std::string_view port_state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
      return "ACTIVE_DEFER";
    case IBV_PORT_NOP:
      break;
  }
  return "in an unknown state";
}

std::string_view gid_type_name(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return verbs::kInfiniBandGid;
    case IBV_GID_TYPE_ROCE_V1:
      return verbs::kRoceV1Gid;
    case IBV_GID_TYPE_ROCE_V2:
      return verbs::kRoceV2Gid;
    default:
      return "unknown";
  }
}

VerbsGidInfo describe_gid(const ibv_gid_entry& entry) {
  VerbsGidInfo info;
  info.index = entry.gid_index;
  info.type = gid_type_name(entry.gid_type);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (inet_ntop(AF_INET6, entry.gid.raw, text.data(), text.size()) != nullptr) {
    info.text = text.data();
  }
  std::array<char, IF_NAMESIZE> name{};
  if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name.data()) != nullptr) {
    info.net_device = name.data();
  }
  return info;
}

int numa_node_of(const ibv_device* device) {
  std::ifstream file(std::string(device->ibdev_path) + "/device/numa_node");
  int node = -1;
  return (file >> node) ? node : -1;
}

// Fills all fields except the name. Returns the reason why the device is not usable, or "" for
// success.
std::string describe(ibv_device* device, VerbsDeviceInfo& info) {
  if (device->transport_type == IBV_TRANSPORT_IWARP) {
    return "iWARP needs the RDMA connection manager, which Cariama does not use yet";
  }
  if (device->transport_type != IBV_TRANSPORT_IB) return "it offers no reliable connections";

  const verbs::ContextHandle context(ibv_open_device(device));
  if (context == nullptr) {
    const int error = errno;
    return "opening it failed: " + std::generic_category().message(error) +
           (error == EACCES || error == EPERM ? ", give this user access to /dev/infiniband/uverbs*"
                                              : "");
  }
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(context.get(), &attributes); error != 0) {
    return "querying it failed: " + std::generic_category().message(error);
  }
  info.firmware =
      std::string(attributes.fw_ver, strnlen(attributes.fw_ver, sizeof(attributes.fw_ver)));

  size_t gids_total = 0;
  const ibv_port_attr* best_port = nullptr;
  std::vector<ibv_port_attr> ports(attributes.phys_port_cnt);
  for (uint32_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr& port = ports[number - 1];
    if (const int error = ibv_query_port(context.get(), static_cast<uint8_t>(number), &port);
        error != 0) {
      return "querying its port failed: " + std::generic_category().message(error);
    }
    VerbsPortInfo& out = info.ports.emplace_back();
    out.number = number;
    out.active = port.state == IBV_PORT_ACTIVE;
    out.state = port_state_name(port.state);
    // Systems older than RoCE report "unspecified" for InfiniBand.
    out.link_layer =
        port.link_layer == IBV_LINK_LAYER_ETHERNET ? verbs::kEthernet : verbs::kInfiniBand;
    out.lid = port.lid;
    out.mtu = 128U << port.active_mtu;
    out.max_message = port.max_msg_sz;
    gids_total += static_cast<size_t>(std::max(port.gid_tbl_len, 0));
    if (best_port == nullptr || (out.active && best_port->state != IBV_PORT_ACTIVE)) {
      best_port = &port;
    }
  }
  if (best_port != nullptr) info.limits = verbs::limits_of(attributes, *best_port);

  std::vector<ibv_gid_entry> entries(gids_total);
  const ssize_t count = ibv_query_gid_table(context.get(), entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    const uint32_t port = entries[static_cast<size_t>(i)].port_num;
    if (port >= 1 && port <= info.ports.size()) {
      info.ports[port - 1].gids.push_back(describe_gid(entries[static_cast<size_t>(i)]));
    }
  }
  return "";
}

}  // namespace

std::vector<VerbsDeviceInfo> list_verbs_devices() {
  std::vector<VerbsDeviceInfo> infos;
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) return infos;  // ENOSYS: the kernel has no RDMA support
  for (int i = 0; i < count; ++i) {
    VerbsDeviceInfo& info = infos.emplace_back();
    info.name = ibv_get_device_name(devices[i]);
    info.numa_node = numa_node_of(devices[i]);
    info.reason = describe(devices[i], info);
    info.usable = info.reason.empty();
  }
  ibv_free_device_list(devices);
  return infos;
}

bool has_active_verbs_port(const std::vector<VerbsDeviceInfo>& devices) {
  return std::any_of(devices.begin(), devices.end(), [](const VerbsDeviceInfo& device) {
    return device.usable && std::any_of(device.ports.begin(), device.ports.end(),
                                        [](const VerbsPortInfo& port) { return port.active; });
  });
}

}  // namespace cariama
