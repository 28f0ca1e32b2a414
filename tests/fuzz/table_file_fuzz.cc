// The decoder of saved hash tables gets arbitrary bytes. It must not crash, and the keys that it
// reports must have the properties that the header states. The first byte selects whether the
// checksums are made right, so that the fuzzer gets past them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dht/internal/table_file.h"
#include "dht/table_layout.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// The checksum of the file format.
uint64_t checksum_of(std::span<const uint64_t> words) {
  uint64_t state = 0x9e37'79b9'7f4a'7c15;
  for (const uint64_t word : words) {
    state = (state ^ word) * 0xff51'afd7'ed55'8ccd;
    state ^= state >> 32;
  }
  return state;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  if (size < 2) return 0;
  std::vector<std::byte> bytes(size - 1);
  std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] % 2 == 0 && bytes.size() >= 64) {
    std::vector<uint64_t> words(bytes.size() / 8);
    std::memcpy(words.data(), bytes.data(), words.size() * 8);
    words[0] = 0x5448'4441'4952'4143;
    words[1] = 1 | words[1] >> 32 << 32;
    words[7] = checksum_of(std::span(words).first(7));
    words.back() = words.size() > 9 ? checksum_of(std::span(words).subspan(8, words.size() - 9))
                                    : words.back();
    bytes.resize(words.size() * 8);
    std::memcpy(bytes.data(), words.data(), bytes.size());
  }
  size_t at = 0;
  cariama::internal::TableFileHeader header;
  uint64_t keys = 0;
  uint64_t next = 0;
  const absl::Status decoded = cariama::internal::decode_table_file(
      "input",
      [&](std::span<std::byte> into) -> absl::StatusOr<size_t> {
        const size_t count = std::min(into.size(), bytes.size() - at);
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), count, into.begin());
        at += count;
        return count;
      },
      [&](const cariama::internal::TableFileHeader& decoded_header) {
        header = decoded_header;
        return absl::OkStatus();
      },
      [&](uint64_t position, std::span<const uint64_t> stored) {
        require(position < header.buckets && position >= next && stored.size() == header.words);
        for (const uint64_t word : stored) require((word & cariama::kWordPresent) != 0);
        next = position + 1;
        ++keys;
        return absl::OkStatus();
      });
  require(!decoded.ok() || keys == header.keys);
  return 0;
}
