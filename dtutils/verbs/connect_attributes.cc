#include "dtutils/verbs/connect_attributes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "dtutils/error.h"

namespace cariama::verbs {
namespace {

// In units of 10 µs, ascending, for the codes 1 to 31. Code 0 is the longest delay.
constexpr std::array<uint32_t, 31> kReceiverDelays = {
    1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,  256,
    384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
constexpr uint32_t kLongestReceiverDelay = 65536;

// Longer than the time of any code, short enough for arithmetic in nanoseconds.
constexpr std::chrono::hours kAnyLongTime{24};

// Largest number of routers on the path of a RoCE v2 packet or between InfiniBand subnets.
constexpr uint8_t kHopLimit = 64;

absl::Status out_of_range(std::string_view name, std::string_view value, std::string_view range) {
  std::string what("connect option ");
  what.append(name).append(" is ").append(value);
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, range);
}

ibv_mtu mtu_code(uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

ibv_ah_attr path_to(const Context& context, const Address& peer) {
  ibv_ah_attr path{};
  path.port_num = context.port;
  path.dlid = peer.lid;
  ibv_gid gid{};
  std::copy(peer.gid.begin(), peer.gid.end(), gid.raw);
  // InfiniBand needs the GID only to leave the subnet, or if the port requires it.
  const bool other_subnet = std::memcmp(gid.raw, context.gid.raw, 8) != 0;
  const bool by_gid = context.ethernet() || peer.lid == 0 || other_subnet ||
                      (context.port_attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  if (by_gid) {
    path.is_global = 1;
    path.grh.dgid = gid;
    path.grh.sgid_index = context.gid_index;
    path.grh.hop_limit = kHopLimit;
  }
  return path;
}

}  // namespace

absl::Status check(const ConnectOptions& options) {
  if (options.retry_count > 6) {
    return out_of_range("retry_count", std::to_string(options.retry_count),
                        "use 0 to 6 (7 would never end on some devices)");
  }
  if (options.receiver_retry_count > 7) {
    return out_of_range("receiver_retry_count", std::to_string(options.receiver_retry_count),
                        "use 0 to 7, 7 for no end");
  }
  if (options.ack_timeout.count() <= 0) {
    return out_of_range("ack_timeout", std::to_string(options.ack_timeout.count()) + " us",
                        "use more than 0");
  }
  if (options.receiver_retry_delay.count() < 0) {
    return out_of_range("receiver_retry_delay",
                        std::to_string(options.receiver_retry_delay.count()) + " us",
                        "use 0 or more");
  }
  return absl::OkStatus();
}

uint8_t ack_timeout_code(std::chrono::microseconds time) {
  time = std::min<std::chrono::microseconds>(time, kAnyLongTime);
  for (uint8_t code = 1; code < 31; ++code) {
    if (std::chrono::nanoseconds(int64_t{4096} << code) >= time) return code;
  }
  return 31;
}

uint8_t receiver_delay_code(std::chrono::microseconds time) {
  time = std::min<std::chrono::microseconds>(time, kAnyLongTime);
  for (size_t i = 0; i < kReceiverDelays.size(); ++i) {
    if (std::chrono::microseconds(10 * kReceiverDelays[i]) >= time) {
      return static_cast<uint8_t>(i + 1);
    }
  }
  static_assert(kReceiverDelays.back() < kLongestReceiverDelay);
  return 0;
}

ConnectAttributes connect_attributes(const Context& context, const Address& own,
                                     const Address& peer, const ConnectOptions& options) {
  ConnectAttributes out;
  ibv_qp_attr& receive = out.to_ready_to_receive;
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu_code(std::min(own.mtu, peer.mtu));
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.first_sequence;
  receive.max_dest_rd_atomic =
      static_cast<uint8_t>(std::min(own.served_reads, peer.initiated_reads));
  // The receiver advertises the pause: this is how long the peer waits for this end's receives.
  receive.min_rnr_timer = receiver_delay_code(options.receiver_retry_delay);
  receive.ah_attr = path_to(context, peer);
  out.to_ready_to_receive_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

  ibv_qp_attr& send = out.to_ready_to_send;
  send.qp_state = IBV_QPS_RTS;
  send.timeout = ack_timeout_code(options.ack_timeout);
  send.retry_cnt = static_cast<uint8_t>(options.retry_count);
  send.rnr_retry = static_cast<uint8_t>(options.receiver_retry_count);
  send.sq_psn = own.first_sequence;
  send.max_rd_atomic = static_cast<uint8_t>(std::min(own.initiated_reads, peer.served_reads));
  out.to_ready_to_send_mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  return out;
}

}  // namespace cariama::verbs
