// The encoding of the messages that brokers exchange after the handshake, and of the addresses that
// they listen at. The decoders validate everything.
#ifndef CARIAMA_DSFABRIC_PEERS_BROKER_WIRE_H_
#define CARIAMA_DSFABRIC_PEERS_BROKER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/sockets.h"

namespace cariama::internal {

// A request or an answer: length u32 | code u8 | zero u8[3] | bytes; little-endian.
struct BrokerFrame {
  static constexpr size_t kHeaderBytes = 8;
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  uint8_t code = 0;   // an absl::StatusCode; 0 in requests
  std::string bytes;  // the payload, or an error's text
  friend bool operator==(const BrokerFrame&, const BrokerFrame&) = default;
};
// Requires: at most kMaxBytes bytes.
[[nodiscard]] std::string encode(const BrokerFrame& frame);

// Decodes one frame from a stream.
class BrokerFrameDecoder {
 public:
  // Returns the minimum number of bytes missing until the next step; 0 when the frame is complete.
  [[nodiscard]] size_t wanted() const;
  // Takes the next bytes, at most wanted(). Returns INVALID_ARGUMENT if they are malformed; all
  // further calls then return the same error.
  absl::Status take(std::string_view bytes);
  [[nodiscard]] bool whole() const { return header_known_ && wanted() == 0; }
  // Requires: whole().
  [[nodiscard]] BrokerFrame& frame() { return frame_; }

 private:
  std::string header_;
  bool header_known_ = false;
  size_t length_ = 0;
  BrokerFrame frame_;
  absl::Status malformed_;
};

// The addresses that a broker listens at.
struct BrokerAddress {
  std::string network;  // the host and network name space in which `local` is reachable
  SocketAddress local;
  std::optional<SocketAddress> remote;  // for processes elsewhere
};
[[nodiscard]] std::string encode(const BrokerAddress& address);
// Error: INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<BrokerAddress> decode_broker_address(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_BROKER_WIRE_H_
