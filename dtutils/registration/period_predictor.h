// Predicts when a region of memory will be used next, from its past uses.
//
//   ContextPredictor predictor({.window = 2});
//   std::optional<int64_t> when = predictor.record({.region = 7, .stack = 0x1234, .time = now});
//
// ContextPredictor is the paper's (section 3.1): the signature of a use is a hash of its call
// stack, its region and the previous `window` communications; each signature has a period. It
// predicts from the second use of a signature on. PeriodicityPredictor is the predictor that the
// paper compares with (Freitag et al.): it looks for a period m at which the stream of uses
// repeats.
//
// GapPredictor is an improvement: each signature has the gap from its use to the region's next use
// at any call site. A gap is shorter than the period of a loop, so it varies less. An example is a
// region that is used twice in each step of 18 ms, 1 ms apart: a noise of 5 % of the period is as
// long as the first gap.
//
// FollowPredictor is a further improvement: it records the gaps from each communication, of any
// region, to the next use of each region that follows. Every communication revises the predictions
// of these regions. The last communication before a use gives the best prediction, because the
// noise of a gap grows with its length. An example is an exchange of twelve buffers in 0.1 ms after
// 13 ms of computation: the predictor predicts eleven of the uses from the use before.
//
// Memory: every table is bounded (kMaxSignatures, kMaxRegions, kMaxFollowers). When a table is
// full, the predictor drops the entries that were not used for the longest time. Their next uses
// make new entries.
//
// Not thread-safe: the helper thread owns one for each communicating thread.
#ifndef CARIAMA_DTUTILS_REGISTRATION_PERIOD_PREDICTOR_H_
#define CARIAMA_DTUTILS_REGISTRATION_PERIOD_PREDICTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

namespace internal {

// A hash map with at most `limit` entries. Two generations: when the younger one has limit / 2
// entries, the older one is dropped; get() moves an entry to the younger one. So an entry survives
// while fewer than limit / 2 other entries are used between two of its uses. Pointers to an entry
// stay valid as long as the entry.
template <typename Value>
class BoundedMap {
 public:
  explicit BoundedMap(size_t limit) : limit_(limit) {}
  // Returns the entry, which is created if it does not exist.
  Value& get(uint64_t key) {
    if (Value* const found = find(key)) return *found;
    make_room();
    return young_[key];
  }
  // Returns the entry and marks it as used, or nullptr.
  Value* find(uint64_t key) {
    if (const auto at = young_.find(key); at != young_.end()) return &at->second;
    const auto at = old_.find(key);
    if (at == old_.end()) return nullptr;
    auto node = old_.extract(at);
    make_room();
    return &young_.insert(std::move(node)).position->second;
  }
  // Returns the entry without marking it, or nullptr.
  [[nodiscard]] const Value* peek(uint64_t key) const {
    if (const auto at = young_.find(key); at != young_.end()) return &at->second;
    const auto at = old_.find(key);
    return at == old_.end() ? nullptr : &at->second;
  }
  void erase(uint64_t key) {
    if (young_.erase(key) == 0) old_.erase(key);
  }
  [[nodiscard]] size_t size() const { return young_.size() + old_.size(); }

 private:
  void make_room() {
    if (young_.size() < limit_ / 2) return;
    old_ = std::move(young_);
    young_.clear();
  }

  size_t limit_;
  std::unordered_map<uint64_t, Value> young_;
  std::unordered_map<uint64_t, Value> old_;
};

}  // namespace internal

// A use as the predictor sees it. Times in ns.
struct PredictorUse {
  uint64_t region = 0;
  uint64_t stack = 0;  // hash of the call stack
  int64_t time = 0;
};

// The number that represents the observed periods of a signature.
enum class PeriodEstimate : uint8_t {
  kMinimum,   // the shortest ever seen: the paper's rule
  kLast,      // the last one
  kMedian,    // of the last eight
  kQuantile,  // the lowest eighth of the last eight: early rather than late, but forgets outliers
};

struct PredictorOptions {
  static constexpr uint32_t kMaxWindow = 4;
  // Communications before this one that belong to the signature, 0 to kMaxWindow (paper: 2).
  uint32_t window = 2;
  PeriodEstimate estimate = PeriodEstimate::kMinimum;
  // A deadline that has passed by at most this fraction of its period counts as due now. 0: only
  // future deadlines count.
  double grace = 0;
  // While no signature of a region has a period, predict from its uses at the same call site alone.
  // The second use of a buffer in a loop then suffices. The paper's system (false) needs one more,
  // because the first use in a loop has another context.
  bool learn_early = false;
  // GapPredictor, FollowPredictor: a use is due at the shortest of the last 16 gaps, minus this
  // multiple of the distance from the shortest gap to the median.
  double spread = 0.4;
  // GapPredictor, FollowPredictor: the time of a use, as `spread` determines it, moves earlier by
  // this fraction of the median, divided by the number of gaps seen. FollowPredictor uses four
  // times the mean relative error so far as the fraction, if that is less.
  double novice = 0.15;
  // PeriodicityPredictor: uses that it compares. It can find periods up to half of them.
  uint32_t stream = 64;
};

// Errors of predictions: |observed - predicted| / observed.
struct CARIAMA_DTUTILS_EXPORT PredictionErrors {
  uint64_t predictions = 0;  // that were followed by the predicted use
  uint64_t below_half_percent = 0;
  uint64_t below_5_percent = 0;
  uint64_t below_20_percent = 0;
  void add(int64_t predicted, int64_t observed);
  PredictionErrors& operator+=(const PredictionErrors& other);
};

// The new prediction of a region's next use.
struct PredictionRevision {
  uint64_t region = 0;
  int64_t due = 0;       // when the memory must be registered
  int64_t expected = 0;  // the most likely time of the use
};

class CARIAMA_DTUTILS_EXPORT PeriodPredictor {
 public:
  // Bounds of the tables. If a program has more communicating call sites or buffers within one
  // iteration, only some of its uses are predicted.
  static constexpr size_t kMaxSignatures = 8192;
  static constexpr size_t kMaxRegions = 8192;

  virtual ~PeriodPredictor() = default;
  // Records a use. Returns the time of the region's next use, if one can be predicted; not before
  // `use.time`. Uses must be recorded in the order of their times.
  [[nodiscard]] virtual std::optional<int64_t> record(const PredictorUse& use) = 0;
  // Returns the earliest predicted use of the region that is not before `now`, without recording.
  [[nodiscard]] virtual std::optional<int64_t> next_use(uint64_t region, int64_t now) const = 0;
  // Returns the most likely time of the use that the last record() of the region predicted, if the
  // predictor distinguishes it from the time at which the memory must be registered.
  [[nodiscard]] virtual std::optional<int64_t> expected_use(uint64_t /*region*/) const {
    return std::nullopt;
  }
  // Returns when the region may be used after `now`, although its predicted use did not come: after
  // the shortest gap among those that made the prediction that is not over yet.
  [[nodiscard]] virtual std::optional<int64_t> later_use(uint64_t /*region*/,
                                                         int64_t /*now*/) const {
    return std::nullopt;
  }
  // Returns the predictions of other regions that the last record() has changed. Valid until the
  // next record().
  [[nodiscard]] virtual std::span<const PredictionRevision> revisions() const { return {}; }
  // Forgets a region whose name will not be used again.
  virtual void forget(uint64_t region) = 0;
  // Returns the number of signatures and regions in the tables.
  [[nodiscard]] virtual size_t entries() const = 0;
  [[nodiscard]] const PredictionErrors& errors() const { return errors_; }

 protected:
  PredictionErrors errors_;
};

class CARIAMA_DTUTILS_EXPORT ContextPredictor final : public PeriodPredictor {
 public:
  explicit ContextPredictor(const PredictorOptions& options);
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  // The earliest deadline over all signatures of the region: last use + period.
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  void forget(uint64_t region) override;
  [[nodiscard]] size_t entries() const override {
    return histories_.size() + signatures_of_.size();
  }
  [[nodiscard]] size_t signatures() const { return histories_.size(); }

 private:
  static constexpr size_t kSamples = 8;
  struct History {
    int64_t last = 0;
    uint64_t periods = 0;  // observed so far
    int64_t shortest = INT64_MAX;
    std::array<int64_t, kSamples> recent{};
  };
  [[nodiscard]] uint64_t signature(const PredictorUse& use) const;
  [[nodiscard]] std::optional<int64_t> period(const History& history) const;

  const PredictorOptions options_;
  // Of the previous communications, latest first.
  std::array<uint64_t, PredictorOptions::kMaxWindow> context_{};
  internal::BoundedMap<History> histories_{kMaxSignatures};  // by signature
  // By region. May name signatures that were dropped.
  internal::BoundedMap<std::vector<uint64_t>> signatures_of_{kMaxRegions};
  std::unique_ptr<ContextPredictor> without_context_;  // if options_.learn_early
};

class CARIAMA_DTUTILS_EXPORT PeriodicityPredictor final : public PeriodPredictor {
 public:
  explicit PeriodicityPredictor(const PredictorOptions& options);
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  void forget(uint64_t region) override;
  [[nodiscard]] size_t entries() const override { return stream_.size() + predicted_.size(); }
  // The period of the stream in uses; 0 if none was found.
  [[nodiscard]] size_t stream_period() const { return period_; }

 private:
  const PredictorOptions options_;
  std::deque<PredictorUse> stream_;
  size_t period_ = 0;
  internal::BoundedMap<std::pair<int64_t, int64_t>> predicted_{kMaxRegions};  // use, next use
};

// The last gaps between two uses.
class CARIAMA_DTUTILS_EXPORT Gaps {
 public:
  void add(int64_t gap);
  [[nodiscard]] bool empty() const { return count_ == 0; }
  // Returns the gap after which the next use is due, at least 0, and the median. Requires:
  // !empty().
  [[nodiscard]] std::pair<int64_t, int64_t> predict(double spread, double novice) const {
    return *predict_longer(INT64_MIN, spread, novice);
  }
  // Does the same with the gaps that are longer than `than`. Returns no value if there are none.
  [[nodiscard]] std::optional<std::pair<int64_t, int64_t>> predict_longer(int64_t than,
                                                                          double spread,
                                                                          double novice) const;

 private:
  static constexpr size_t kSamples = 16;
  std::array<int64_t, kSamples> recent_{};
  std::array<uint8_t, kSamples> order_{};  // indices of recent_, the shortest gap first
  uint8_t count_ = 0;
  uint8_t oldest_ = 0;  // the index that the next gap overwrites
};

class CARIAMA_DTUTILS_EXPORT GapPredictor final : public PeriodPredictor {
 public:
  explicit GapPredictor(const PredictorOptions& options);
  // Predicts from the second use of a region on: with the context if this signature was followed by
  // a use before, else from the call site alone.
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  [[nodiscard]] std::optional<int64_t> expected_use(uint64_t region) const override;
  [[nodiscard]] std::optional<int64_t> later_use(uint64_t region, int64_t now) const override;
  void forget(uint64_t region) override;
  [[nodiscard]] size_t entries() const override { return regions_.size() + gaps_.size(); }

 private:
  struct Region {
    int64_t last = 0;  // time of the last use; 0: none
    uint64_t life =
        0;  // another number after forget(): the gaps of a forgotten region do not count
    uint64_t with_context = 0;
    uint64_t call_site = 0;
    std::optional<int64_t> due;
    int64_t expected = 0;
  };
  [[nodiscard]] const Gaps* gaps_of(const Region& region) const;
  void predict(Region& region);

  const PredictorOptions options_;
  // Of the previous communications, latest first.
  std::array<uint64_t, PredictorOptions::kMaxWindow> context_{};
  internal::BoundedMap<Region> regions_{kMaxRegions};
  internal::BoundedMap<Gaps> gaps_{kMaxSignatures};  // by signature, which includes the life
  uint64_t lives_ = 0;
};

class CARIAMA_DTUTILS_EXPORT FollowPredictor final : public PeriodPredictor {
 public:
  // Communications that a use is predicted from: the last ones before it, back to the last use of
  // the same region.
  static constexpr size_t kMaxEvents = 32;
  // Regions that follow one signature.
  static constexpr size_t kMaxFollowers = 32;

  // Signatures; an anchor takes up to 5 KiB.
  static constexpr size_t kMaxAnchors = 2048;

  explicit FollowPredictor(const PredictorOptions& options);
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  [[nodiscard]] std::span<const PredictionRevision> revisions() const override {
    return revisions_;
  }
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  [[nodiscard]] std::optional<int64_t> expected_use(uint64_t region) const override;
  [[nodiscard]] std::optional<int64_t> later_use(uint64_t region, int64_t now) const override;
  void forget(uint64_t region) override { regions_.erase(region); }
  [[nodiscard]] size_t entries() const override { return regions_.size() + anchors_.size(); }

 private:
  struct Follower {
    uint64_t region = 0;
    uint64_t sampled = 0;  // number of the communication that gave the last gap
    Gaps gaps;
  };
  struct Anchor {
    std::vector<Follower> followers;
  };
  // A communication: its signatures with and without context.
  struct Event {
    uint64_t region = 0;
    uint64_t with_context = 0;
    uint64_t call_site = 0;
    int64_t time = 0;
  };
  struct Region {
    Event last;
    std::optional<int64_t> due;
    // The time of the communication that predicted it, and the signature from which.
    int64_t predicted = 0;
    uint64_t predicted_by = 0;
    int64_t expected = 0;
  };
  void learn(const Event& from, const PredictorUse& use);
  void learn(uint64_t signature, uint64_t region, int64_t gap);
  [[nodiscard]] double novice() const;
  void revise(uint64_t signature, const Event& event);

  const PredictorOptions options_;
  uint64_t communications_ = 0;
  // Sums over the predictions that were followed by a use, in which older ones fade, in ns.
  double error_sum_ = 0;
  double gap_sum_ = 0;
  std::array<Event, kMaxEvents> events_{};  // a ring
  // Of the previous communications, latest first.
  std::array<uint64_t, PredictorOptions::kMaxWindow> context_{};
  internal::BoundedMap<Region> regions_{kMaxRegions};
  internal::BoundedMap<Anchor> anchors_{kMaxAnchors};  // by signature
  std::vector<PredictionRevision> revisions_;
};

enum class PredictorKind : uint8_t { kContext, kPeriodicity, kGap, kFollow };
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::unique_ptr<PeriodPredictor> make_predictor(
    PredictorKind kind, const PredictorOptions& options);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_PERIOD_PREDICTOR_H_
