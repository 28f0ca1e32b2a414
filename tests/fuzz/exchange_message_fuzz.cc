// Feeds the message decoder and the store of a process group with arbitrary bytes.
//
// The first byte is the size of the pieces in which the rest arrives. Bytes that the decoder
// accepts must be equal to the encoding of the result, for any size of pieces. The store must
// accept or refuse each message, and may only answer ranks that exist.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtutils/internal/exchange_message.h"
#include "dtutils/internal/exchange_store.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);

  ExchangeDecoder decoder;
  ExchangeStore store({"a", "b", "c"});
  std::string accepted;
  size_t compared = 0;  // bytes of `accepted` that are known to be equal to those of the stream
  int rank = 0;
  bool malformed = false;
  for (size_t at = 0; at < stream.size() && !malformed; at += piece) {
    decoder.append(stream.substr(at, piece));
    while (true) {
      absl::StatusOr<std::optional<ExchangeMessage>> message = decoder.next();
      malformed = !message.ok();
      if (malformed || !message->has_value()) break;
      encode(**message, accepted);
      std::vector<ExchangeStore::Answer> answers;
      const bool taken = store.handle(rank, std::move(**message), answers).ok();
      require(taken || answers.empty());
      for (const ExchangeStore::Answer& answer : answers)
        require(answer.rank >= 0 && answer.rank < 3);
      rank = (rank + 1) % 3;
    }
    require(std::string_view(accepted).substr(compared) ==
            stream.substr(compared, accepted.size() - compared));
    compared = accepted.size();
  }
  if (!malformed) require(accepted.size() + decoder.pending_bytes() == stream.size());
  std::vector<ExchangeStore::Answer> answers;
  store.rank_ended(1, "has ended", answers);
  for (const ExchangeStore::Answer& answer : answers) require(answer.rank == 0 || answer.rank == 2);
  return 0;
}
