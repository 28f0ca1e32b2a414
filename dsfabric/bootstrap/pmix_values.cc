#include "dsfabric/bootstrap/pmix_values.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dtutils/error.h"

namespace cariama::internal {

absl::Status check_place_in_job(uint32_t rank, uint32_t size) {
  if (size <= INT32_MAX && rank < size) return absl::OkStatus();
  return make_error(
      absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
      absl::StrCat("PMIx says that this process is rank ", rank, " of ", size, " processes"));
}

std::string encode_published_store(const PublishedStore& store) {
  const std::string_view key = bytes_of(store.key);
  return absl::StrCat(store.address.text(), " ",
                      absl::BytesToHexString(absl::string_view(key.data(), key.size())));
}

std::string encode_no_store(std::string_view reason) { return "!" + std::string(reason); }

absl::StatusOr<PublishedStore> decode_published_store(std::string_view text) {
  if (!text.empty() && text.front() == '!') {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "rank 0 could not serve the job: " + std::string(text.substr(1)));
  }
  const auto malformed = [] {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      "rank 0 did not publish the address of a store",
                      "start the same executable in every process");
  };
  PublishedStore store;
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return malformed();
  const std::string_view digits = text.substr(space + 1);
  if (digits.size() != 2 * store.key.size()) return malformed();
  for (const char digit : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return malformed();
  }
  const std::string key = absl::HexStringToBytes(absl::string_view(digits.data(), digits.size()));
  std::memcpy(store.key.data(), key.data(), store.key.size());
  absl::StatusOr<SocketAddress> address = SocketAddress::parse(text.substr(0, space));
  if (!address.ok()) return malformed();
  store.address = *std::move(address);
  return store;
}

}  // namespace cariama::internal
