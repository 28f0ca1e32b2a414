#include "tasks/internal/check_options.h"

#include "dtutils/error.h"

namespace cariama::tasks {

absl::Status check_common_options(const std::string& owner,
                                  const std::vector<std::vector<int>>& victims,
                                  std::chrono::microseconds idle_sleep, int rank, int size) {
  const auto invalid = [&](const std::string& text, std::string_view remedy) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, owner + text,
                      remedy);
  };
  if (idle_sleep < std::chrono::microseconds::zero() || idle_sleep > std::chrono::seconds(1)) {
    return invalid("::idle_sleep is " + std::to_string(idle_sleep.count()) + " us",
                   "choose 0 to 1 s");
  }
  std::vector<bool> seen(static_cast<size_t>(size));
  for (const std::vector<int>& level : victims) {
    for (const int victim : level) {
      std::string wrong;
      if (victim < 0 || victim >= size) {
        wrong = ", but the job has " + std::to_string(size) + " workers";
      } else if (victim == rank) {
        wrong = ", which is this worker";
      } else if (seen[static_cast<size_t>(victim)]) {
        wrong = " twice";
      }
      if (!wrong.empty()) {
        return invalid("::victims holds rank " + std::to_string(victim) + wrong,
                       "name each other worker at most once");
      }
      seen[static_cast<size_t>(victim)] = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace cariama::tasks
