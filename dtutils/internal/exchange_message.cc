#include "dtutils/internal/exchange_message.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/exchange.h"

namespace cariama::internal {
namespace {

constexpr uint32_t kMagic = 0x31475843;  // "CXG1"

template <typename T>
void append_integer(T value, std::string& out) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

template <typename T>
T integer_at(std::string_view bytes, size_t offset) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<uint8_t>(bytes[offset + i])) << (8 * i);
  }
  return value;
}

absl::Status malformed(const std::string& what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                    absl::StrCat("malformed exchange message: ", what));
}

}  // namespace

void encode(const ExchangeMessage& message, std::string& out) {
  out.reserve(out.size() + kExchangeHeaderBytes + message.key.size() + message.value.size());
  append_integer(kMagic, out);
  out.push_back(static_cast<char>(message.type));
  out.append(3, '\0');
  append_integer(message.request, out);
  append_integer(message.rank, out);
  append_integer(message.code, out);
  append_integer(static_cast<uint32_t>(message.key.size()), out);
  append_integer(static_cast<uint32_t>(message.value.size()), out);
  out.append(message.key);
  out.append(message.value);
}

absl::StatusOr<std::optional<ExchangeMessage>> ExchangeDecoder::next() {
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  if (bytes.size() < kExchangeHeaderBytes) return std::nullopt;

  const auto magic = integer_at<uint32_t>(bytes, 0);
  if (magic != kMagic) return malformed(absl::StrCat("it starts with ", absl::Hex(magic)));
  const auto type = integer_at<uint8_t>(bytes, 4);
  if (type < static_cast<uint8_t>(ExchangeType::kPut) ||
      type > static_cast<uint8_t>(ExchangeType::kGetAll)) {
    return malformed(absl::StrCat("there is no type ", type));
  }
  if (bytes[5] != 0 || bytes[6] != 0 || bytes[7] != 0) return malformed("padding is not zero");
  const auto key_length = integer_at<uint32_t>(bytes, 24);
  if (key_length > Exchange::kMaxKey) {
    return malformed(absl::StrCat("it claims a key of ", key_length, " bytes"));
  }
  const auto value_length = integer_at<uint32_t>(bytes, 28);
  if (value_length > Exchange::kMaxValue) {
    return malformed(absl::StrCat("it claims a value of ", value_length, " bytes"));
  }
  const size_t length = kExchangeHeaderBytes + key_length + value_length;
  if (bytes.size() < length) return std::nullopt;

  ExchangeMessage message;
  message.type = static_cast<ExchangeType>(type);
  message.request = integer_at<uint64_t>(bytes, 8);
  message.rank = integer_at<uint32_t>(bytes, 16);
  message.code = integer_at<uint32_t>(bytes, 20);
  message.key = bytes.substr(kExchangeHeaderBytes, key_length);
  message.value = bytes.substr(kExchangeHeaderBytes + key_length, value_length);

  // Erasing the front moves the remaining bytes, so it is done once for many small messages.
  consumed_ += length;
  if (consumed_ == buffer_.size()) {
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > (64U << 10)) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return message;
}

}  // namespace cariama::internal
