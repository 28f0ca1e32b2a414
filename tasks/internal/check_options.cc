#include "tasks/internal/check_options.h"

#include "dtutils/error.h"

namespace cariama::tasks {

absl::Status check_common_options(const std::string& owner,
                                  const std::vector<std::vector<Rank>>& victims,
                                  std::chrono::microseconds idle_sleep,
                                  std::chrono::milliseconds timeout,
                                  std::chrono::milliseconds run_timeout, Rank rank, uint32_t size) {
  const auto invalid = [&](const std::string& text, std::string_view remedy) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, owner + text,
                      remedy);
  };
  if (idle_sleep < std::chrono::microseconds::zero() || idle_sleep > std::chrono::seconds(1)) {
    return invalid("::idle_sleep is " + std::to_string(idle_sleep.count()) + " us",
                   "choose 0 to 1 s");
  }
  if (timeout < std::chrono::milliseconds(1) || timeout > kMostTimeout) {
    return invalid("::timeout is " + std::to_string(timeout.count()) + " ms",
                   "choose 1 ms to 100 years");
  }
  if (run_timeout < std::chrono::milliseconds::zero() || run_timeout > kMostTimeout) {
    return invalid("::run_timeout is " + std::to_string(run_timeout.count()) + " ms",
                   "choose 0, which is no limit, to 100 years");
  }
  std::vector<bool> seen(size);
  for (const std::vector<Rank>& level : victims) {
    for (const Rank victim : level) {
      std::string wrong;
      if (victim >= size) {
        wrong = ", but the job has " + std::to_string(size) + " workers";
      } else if (victim == rank) {
        wrong = ", which is this worker";
      } else if (seen[victim]) {
        wrong = " twice";
      }
      if (!wrong.empty()) {
        return invalid("::victims holds rank " + std::to_string(victim.value()) + wrong,
                       "name each other worker at most once");
      }
      seen[victim] = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace cariama::tasks
