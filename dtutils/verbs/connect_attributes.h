// Converts ConnectOptions and the addresses of both ends to the attributes of the verbs state
// machine.
#ifndef CARIAMA_DTUTILS_VERBS_CONNECT_ATTRIBUTES_H_
#define CARIAMA_DTUTILS_VERBS_CONNECT_ATTRIBUTES_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "dtutils/queue_pair.h"
#include "dtutils/verbs/address.h"
#include "dtutils/verbs/context.h"
#include "dtutils/verbs/handles.h"

namespace cariama::verbs {

// Checks the options. Error: INVALID_ARGUMENT if one is out of the range stated in queue_pair.h.
[[nodiscard]] absl::Status check(const ConnectOptions& options);

// Returns the code t, 1 to 31, of the shortest time 4.096 µs · 2^t that is not below `time` (code 0
// would mean no timeout), or 31 if there is none.
[[nodiscard]] uint8_t ack_timeout_code(std::chrono::microseconds time);

// Returns the code, 0 to 31, of the shortest RNR pause that is not below `time` (InfiniBand
// specification, volume 1, table 45), or the code of the longest pause if there is none.
[[nodiscard]] uint8_t receiver_delay_code(std::chrono::microseconds time);

// The attributes, with their masks, for INIT → RTR and RTR → RTS.
struct ConnectAttributes {
  ibv_qp_attr to_ready_to_receive{};
  int to_ready_to_receive_mask = 0;
  ibv_qp_attr to_ready_to_send{};
  int to_ready_to_send_mask = 0;
};
[[nodiscard]] ConnectAttributes connect_attributes(const Context& context, const Address& own,
                                                   const Address& peer,
                                                   const ConnectOptions& options);

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_CONNECT_ATTRIBUTES_H_
