#include "dsfabric/peers/connect_wire.h"

#include <array>
#include <cstddef>
#include <exception>
#include <span>

#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"

namespace cariama::internal {
namespace {

using Kind = ConnectRequest::Kind;

ConnectRequest load_request(std::span<const std::byte> in) {
  ConnectRequest request;
  request.kind = static_cast<Kind>(load_value<char>(in));
  if (request.kind != Kind::kOffer && request.kind != Kind::kReady &&
      request.kind != Kind::kQuestion) {
    throw MalformedArguments("its kind is unknown");
  }
  request.attempt = load_value<uint64_t>(in);
  if (request.kind == Kind::kOffer) {
    // The number is not trusted: memory is allocated for elements that have been read.
    const auto count = load_value<uint32_t>(in);
    if (count == 0) throw MalformedArguments("it offers no queue pair");
    for (uint32_t i = 0; i < count; ++i) {
      ConnectionOffer& offer = request.connections.emplace_back();
      offer.address = load_value<std::string>(in);
      offer.credit = load_value<RemoteMemoryLocator>(in);
      offer.answers = load_value<RemoteMemoryLocator>(in);
      offer.doorbells = load_value<RemoteMemoryLocator>(in);
      const auto units = load_value<std::array<uint32_t, 2>>(in);
      offer.receive_units = units[0];
      offer.receive_unit_bytes = units[1];
    }
  }
  if (!in.empty()) throw MalformedArguments("it is longer than its content");
  return request;
}

}  // namespace

std::string encode(const ConnectRequest& request) {
  std::string bytes(1, static_cast<char>(request.kind));
  save_value(bytes, request.attempt);
  if (request.kind != Kind::kOffer) return bytes;
  save_value(bytes, static_cast<uint32_t>(request.connections.size()));
  for (const ConnectionOffer& offer : request.connections) {
    save_value(bytes, offer.address);
    save_value(bytes, offer.credit);
    save_value(bytes, offer.answers);
    save_value(bytes, offer.doorbells);
    save_value(bytes, std::array<uint32_t, 2>{offer.receive_units, offer.receive_unit_bytes});
  }
  return bytes;
}

absl::StatusOr<ConnectRequest> decode_connect_request(std::string_view bytes,
                                                      const std::string& peer) {
  try {
    return load_request(std::as_bytes(std::span(bytes)));
  } catch (const std::exception& error) {
    return exception_error(
        error, "reading a request to connect of " + peer,
        make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                   peer + " sent a malformed request to connect: " + error.what()));
  }
}

}  // namespace cariama::internal
