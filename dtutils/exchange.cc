#include "dtutils/exchange.h"

#include <utility>

namespace cariama {

absl::StatusOr<std::vector<std::string>> Exchange::get_all(std::string_view key,
                                                           Deadline deadline) {
  std::vector<std::string> values;
  for (int rank = 0; rank < size(); ++rank) {
    absl::StatusOr<std::string> value = get(rank, key, deadline);
    if (!value.ok()) return value.status();
    values.push_back(*std::move(value));
  }
  return values;
}

}  // namespace cariama
