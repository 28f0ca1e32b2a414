#include "hex/game_clock.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace cariama::hex {
namespace {

constexpr double kLeast = 0.01;  // seconds for a move

// Returns the time for one of `stones` moves that share `seconds` of byo-yomi.
double share(double seconds, double stones) {
  const double each = seconds / stones;
  return each - std::clamp(each / 20, 0.02, 0.25);
}

}  // namespace

GameClock::GameClock(const TimeSettings& settings)
    : limited_(settings.limited()), settings_(settings), left_(settings.main) {
  if (left_ > 0 || !settings_.has_periods()) return;
  left_ = settings_.period;
  stones_ = settings_.stones;
}

void GameClock::set_left(double seconds, double stones) {
  limited_ = true;
  left_ = seconds;
  stones_ = stones;
}

void GameClock::spend(double seconds) {
  if (!limited_) return;
  left_ -= seconds;
  if (stones_ == 0 && left_ <= 0 && settings_.has_periods()) {
    left_ += settings_.period;
    stones_ = settings_.stones;
  }
  if (stones_ >= 1) {
    if (--stones_ < 1) {
      left_ = settings_.period;
      stones_ = settings_.stones;
    }
  }
  left_ = std::max(left_, 0.0);
}

std::optional<double> GameClock::move_seconds(int empties) const {
  if (!limited_) return std::nullopt;
  if (stones_ > 0) return std::max(kLeast, share(left_, stones_));
  // The number of moves to which the time is divided. A game fills about half of the cells, so the
  // side to move gets about a quarter of the empty ones; a fifth gives early moves more time.
  const double moves = std::max(6.0, empties / 5.0);
  const double of_main = (left_ - 0.5) / moves;
  // A move that uses up the main time becomes the first move of a period, and may take its share.
  const double of_period =
      settings_.has_periods() ? share(settings_.period, settings_.stones) : kLeast;
  return std::max({kLeast, of_main, of_period});
}

std::string GameClock::text() const {
  if (!limited_) return "unlimited";
  if (stones_ == 0) return absl::StrFormat("%.1f", left_);
  return absl::StrFormat("%.1f/%g", left_, stones_);
}

}  // namespace cariama::hex
