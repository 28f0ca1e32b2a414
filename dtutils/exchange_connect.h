// Connects queue pairs, and passes plain values, over an Exchange (exchange.h).
#ifndef CARIAMA_DTUTILS_EXCHANGE_CONNECT_H_
#define CARIAMA_DTUTILS_EXCHANGE_CONNECT_H_

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/error.h"
#include "dtutils/exchange.h"
#include "dtutils/export.h"
#include "dtutils/queue_pair.h"

namespace cariama {

// Connects `queue_pair` to the queue pair that process `rank` connects to this process under the
// same `name`: exchanges the addresses, connects (options.peer is set to the rank's label), and
// waits until the other end has connected too, so that both ends may send immediately. Both ranks
// must call it. Several pairs of ranks may connect at the same time. Errors: those of Exchange and
// of QueuePair::connect, at this end or at the other end.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status connect_over(Exchange& exchange, int rank,
                                                               QueuePair& queue_pair,
                                                               Exchange::Deadline deadline,
                                                               std::string_view name = "queue",
                                                               ConnectOptions options = {});

// Publishes a plain value through Exchange::put, with its errors.
template <typename T>
[[nodiscard]] absl::Status put_value(Exchange& exchange, std::string_view key, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>,
                "cariama: put_value() takes a trivially copyable value");
  return exchange.put(key, std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

// Returns the plain value that `rank` published under `key`. Blocks until that rank has published
// it, as Exchange::get() does. Errors: those of Exchange::get, and INVALID_ARGUMENT (the value has
// another size).
template <typename T>
[[nodiscard]] absl::StatusOr<T> get_value(Exchange& exchange, int rank, std::string_view key,
                                          Exchange::Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<T>,
                "cariama: get_value() returns a trivially copyable value");
  absl::StatusOr<std::string> bytes = exchange.get(rank, key, deadline);
  if (!bytes.ok()) return bytes.status();
  if (bytes->size() != sizeof(T)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      exchange.label(rank) + " put " + std::to_string(bytes->size()) +
                          " bytes as '" + std::string(key) + "', expected " +
                          std::to_string(sizeof(T)),
                      "run the same program in every process");
  }
  T value;
  std::memcpy(&value, bytes->data(), sizeof value);
  return value;
}

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_EXCHANGE_CONNECT_H_
