#include "dtutils/registration/cost_model.h"

#include <algorithm>

namespace cariama {
namespace {

constexpr double kFade = 1.0 - 1.0 / 64;
constexpr double kMostDeviation = 10e6;  // ns: a registration that took longer was interrupted

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
  const auto y =
      std::min(static_cast<double>(nanoseconds), 20 * (static_cast<double>(predict(pages)) + 1000));
  const double above = static_cast<double>(nanoseconds) - static_cast<double>(predict(pages));
  deviation_ += above > deviation_ ? (std::min(above, kMostDeviation) - deviation_) / 2
                                   : (std::max(above, 0.0) - deviation_) / 32;
  deviation_ = std::max(deviation_, 0.0);
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
  return predict(pages) + static_cast<int64_t>(deviation_);
}

}  // namespace cariama
