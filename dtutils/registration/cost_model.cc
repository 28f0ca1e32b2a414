#include "dtutils/registration/cost_model.h"

#include <algorithm>

namespace cariama {
namespace {

constexpr double kFade = 1.0 - 1.0 / 64;
constexpr double kMostDeviation = 10e6;  // ns: a registration that took longer was interrupted
constexpr double kLeastCost = 1000;      // ns: shorter ones count as this long

// Half of the way up to a larger value, 1/32 of the way down to a smaller one.
void follow(double& bound, double value) {
  bound += value > bound ? (value - bound) / 2 : (value - bound) / 32;
}

}  // namespace

CostModel::CostModel(double per_page, double base)
    // Two samples of small weight on the initial line, at 0 and 16 pages, so that the first real
    // samples do not make the fit degenerate.
    : weight_(0.5),
      x_(0.25 * 16),
      y_(0.25 * (16 * per_page + 2 * base)),
      xx_(0.25 * 16 * 16),
      xy_(0.25 * 16 * (16 * per_page + base)),
      per_page_(per_page),
      base_(base) {}

void CostModel::add(uint64_t pages, int64_t nanoseconds) {
  const auto x = static_cast<double>(pages);
  // A sample of an interrupted operation does not show the operation's cost.
  const auto measured = static_cast<double>(nanoseconds);
  const auto expected = static_cast<double>(predict(pages));
  const double y = std::min(measured, 20 * (expected + kLeastCost));
  const double above = std::clamp(measured - expected, 0.0, kMostDeviation);
  follow(deviation_, above);
  follow(relative_deviation_, above / (expected + kLeastCost));
  weight_ = weight_ * kFade + 1;
  x_ = x_ * kFade + x;
  y_ = y_ * kFade + y;
  xx_ = xx_ * kFade + x * x;
  xy_ = xy_ * kFade + x * y;
  const double spread = weight_ * xx_ - x_ * x_;
  // With one size only the slope cannot be fitted: keep it, and fit the base.
  if (spread > 1e-3 * weight_ * xx_) per_page_ = std::max(0.0, (weight_ * xy_ - x_ * y_) / spread);
  base_ = (y_ - per_page_ * x_) / weight_;
}

int64_t CostModel::predict(uint64_t pages) const {
  return static_cast<int64_t>(std::max(0.0, per_page_ * static_cast<double>(pages) + base_));
}

int64_t CostModel::predict_most(uint64_t pages) const {
  const int64_t cost = predict(pages);
  const double relative = relative_deviation_ * (static_cast<double>(cost) + kLeastCost);
  return cost + static_cast<int64_t>(std::min(deviation_, relative));
}

}  // namespace cariama
