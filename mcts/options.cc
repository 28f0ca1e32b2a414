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
  if (!(selection.exploration >= 0 && std::isfinite(selection.exploration))) {
    return refuse("selection.exploration", selection.exploration, "a finite number, 0 or more");
  }
  if (!(selection.first_play >= 0 && selection.first_play <= 1)) {
    return refuse("selection.first_play", selection.first_play, "a number from 0 to 1");
  }
  if (!(selection.amaf_equivalence >= 0 && std::isfinite(selection.amaf_equivalence))) {
    return refuse("selection.amaf_equivalence", selection.amaf_equivalence,
                  "a finite number, 0 or more");
  }
  if (!(selection.bias >= 0 && std::isfinite(selection.bias))) {
    return refuse("selection.bias", selection.bias, "a finite number, 0 or more");
  }
  if (!(selection.virtual_loss >= 0 && selection.virtual_loss <= 1)) {
    return refuse("selection.virtual_loss", selection.virtual_loss, "a number from 0 to 1");
  }
  if (!(paper.exploration >= 0 && std::isfinite(paper.exploration))) {
    return refuse("paper.exploration", paper.exploration, "a finite number, 0 or more");
  }
  if (!(choice.deviations >= 0 && std::isfinite(choice.deviations))) {
    return refuse("choice.deviations", choice.deviations, "a finite number, 0 or more");
  }
  if (!(choice.least_share > 0 && choice.least_share <= 1)) {
    return refuse("choice.least_share", choice.least_share, "a number above 0, at most 1");
  }
  if (!(value_weight >= 0 && value_weight <= 1)) {
    return refuse("value_weight", value_weight, "a number from 0 to 1");
  }
  if (!(root_noise.fraction >= 0 && root_noise.fraction <= 1)) {
    return refuse("root_noise.fraction", root_noise.fraction, "a number from 0 to 1");
  }
  if (!(root_noise.concentration >= 1e-4 && root_noise.concentration <= 1e6)) {
    return refuse("root_noise.concentration", root_noise.concentration,
                  "a number from 0.0001 to 1000000");
  }
  const bool puct = selection.rule == SelectionRule::kPuct;
  if (root_noise.fraction > 0 && !((puct ? selection.exploration : selection.bias) > 0)) {
    return refuse("root_noise.fraction", root_noise.fraction,
                  puct ? "0, or set selection.exploration above 0: now the selection ignores priors"
                       : "0, or set selection.rule to kPuct or selection.bias above 0: now the "
                         "selection ignores priors");
  }
  constexpr uint32_t kMostPositions = 65536;
  if (evaluation.batch < 1 || evaluation.batch > kMostPositions) {
    return refuse("evaluation.batch", evaluation.batch, "a number from 1 to 65536");
  }
  if (evaluation.in_flight < 1 || evaluation.in_flight > kMostPositions) {
    return refuse("evaluation.in_flight", evaluation.in_flight, "a number from 1 to 65536");
  }
  constexpr uint32_t kMostInFlight = 1024;
  if (playouts_in_flight > kMostInFlight) {
    return refuse("playouts_in_flight", playouts_in_flight, "a number from 0 to 1024");
  }
  if (!(evaluation.timeout_seconds > 0 && std::isfinite(evaluation.timeout_seconds))) {
    return refuse("evaluation.timeout_seconds", evaluation.timeout_seconds,
                  "a finite number above 0");
  }
  return absl::OkStatus();
}

void throw_if_invalid(const SearchOptions& options) {
  if (const absl::Status status = options.validate(); !status.ok()) {
    throw std::invalid_argument(std::string(status.message()));
  }
}

}  // namespace cariama::mcts
