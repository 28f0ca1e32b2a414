// Shared by the fuzzers: an input that is read field by field, and checks that are active in every
// build.
#ifndef CARIAMA_TESTS_FUZZ_FUZZ_INPUT_H_
#define CARIAMA_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace cariama {

inline void require(bool condition) {
  if (!condition) std::abort();
}

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : bytes_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  // Returns the next field. Bytes beyond the end of the input are 0.
  template <typename Plain>
  Plain take() {
    static_assert(std::is_trivially_copyable_v<Plain>);
    Plain value{};
    const std::string_view bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(static_cast<void*>(&value), bytes.data(), bytes.size());
    return value;
  }

  // Returns the next `count` bytes, or fewer at the end of the input.
  std::string_view take_bytes(size_t count) {
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

}  // namespace cariama

#endif  // CARIAMA_TESTS_FUZZ_FUZZ_INPUT_H_
