// Feeds the decoder of the data that collectives send along their tree with arbitrary bytes.
//
// An accepted parcel, encoded again, gives the same parcel. Its error, if it has one, keeps its
// code and text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsfabric/collectives/collective_group.h"
#include "dtutils/error.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using cariama::internal::CollectiveParcel;
  const auto parcel =
      CollectiveParcel::load(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parcel.has_value()) return 0;
  require(parcel->bytes.size() + parcel->left_out.size() * sizeof(uint32_t) <= size);
  const auto again = CollectiveParcel::load(parcel->save());
  require(again.has_value());
  require(again->status.code() == parcel->status.code());
  require(again->status.message() == parcel->status.message());
  require(cariama::error_scope(again->status) == cariama::error_scope(parcel->status));
  require(again->left_out == parcel->left_out && again->bytes == parcel->bytes);
  return 0;
}
