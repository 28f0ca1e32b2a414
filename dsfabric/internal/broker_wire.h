// What brokers say to each other after the handshake, and how they say where they listen. The
// decoders believe nothing.
#ifndef CARIAMA_DSFABRIC_INTERNAL_BROKER_WIRE_H_
#define CARIAMA_DSFABRIC_INTERNAL_BROKER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/internal/sockets.h"

namespace cariama::internal {

// A request or an answer: length u32 | code u8 | zero u8[3] | bytes; little-endian.
struct BrokerFrame {
  static constexpr size_t kHeaderBytes = 8;
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  uint8_t code = 0;   // an absl::StatusCode; 0 in requests
  std::string bytes;  // what is said, or the text of the error
  friend bool operator==(const BrokerFrame&, const BrokerFrame&) = default;
};
// Precondition: at most kMaxBytes.
[[nodiscard]] std::string encode(const BrokerFrame& frame);

// Takes a stream of one frame.
class BrokerFrameDecoder {
 public:
  // Bytes that are missing until the next step, at least; 0 when the frame is whole.
  [[nodiscard]] size_t wanted() const;
  // Takes the next bytes, at most wanted(). INVALID_ARGUMENT if no broker says that; it stays so.
  absl::Status take(std::string_view bytes);
  [[nodiscard]] bool whole() const { return header_known_ && wanted() == 0; }
  // Precondition: whole().
  [[nodiscard]] BrokerFrame& frame() { return frame_; }

 private:
  std::string header_;
  bool header_known_ = false;
  size_t length_ = 0;
  BrokerFrame frame_;
  absl::Status malformed_;
};

// Where a broker listens.
struct BrokerAddress {
  std::string network;  // which hosts and name spaces of the network `local` can be seen from
  SocketAddress local;
  std::optional<SocketAddress> remote;  // for the others
};
[[nodiscard]] std::string encode(const BrokerAddress& address);
// Error: INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<BrokerAddress> decode_broker_address(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_BROKER_WIRE_H_
