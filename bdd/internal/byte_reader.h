// ByteReader: little-endian integers from a sequence of bytes, with the offset of the first error.
#ifndef CARIAMA_BDD_INTERNAL_BYTE_READER_H_
#define CARIAMA_BDD_INTERNAL_BYTE_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cariama::bdd::internal {

class ByteReader {
 public:
  // An offset behind the end counts as the end.
  ByteReader(std::string_view bytes, size_t offset)
      : bytes_(bytes), offset_(std::min(offset, bytes.size())) {}

  [[nodiscard]] size_t offset() const { return offset_; }
  [[nodiscard]] size_t left() const { return bytes_.size() - offset_; }
  // Reads an integer of sizeof(T) bytes into `value`. Returns false at the end of the bytes.
  template <typename T>
  [[nodiscard]] bool read(T& value) {
    if (left() < sizeof(T)) return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= uint64_t{static_cast<unsigned char>(bytes_[offset_ + i])} << (8 * i);
    }
    value = static_cast<T>(bits);
    offset_ += sizeof(T);
    return true;
  }
  [[nodiscard]] std::string_view take(size_t count) {
    offset_ += count;
    return bytes_.substr(offset_ - count, count);
  }
  // Returns the error `what` at `offset`.
  [[nodiscard]] static absl::Status error(size_t offset, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", offset, ": ", what));
  }
  [[nodiscard]] absl::Status ends(const std::string& what) const {
    return error(offset_, absl::StrCat("the file ends in ", what));
  }

 private:
  std::string_view bytes_;
  size_t offset_;
};

template <typename T>
void append_integer(T value, std::string& bytes) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_BYTE_READER_H_
