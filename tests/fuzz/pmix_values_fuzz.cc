// Feeds the decoder of the text that rank 0 publishes through PMIx with arbitrary bytes.
//
// An accepted text names a store: encoded again and decoded, it gives the same store.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsfabric/bootstrap/pmix_values.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using cariama::internal::decode_published_store;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto store = decode_published_store(text);
  if (!store.ok()) {
    require(absl::IsUnavailable(store.status()) == text.starts_with('!'));
    require(absl::IsUnavailable(store.status()) || absl::IsFailedPrecondition(store.status()));
    return 0;
  }
  const auto again = decode_published_store(encode_published_store(*store));
  require(again.ok() && again->key == store->key);
  require(again->address.text() == store->address.text());
  return 0;
}
