#include "dtutils/internal/json.h"

#include <cstddef>
#include <cstdint>

namespace cariama {
namespace {

// Returns the length of the UTF-8 sequence at the start of `text`, or 0 if there is none.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  size_t length = 0;
  uint32_t point = 0;
  uint32_t least = 0;  // smallest code point of this length; encodings of smaller ones are overlong
  if (byte(0) < 0x80) return 1;
  if ((byte(0) & 0xE0) == 0xC0) {
    length = 2, point = byte(0) & 0x1F, least = 0x80;
  } else if ((byte(0) & 0xF0) == 0xE0) {
    length = 3, point = byte(0) & 0x0F, least = 0x800;
  } else if ((byte(0) & 0xF8) == 0xF0) {
    length = 4, point = byte(0) & 0x07, least = 0x10000;
  } else {
    return 0;
  }
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  return point >= least && point <= 0x10FFFF && !surrogate ? length : 0;
}

}  // namespace

std::string json_string(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size() + 2);
  out += '"';
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    const auto first = static_cast<uint8_t>(text.front());
    if (length == 0) {
      out += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      out += '\\';
      out += text.front();
    } else if (first < 0x20) {
      out += "\\u00";
      out += kHex[first >> 4];
      out += kHex[first & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
  return out;
}

}  // namespace cariama
