#include "dtutils/registration/period_predictor.h"

#include <algorithm>
#include <cmath>

namespace cariama {
namespace {

// Mixes a word into a hash (the finaliser of splitmix64).
uint64_t mix(uint64_t hash, uint64_t word) {
  uint64_t x = hash ^ (word + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void PredictionErrors::add(int64_t predicted, int64_t observed) {
  ++predictions;
  const double error = std::abs(static_cast<double>(observed - predicted)) /
                       static_cast<double>(std::max<int64_t>(observed, 1));
  if (error < 0.005) ++below_half_percent;
  if (error < 0.05) ++below_5_percent;
  if (error < 0.2) ++below_20_percent;
}

PredictionErrors& PredictionErrors::operator+=(const PredictionErrors& other) {
  predictions += other.predictions;
  below_half_percent += other.below_half_percent;
  below_5_percent += other.below_5_percent;
  below_20_percent += other.below_20_percent;
  return *this;
}

ContextPredictor::ContextPredictor(const PredictorOptions& options) : options_(options) {
  if (!options.learn_early || options.window == 0) return;
  PredictorOptions early = options;
  early.window = 0;
  without_context_ = std::make_unique<ContextPredictor>(early);
}

uint64_t ContextPredictor::signature(const PredictorUse& use) const {
  uint64_t hash = mix(mix(0, use.stack), use.region);
  for (uint32_t i = 0; i < std::min(options_.window, kMaxWindow); ++i)
    hash = mix(hash, context_[i]);
  return hash;
}

std::optional<int64_t> ContextPredictor::period(const Site& site) const {
  if (site.periods == 0) return std::nullopt;
  const size_t count = std::min<size_t>(site.periods, kSamples);
  std::array<int64_t, kSamples> sorted = site.recent;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  switch (options_.estimate) {
    case PeriodEstimate::kMinimum:
      return site.shortest;
    case PeriodEstimate::kLast:
      return site.recent[(site.periods - 1) % kSamples];
    case PeriodEstimate::kMedian:
      return sorted[count / 2];
    case PeriodEstimate::kQuantile:
      return sorted[0];
  }
  return std::nullopt;
}

std::optional<int64_t> ContextPredictor::record(const PredictorUse& use) {
  if (without_context_ != nullptr) static_cast<void>(without_context_->record(use));
  const uint64_t name = signature(use);
  const auto [position, is_new] = sites_.try_emplace(name);
  Site& site = position->second;
  if (is_new) {
    signatures_of_[use.region].push_back(name);
  } else {
    const int64_t observed = use.time - site.last;
    if (const std::optional<int64_t> predicted = period(site); predicted.has_value()) {
      errors_.add(*predicted, observed);
    }
    site.recent[site.periods % kSamples] = observed;
    ++site.periods;
    site.shortest = std::min(site.shortest, observed);
  }
  site.last = use.time;
  std::copy_backward(context_.begin(), context_.end() - 1, context_.end());
  context_[0] = mix(use.stack, use.region);
  return next_use(use.region, use.time);
}

std::optional<int64_t> ContextPredictor::next_use(uint64_t region, int64_t now) const {
  const auto found = signatures_of_.find(region);
  if (found == signatures_of_.end()) return std::nullopt;
  std::optional<int64_t> earliest;
  bool any_period = false;
  for (const uint64_t name : found->second) {
    const Site& site = sites_.at(name);
    const std::optional<int64_t> span = period(site);
    if (!span.has_value()) continue;
    any_period = true;
    const int64_t deadline = site.last + *span;
    const auto late = static_cast<int64_t>(options_.grace * static_cast<double>(*span));
    if (deadline < now && now - deadline >= late) continue;
    const int64_t due = std::max(deadline, now);
    if (!earliest.has_value() || due < *earliest) earliest = due;
  }
  if (!any_period && without_context_ != nullptr) return without_context_->next_use(region, now);
  return earliest;
}

void ContextPredictor::forget(uint64_t region) {
  if (without_context_ != nullptr) without_context_->forget(region);
  const auto found = signatures_of_.find(region);
  if (found == signatures_of_.end()) return;
  for (const uint64_t name : found->second) sites_.erase(name);
  signatures_of_.erase(found);
}

PeriodicityPredictor::PeriodicityPredictor(const PredictorOptions& options) : options_(options) {}

std::optional<int64_t> PeriodicityPredictor::record(const PredictorUse& use) {
  if (const auto found = predicted_.find(use.region); found != predicted_.end()) {
    errors_.add(found->second.second - found->second.first, use.time - found->second.first);
    predicted_.erase(found);
  }
  stream_.push_back(use);
  if (stream_.size() > options_.stream) stream_.pop_front();
  period_ = 0;
  const size_t size = stream_.size();
  // A full stream is needed before a period counts: the long training that the paper measured.
  for (size_t m = 1; size == options_.stream && m <= size / 2 && period_ == 0; ++m) {
    bool same = true;
    for (size_t i = m; i < size && same; ++i) {
      same = stream_[i].region == stream_[i - m].region && stream_[i].stack == stream_[i - m].stack;
    }
    if (same) period_ = m;
  }
  if (period_ == 0) return std::nullopt;
  // One period ago: the gap until the region's next use then.
  const size_t then = size - 1 - period_;
  for (size_t i = then + 1; i < size; ++i) {
    if (stream_[i].region != use.region) continue;
    const int64_t next = use.time + (stream_[i].time - stream_[then].time);
    predicted_[use.region] = {use.time, next};
    return next;
  }
  return std::nullopt;
}

std::optional<int64_t> PeriodicityPredictor::next_use(uint64_t region, int64_t now) const {
  const auto found = predicted_.find(region);
  if (found == predicted_.end() || found->second.second < now) return std::nullopt;
  return found->second.second;
}

void PeriodicityPredictor::forget(uint64_t region) {
  predicted_.erase(region);
  std::erase_if(stream_, [region](const PredictorUse& use) { return use.region == region; });
}

GapPredictor::GapPredictor(const PredictorOptions& options) : options_(options) {}

void GapPredictor::add_gap(Region& region, uint64_t signature, int64_t gap) const {
  auto found = region.gaps.find(signature);
  if (found == region.gaps.end()) {
    if (region.gaps.size() >= kMaxSignatures) return;
    found = region.gaps.try_emplace(signature).first;
  }
  Gaps& gaps = found->second;
  gaps.recent[gaps.seen++ % kSamples] = gap;
}

// Sets the times at which the region is due and expected.
void GapPredictor::predict(Region& region) const {
  region.due.reset();
  auto found = region.gaps.find(region.with_context);
  if (found == region.gaps.end()) found = region.gaps.find(region.call_site);
  if (found == region.gaps.end()) return;
  const Gaps& gaps = found->second;
  const size_t count = std::min<size_t>(gaps.seen, kSamples);
  std::array<int64_t, kSamples> sorted = gaps.recent;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  const int64_t shortest = sorted[0];
  const int64_t median = sorted[count / 2];
  const double early = options_.spread * static_cast<double>(median - shortest) +
                       options_.novice * static_cast<double>(median) / static_cast<double>(count);
  region.due = region.last + std::max<int64_t>(shortest - static_cast<int64_t>(early), 0);
  region.expected = region.last + median;
}

std::optional<int64_t> GapPredictor::record(const PredictorUse& use) {
  const auto [position, is_new] = regions_.try_emplace(use.region);
  Region& region = position->second;
  if (!is_new) {
    const int64_t gap = use.time - region.last;
    if (region.due.has_value()) errors_.add(region.expected - region.last, gap);
    add_gap(region, region.with_context, gap);
    if (region.call_site != region.with_context) add_gap(region, region.call_site, gap);
  }
  region.last = use.time;
  region.call_site = mix(0, use.stack);
  region.with_context = region.call_site;
  for (uint32_t i = 0; i < std::min(options_.window, kMaxWindow); ++i) {
    region.with_context = mix(region.with_context, context_[i]);
  }
  std::copy_backward(context_.begin(), context_.end() - 1, context_.end());
  context_[0] = mix(use.stack, use.region);
  predict(region);
  return region.due;
}

std::optional<int64_t> GapPredictor::next_use(uint64_t region, int64_t now) const {
  const auto found = regions_.find(region);
  if (found == regions_.end() || !found->second.due.has_value()) return std::nullopt;
  return *found->second.due < now ? std::nullopt : found->second.due;
}

std::optional<int64_t> GapPredictor::expected_use(uint64_t region) const {
  const auto found = regions_.find(region);
  if (found == regions_.end() || !found->second.due.has_value()) return std::nullopt;
  return found->second.expected;
}

void GapPredictor::forget(uint64_t region) { regions_.erase(region); }

std::unique_ptr<PeriodPredictor> make_predictor(PredictorKind kind,
                                                const PredictorOptions& options) {
  switch (kind) {
    case PredictorKind::kContext:
      return std::make_unique<ContextPredictor>(options);
    case PredictorKind::kPeriodicity:
      return std::make_unique<PeriodicityPredictor>(options);
    case PredictorKind::kGap:
      return std::make_unique<GapPredictor>(options);
  }
  return nullptr;
}

}  // namespace cariama
