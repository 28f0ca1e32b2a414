// The messages between a process and the store of its process group, and their encoding on a
// stream.
//
// A message is a 32-byte header, the key, and the value; integers are little-endian:
//
//   0 magic u32 | 4 type u8 | 5 zero u8[3] | 8 request u64 | 16 rank u32 | 20 code u32 |
//   24 key length u32 | 28 value length u32
//
// The decoder trusts no input: it checks every field before use, and memory grows only with bytes
// that have arrived.
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCHANGE_MESSAGE_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCHANGE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cariama::internal {

enum class ExchangeType : uint8_t {
  // To the store:
  kPut = 1,     // key, value
  kGet = 2,     // request, rank, key
  kFence = 3,   // request
  kWatch = 7,   // code: 1 report the ends of other ranks from now on, 0 stop
  kGetAll = 9,  // request, key; the answers are a kValue for each rank, or a kError
  // From the store:
  kValue = 4,      // request, rank (which has put it), value
  kFenceDone = 5,  // request
  kError = 6,      // request, code (an absl::StatusCode), value (text)
  kEnded = 8,      // rank, value (the text for "LABEL ...")
};

struct ExchangeMessage {
  ExchangeType type = ExchangeType::kPut;
  uint64_t request = 0;  // identifies a kGet, kGetAll or kFence in its answer
  uint32_t rank = 0;
  uint32_t code = 0;
  std::string key;
  std::string value;

  friend bool operator==(const ExchangeMessage&, const ExchangeMessage&) = default;
};

inline constexpr size_t kExchangeHeaderBytes = 32;

// Appends the message's bytes to `out`. Requires: key and value are within Exchange's limits.
void encode(const ExchangeMessage& message, std::string& out);

// Splits a stream of bytes into messages.
class ExchangeDecoder {
 public:
  // Appends the next bytes of the stream, in pieces of any size.
  void append(std::string_view bytes) { buffer_.append(bytes); }

  // Returns the next complete message, or an empty optional if more bytes are needed. Error:
  // INVALID_ARGUMENT if the stream is malformed; every later call then fails too, because the start
  // of the next message is unknown.
  [[nodiscard]] absl::StatusOr<std::optional<ExchangeMessage>> next();

  // Returns the number of bytes that were appended and belong to no returned message yet.
  [[nodiscard]] size_t pending_bytes() const { return buffer_.size() - consumed_; }

 private:
  std::string buffer_;
  size_t consumed_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_MESSAGE_H_
