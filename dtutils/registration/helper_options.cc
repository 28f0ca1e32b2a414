#include <chrono>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtutils/internal/validate.h"
#include "dtutils/registration/helper_thread.h"

namespace cariama {
namespace {

// The largest values that validate() permits.
constexpr uint32_t kMostQueueRecords = 1u << 20;
constexpr uint32_t kMostStream = 1u << 16;
constexpr uint32_t kMostSharing = 1u << 10;
constexpr double kMostMultiple = 1000;

}  // namespace

HelperOptions HelperOptions::improved() {
  HelperOptions options;
  options.predictor_kind = PredictorKind::kFollow;
  options.horizon = std::chrono::microseconds(300);
  options.give_up_after = 1;
  options.look_interval = std::chrono::microseconds(250);
  options.batch = std::chrono::microseconds(50);
  options.piece_bytes = size_t{1} << 20;
  options.piece_from = size_t{16} << 20;
  return options;
}

absl::Status HelperOptions::validate() const {
  using std::chrono::microseconds;
  const auto wrong = [](absl::string_view name, const auto& value, absl::string_view range) {
    return internal::invalid_argument(absl::StrCat("HelperOptions::", name, " is ", value),
                                      absl::StrCat("use ", range));
  };
  if (predictor_kind > PredictorKind::kFollow) {
    return wrong("predictor_kind", static_cast<int>(predictor_kind), "a PredictorKind");
  }
  if (predictor.estimate > PeriodEstimate::kQuantile) {
    return wrong("predictor.estimate", static_cast<int>(predictor.estimate), "a PeriodEstimate");
  }
  for (const auto& [name, value, least, most] :
       {std::tuple("queue_records", queue_records, 1u, kMostQueueRecords),
        {"predictor.window", predictor.window, 0u, PredictorOptions::kMaxWindow},
        {"predictor.stream", predictor.stream, 2u, kMostStream},
        {"sharing_helpers", sharing_helpers, 0u, kMostSharing}}) {
    if (value < least || value > most) {
      return wrong(name, value, absl::StrCat(least, " to ", most));
    }
  }
  for (const auto& [name, value] : {std::pair("give_up_after", give_up_after),
                                    {"predictor.grace", predictor.grace},
                                    {"predictor.spread", predictor.spread},
                                    {"predictor.novice", predictor.novice}}) {
    if (!(value >= 0 && value <= kMostMultiple)) {
      return wrong(name, value, absl::StrCat("0 to ", kMostMultiple));
    }
  }
  for (const auto& [name, value, least] :
       {std::tuple("poll_interval", poll_interval, microseconds(1)),
        {"horizon", horizon, microseconds(0)},
        {"look_interval", look_interval, microseconds(0)},
        {"batch", batch, microseconds(0)},
        {"time_slice", time_slice, microseconds(0)},
        {"context_switch", context_switch, microseconds(0)}}) {
    if (value < least || value > std::chrono::hours(1)) {
      return wrong(name, absl::StrCat(value.count(), " us"),
                   absl::StrCat(least.count(), " us to an hour"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cariama
