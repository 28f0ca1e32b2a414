#include <exception>
#include <span>

#include "dsfabric/collectives/collective_group.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"

namespace cariama::internal {

std::string CollectiveParcel::save() const {
  std::string out;
  save_value(out, static_cast<uint32_t>(status.code()));
  save_value(out, static_cast<uint32_t>(error_scope(status)));
  save_value(out, std::string(status.message()));
  save_value(out, left_out);
  save_value(out, bytes);
  return out;
}

std::optional<CollectiveParcel> CollectiveParcel::load(std::string_view bytes) {
  try {
    auto in = std::as_bytes(std::span(bytes));
    const auto code = load_value<uint32_t>(in);
    const auto scope = load_value<uint32_t>(in);
    const auto text = load_value<std::string>(in);
    if (code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) ||
        scope > static_cast<uint32_t>(ErrorScope::kProcess)) {
      return std::nullopt;
    }
    CollectiveParcel parcel;
    if (code != 0) {
      parcel.status =
          make_error(static_cast<absl::StatusCode>(code), static_cast<ErrorScope>(scope), text);
    }
    parcel.left_out = load_value<std::vector<uint32_t>>(in);
    parcel.bytes = load_value<std::string>(in);
    return parcel;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace cariama::internal
