// The bytes of results and of exceptions that a joiner gets from another worker.
//
// Transfer<T>::unpack() accepts exactly the bytes of whole values, and pack() then returns the same
// bytes. The text of an exception, with any name of a type, becomes an exception.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tasks/exceptions.h"
#include "tasks/transfer.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama {
namespace {

struct Point {
  int32_t x;
  uint8_t y;
  std::array<uint16_t, 3> z;
};

// `most`: the most bytes of a value, or 0 if there is no limit.
template <typename T>
void unpack(std::span<const std::byte> bytes, size_t unit, size_t most) {
  const bool whole = bytes.size() % unit == 0 && (most == 0 || bytes.size() <= most);
  try {
    const T value = Transfer<T>::unpack(bytes);
    require(whole);
    std::vector<std::byte> packed;
    Transfer<T>::pack(value, packed);
    require(packed.size() == bytes.size() &&
            std::equal(packed.begin(), packed.end(), bytes.begin()));
  } catch (const std::invalid_argument&) {
    require(!whole);
  }
}

// `bytes`: a type's name, a zero, and a text, as in the block of a failed result.
void throw_from(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  try {
    tasks::throw_described(std::string(bytes.substr(0, end)),
                           std::string(bytes.substr(std::min(end + 1, bytes.size()))));
  } catch (const std::exception& error) {
    require(error.what() != nullptr);
    return;
  }
  require(false);
}

}  // namespace
}  // namespace cariama

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;  // NOLINT
  FuzzInput input(data, size);
  const auto choice = input.take<uint8_t>();
  const std::string_view taken = input.take_bytes(SIZE_MAX);
  // A copy at the end of heap memory, so that AddressSanitizer reports a read beyond it.
  const std::vector<char> copy(taken.begin(), taken.end());
  const auto bytes = std::as_bytes(std::span(copy));
  switch (choice % 8) {
    case 0:
      unpack<std::string>(bytes, 1, 0);
      break;
    case 1:
      unpack<std::vector<char>>(bytes, 1, 0);
      break;
    case 2:
      unpack<std::vector<uint32_t>>(bytes, sizeof(uint32_t), 0);
      break;
    case 3:
      unpack<std::vector<Point>>(bytes, sizeof(Point), 0);
      break;
    case 4:
      unpack<std::unique_ptr<uint64_t>>(bytes, sizeof(uint64_t), sizeof(uint64_t));
      break;
    case 5:
      unpack<std::vector<std::pair<uint16_t, uint64_t>>>(bytes, 16, 0);
      break;
    default:
      throw_from({copy.data(), copy.size()});
  }
  return 0;
}
