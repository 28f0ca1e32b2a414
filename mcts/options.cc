#include "mcts/options.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"

namespace cariama::mcts {
namespace {

absl::Status refuse(std::string_view option, double value, std::string_view valid) {
  return absl::InvalidArgumentError(absl::StrCat("SearchOptions::", std::string(option), " is ",
                                                 value, ": set it to ", std::string(valid)));
}

}  // namespace

// Each condition is one that a NaN does not fulfil.
absl::Status SearchOptions::validate() const {
  if (!(choice.deviations >= 0 && std::isfinite(choice.deviations))) {
    return refuse("choice.deviations", choice.deviations, "a finite number, 0 or more");
  }
  if (!(choice.least_share > 0 && choice.least_share <= 1)) {
    return refuse("choice.least_share", choice.least_share, "a number above 0, at most 1");
  }
  return absl::OkStatus();
}

void throw_if_invalid(const SearchOptions& options) {
  if (const absl::Status status = options.validate(); !status.ok()) {
    throw std::invalid_argument(std::string(status.message()));
  }
}

}  // namespace cariama::mcts
