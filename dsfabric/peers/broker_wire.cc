#include "dsfabric/peers/broker_wire.h"

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

absl::Status malformed(std::string_view what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                    "malformed broker message: " + std::string(what));
}

}  // namespace

std::string encode(const BrokerFrame& frame) {
  std::string out;
  out.reserve(BrokerFrame::kHeaderBytes + frame.bytes.size());
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(frame.bytes.size() >> (8 * i)));
  out.push_back(static_cast<char>(frame.code));
  out.append(3, '\0');
  return out + frame.bytes;
}

size_t BrokerFrameDecoder::wanted() const {
  return header_known_ ? length_ - frame_.bytes.size() : BrokerFrame::kHeaderBytes - header_.size();
}

absl::Status BrokerFrameDecoder::take(std::string_view bytes) {
  if (!malformed_.ok()) return malformed_;
  if (bytes.size() > wanted()) return malformed_ = malformed("it is longer than its header says");
  if (header_known_) {
    frame_.bytes.append(bytes);  // memory grows with the bytes that have arrived
    return absl::OkStatus();
  }
  header_.append(bytes);
  if (header_.size() < BrokerFrame::kHeaderBytes) return absl::OkStatus();
  for (size_t i = 0; i < 4; ++i) length_ |= size_t{static_cast<uint8_t>(header_[i])} << (8 * i);
  frame_.code = static_cast<uint8_t>(header_[4]);
  if (length_ > BrokerFrame::kMaxBytes)
    return malformed_ = malformed("its length exceeds the maximum");
  if (frame_.code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
    return malformed_ = malformed("its status code is unknown");
  }
  if (header_.find_first_not_of('\0', 5) != std::string::npos) {
    return malformed_ = malformed("padding is not zero");
  }
  header_known_ = true;
  return absl::OkStatus();
}

std::string encode(const BrokerAddress& address) {
  return address.network + "\n" + address.local.text() + "\n" +
         (address.remote ? address.remote->text() : "");
}

absl::StatusOr<BrokerAddress> decode_broker_address(std::string_view text) {
  const size_t first = text.find('\n');
  const size_t second = first == std::string_view::npos ? first : text.find('\n', first + 1);
  if (second == std::string_view::npos) return malformed("an address of three lines is expected");
  BrokerAddress address;
  address.network = text.substr(0, first);
  absl::StatusOr<SocketAddress> local =
      SocketAddress::parse(text.substr(first + 1, second - first - 1));
  if (!local.ok()) return local.status();
  if (local->family() != AF_UNIX) return malformed("its local address is not a local socket");
  address.local = *local;
  if (second + 1 == text.size()) return address;
  absl::StatusOr<SocketAddress> remote = SocketAddress::parse(text.substr(second + 1));
  if (!remote.ok()) return remote.status();
  if (remote->family() == AF_UNIX)
    return malformed("its address for other hosts is a local socket");
  address.remote = *remote;
  return address;
}

}  // namespace cariama::internal
