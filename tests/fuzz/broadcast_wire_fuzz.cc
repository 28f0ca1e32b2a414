// Feeds the decoder of the answers in a broadcast's tree with arbitrary bytes.
//
// No bytes are OK, and no other bytes are. An error that is decoded, encoded again, gives the same
// bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dtutils/error.h"
#include "riutils/internal/broadcast_wire.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using cariama::internal::encode_broadcast_answer;
  const absl::Status status =
      cariama::internal::decode_broadcast_answer(std::as_bytes(std::span(data, size)));
  require(status.ok() == (size == 0));
  const bool valid =
      size == 0 || (size >= 2 && data[0] >= 1 &&
                    data[0] <= static_cast<int>(absl::StatusCode::kUnauthenticated) &&
                    data[1] <= static_cast<int>(cariama::ErrorScope::kProcess));
  if (!valid) {
    require(absl::IsDataLoss(status));
    return 0;
  }
  require(encode_broadcast_answer(status, size) ==
          std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
