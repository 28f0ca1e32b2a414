#include "dtutils/registration/period_predictor.h"

#include <algorithm>
#include <cmath>

#include "dtutils/random.h"

namespace cariama {
namespace {

// Mixes a word into a hash.
uint64_t mix(uint64_t hash, uint64_t word) {
  return Random::mix(hash ^ (word + Random::kStep + (hash << 6) + (hash >> 2)));
}

constexpr double kErrorFade = 1 - 1.0 / 64;
constexpr double kCaution = 4;  // times the mean relative error

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
  for (uint32_t i = 0; i < std::min(options_.window, PredictorOptions::kMaxWindow); ++i)
    hash = mix(hash, context_[i]);
  return hash;
}

std::optional<int64_t> ContextPredictor::period(const History& history) const {
  if (history.periods == 0) return std::nullopt;
  const size_t count = std::min<size_t>(history.periods, kSamples);
  std::array<int64_t, kSamples> sorted = history.recent;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  switch (options_.estimate) {
    case PeriodEstimate::kMinimum:
      return history.shortest;
    case PeriodEstimate::kLast:
      return history.recent[(history.periods - 1) % kSamples];
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
  const bool is_new = histories_.peek(name) == nullptr;
  History& history = histories_.get(name);
  // Marks the list as used: it must not be dropped before the signatures.
  std::vector<uint64_t>& names = signatures_of_.get(use.region);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::erase_if(names, [this](uint64_t known) { return histories_.peek(known) == nullptr; });
    names.push_back(name);
  }
  // Two uses at the same time have no period.
  if (!is_new && use.time > history.last) {
    const int64_t observed = use.time - history.last;
    if (const std::optional<int64_t> predicted = period(history); predicted.has_value()) {
      errors_.add(*predicted, observed);
    }
    history.recent[history.periods % kSamples] = observed;
    ++history.periods;
    history.shortest = std::min(history.shortest, observed);
  }
  history.last = use.time;
  std::copy_backward(context_.begin(), context_.end() - 1, context_.end());
  context_[0] = mix(use.stack, use.region);
  return next_use(use.region, use.time);
}

std::optional<int64_t> ContextPredictor::next_use(uint64_t region, int64_t now) const {
  const std::vector<uint64_t>* const names = signatures_of_.peek(region);
  if (names == nullptr) return std::nullopt;
  std::optional<int64_t> earliest;
  bool any_period = false;
  for (const uint64_t name : *names) {
    const History* const history = histories_.peek(name);
    const std::optional<int64_t> span = history == nullptr ? std::nullopt : period(*history);
    if (!span.has_value()) continue;
    any_period = true;
    const int64_t deadline = history->last + *span;
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
  const std::vector<uint64_t>* const names = signatures_of_.peek(region);
  if (names == nullptr) return;
  for (const uint64_t name : *names) histories_.erase(name);
  signatures_of_.erase(region);
}

PeriodicityPredictor::PeriodicityPredictor(const PredictorOptions& options) : options_(options) {}

std::optional<int64_t> PeriodicityPredictor::record(const PredictorUse& use) {
  if (const auto* const before = predicted_.peek(use.region)) {
    errors_.add(before->second - before->first, use.time - before->first);
    predicted_.erase(use.region);
  }
  stream_.push_back(use);
  if (stream_.size() > options_.stream) stream_.pop_front();
  period_ = 0;
  const size_t size = stream_.size();
  // A period counts only when the stream is full. This is the long training that the paper
  // measured.
  for (size_t m = 1; size == options_.stream && m <= size / 2 && period_ == 0; ++m) {
    bool same = true;
    for (size_t i = m; i < size && same; ++i) {
      same = stream_[i].region == stream_[i - m].region && stream_[i].stack == stream_[i - m].stack;
    }
    if (same) period_ = m;
  }
  if (period_ == 0) return std::nullopt;
  // The prediction is the gap that followed this region's use one period ago.
  const size_t then = size - 1 - period_;
  for (size_t i = then + 1; i < size; ++i) {
    if (stream_[i].region != use.region) continue;
    const int64_t next = use.time + (stream_[i].time - stream_[then].time);
    predicted_.get(use.region) = {use.time, next};
    return next;
  }
  return std::nullopt;
}

std::optional<int64_t> PeriodicityPredictor::next_use(uint64_t region, int64_t now) const {
  const auto* const found = predicted_.peek(region);
  if (found == nullptr || found->second < now) return std::nullopt;
  return found->second;
}

void PeriodicityPredictor::forget(uint64_t region) {
  predicted_.erase(region);
  std::erase_if(stream_, [region](const PredictorUse& use) { return use.region == region; });
}

// Keeps order_ sorted by length: predictions read it more often than this function changes it.
void Gaps::add(int64_t gap) {
  const auto begin = order_.begin();
  if (count_ == kSamples) {
    const auto gone = std::find(begin, order_.end(), oldest_);
    std::copy(gone + 1, order_.end(), gone);
    --count_;
  }
  const auto end = begin + count_;
  const auto place = std::find_if(begin, end, [&](uint8_t index) { return recent_[index] > gap; });
  std::copy_backward(place, end, end + 1);
  *place = oldest_;
  recent_[oldest_] = gap;
  ++count_;
  oldest_ = static_cast<uint8_t>((oldest_ + 1) % kSamples);
}

std::optional<std::pair<int64_t, int64_t>> Gaps::predict_longer(int64_t than, double spread,
                                                                double novice) const {
  const auto end = order_.begin() + count_;
  const auto begin =
      std::find_if(order_.begin(), end, [&](uint8_t index) { return recent_[index] > than; });
  if (begin == end) return std::nullopt;
  const int64_t shortest = recent_[*begin];
  const int64_t median = recent_[begin[(end - begin) / 2]];
  const double early = spread * static_cast<double>(median - shortest) +
                       novice * static_cast<double>(median) / static_cast<double>(end - begin);
  return std::pair{std::max<int64_t>(shortest - static_cast<int64_t>(early), 0), median};
}

GapPredictor::GapPredictor(const PredictorOptions& options) : options_(options) {}

const Gaps* GapPredictor::gaps_of(const Region& region) const {
  const Gaps* const gaps = gaps_.peek(region.with_context);
  return gaps != nullptr ? gaps : gaps_.peek(region.call_site);
}

// Sets the times at which the region is due and expected.
void GapPredictor::predict(Region& region) {
  region.due.reset();
  const Gaps* gaps = gaps_.find(region.with_context);
  if (gaps == nullptr) gaps = gaps_.find(region.call_site);
  if (gaps == nullptr) return;
  const auto [due, median] = gaps->predict(options_.spread, options_.novice);
  region.due = region.last + due;
  region.expected = region.last + median;
}

std::optional<int64_t> GapPredictor::record(const PredictorUse& use) {
  const bool is_new = regions_.peek(use.region) == nullptr;
  Region& region = regions_.get(use.region);
  if (is_new) region.life = ++lives_;
  if (!is_new) {
    const int64_t gap = use.time - region.last;
    if (region.due.has_value()) errors_.add(region.expected - region.last, gap);
    gaps_.get(region.with_context).add(gap);
    if (region.call_site != region.with_context) gaps_.get(region.call_site).add(gap);
  }
  region.last = use.time;
  region.call_site = mix(mix(0, region.life), use.stack);
  region.with_context = region.call_site;
  for (uint32_t i = 0; i < std::min(options_.window, PredictorOptions::kMaxWindow); ++i) {
    region.with_context = mix(region.with_context, context_[i]);
  }
  std::copy_backward(context_.begin(), context_.end() - 1, context_.end());
  context_[0] = mix(use.stack, use.region);
  predict(region);
  return region.due;
}

std::optional<int64_t> GapPredictor::next_use(uint64_t region, int64_t now) const {
  const Region* const found = regions_.peek(region);
  if (found == nullptr || !found->due.has_value()) return std::nullopt;
  return *found->due < now ? std::nullopt : found->due;
}

std::optional<int64_t> GapPredictor::expected_use(uint64_t region) const {
  const Region* const found = regions_.peek(region);
  if (found == nullptr || !found->due.has_value()) return std::nullopt;
  return found->expected;
}

std::optional<int64_t> GapPredictor::later_use(uint64_t region, int64_t now) const {
  const Region* const found = regions_.peek(region);
  const Gaps* const gaps = found == nullptr ? nullptr : gaps_of(*found);
  if (gaps == nullptr) return std::nullopt;
  const auto longer = gaps->predict_longer(now - found->last, options_.spread, options_.novice);
  if (!longer.has_value()) return std::nullopt;
  return std::max(found->last + longer->first, now);
}

void GapPredictor::forget(uint64_t region) { regions_.erase(region); }

FollowPredictor::FollowPredictor(const PredictorOptions& options) : options_(options) {}

void FollowPredictor::learn(uint64_t signature, uint64_t region, int64_t gap) {
  std::vector<Follower>& followers = anchors_.get(signature).followers;
  auto at = std::find_if(followers.begin(), followers.end(),
                         [region](const Follower& one) { return one.region == region; });
  if (at == followers.end()) {
    if (followers.size() < kMaxFollowers) {
      at = followers.emplace(followers.end());
    } else {
      at = std::min_element(followers.begin(), followers.end(),
                            [](const auto& a, const auto& b) { return a.sampled < b.sampled; });
      *at = {};
    }
    at->region = region;
  }
  at->sampled = communications_;
  at->gaps.add(gap);
}

void FollowPredictor::learn(const Event& from, const PredictorUse& use) {
  learn(from.with_context, use.region, use.time - from.time);
  if (from.call_site != from.with_context) {
    learn(from.call_site, use.region, use.time - from.time);
  }
}

// A program whose gaps vary little needs less caution.
double FollowPredictor::novice() const {
  if (gap_sum_ <= 0) return options_.novice;
  return std::min(options_.novice, kCaution * error_sum_ / gap_sum_);
}

// Predicts the regions that follow `signature` from the communication `event`.
void FollowPredictor::revise(uint64_t signature, const Event& event) {
  const Anchor* const anchor = anchors_.find(signature);
  if (anchor == nullptr) return;
  for (const Follower& follower : anchor->followers) {
    if (regions_.peek(follower.region) == nullptr) continue;  // forgotten
    const auto [due, median] = follower.gaps.predict(options_.spread, novice());
    Region& region = *regions_.find(follower.region);
    region.due = event.time + due;
    region.expected = event.time + median;
    region.predicted = event.time;
    region.predicted_by = signature;
    revisions_.push_back({follower.region, *region.due, region.expected});
  }
}

std::optional<int64_t> FollowPredictor::record(const PredictorUse& use) {
  revisions_.clear();
  const bool is_new = regions_.peek(use.region) == nullptr;
  Region& region = regions_.get(use.region);
  if (!is_new) {
    if (region.due.has_value()) {
      // The error of the prediction that counted, which is the last one.
      errors_.add(region.expected - region.last.time, use.time - region.last.time);
      error_sum_ =
          error_sum_ * kErrorFade + std::abs(static_cast<double>(use.time - region.expected));
      gap_sum_ = gap_sum_ * kErrorFade + static_cast<double>(use.time - region.predicted);
    }
    const size_t events = std::min<uint64_t>(communications_, kMaxEvents);
    bool reached = false;
    for (size_t back = 1; back <= events && !reached; ++back) {
      const Event& event = events_[(communications_ - back) % kMaxEvents];
      learn(event, use);
      reached = event.region == use.region;
    }
    if (!reached) learn(region.last, use);
  }
  Event event{use.region, 0, mix(mix(0, use.region), use.stack), use.time};
  event.with_context = event.call_site;
  for (uint32_t i = 0; i < std::min(options_.window, PredictorOptions::kMaxWindow); ++i) {
    event.with_context = mix(event.with_context, context_[i]);
  }
  std::copy_backward(context_.begin(), context_.end() - 1, context_.end());
  context_[0] = mix(use.stack, use.region);
  events_[communications_++ % kMaxEvents] = event;
  region.last = event;
  region.due.reset();
  revise(event.with_context, event);
  if (revisions_.empty()) revise(event.call_site, event);
  std::erase_if(revisions_, [&](const auto& one) { return one.region == use.region; });
  const Region& now = *regions_.peek(use.region);
  return now.due;
}

std::optional<int64_t> FollowPredictor::next_use(uint64_t region, int64_t now) const {
  const Region* const found = regions_.peek(region);
  if (found == nullptr || !found->due.has_value()) return std::nullopt;
  return *found->due < now ? std::nullopt : found->due;
}

std::optional<int64_t> FollowPredictor::expected_use(uint64_t region) const {
  const Region* const found = regions_.peek(region);
  if (found == nullptr || !found->due.has_value()) return std::nullopt;
  return found->expected;
}

std::optional<int64_t> FollowPredictor::later_use(uint64_t region, int64_t now) const {
  const Region* const found = regions_.peek(region);
  if (found == nullptr || !found->due.has_value()) return std::nullopt;
  // If other communications have revised the prediction since the last use, and it did not come
  // true, the program does something else now.
  if (found->predicted != found->last.time) return std::nullopt;
  const Anchor* const anchor = anchors_.peek(found->predicted_by);
  if (anchor == nullptr) return std::nullopt;
  for (const Follower& follower : anchor->followers) {
    if (follower.region != region) continue;
    const auto longer =
        follower.gaps.predict_longer(now - found->predicted, options_.spread, novice());
    if (!longer.has_value()) return std::nullopt;
    return std::max(found->predicted + longer->first, now);
  }
  return std::nullopt;
}

std::unique_ptr<PeriodPredictor> make_predictor(PredictorKind kind,
                                                const PredictorOptions& options) {
  switch (kind) {
    case PredictorKind::kContext:
      return std::make_unique<ContextPredictor>(options);
    case PredictorKind::kPeriodicity:
      return std::make_unique<PeriodicityPredictor>(options);
    case PredictorKind::kGap:
      return std::make_unique<GapPredictor>(options);
    case PredictorKind::kFollow:
      return std::make_unique<FollowPredictor>(options);
  }
  return nullptr;
}

}  // namespace cariama
