// Predicts when a region of memory will be used next, from its past uses.
//
//   ContextPredictor predictor({.window = 2});
//   std::optional<int64_t> when = predictor.record({.region = 7, .stack = 0x1234, .time = now});
//
// ContextPredictor is the paper's (section 3.1): the signature of a use is a hash of its call
// stack, its region and the previous `window` communications; each signature has a period. It
// predicts from the second use of a signature on. PeriodicityPredictor is the rival that the paper
// compares with (Freitag et al.): it looks for a period m at which the stream of uses repeats.
//
// GapPredictor is an improvement: each signature has the gap from its use to the region's next use
// at any call site. A gap is shorter than the period of a loop, so it varies less. An example is a
// region that is used twice in each step of 18 ms, 1 ms apart: a noise of 5 % of the period is as
// long as the first gap.
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
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

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
  // Communications before this one that belong to the signature, 0 to 4 (paper: 2).
  uint32_t window = 2;
  PeriodEstimate estimate = PeriodEstimate::kMinimum;
  // A deadline that has passed by up to this fraction of its period still counts, as due now. 0:
  // only future deadlines count.
  double grace = 0;
  // While no signature of a region has a period, predict from its uses at the same call site alone.
  // The second use of a buffer in a loop then suffices. The paper's system (false) needs one more,
  // because the first use in a loop has another context.
  bool learn_early = false;
  // GapPredictor: a use is due at the shortest of the last 16 gaps, less this multiple of the
  // distance from the shortest gap to the median.
  double spread = 0.5;
  // GapPredictor: ... and less this fraction of the median, divided by the number of gaps seen.
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

class CARIAMA_DTUTILS_EXPORT PeriodPredictor {
 public:
  virtual ~PeriodPredictor() = default;
  // Records a use. Returns the time of the region's next use, if one can be predicted; not before
  // `use.time`. Uses must be recorded in the order of their times.
  [[nodiscard]] virtual std::optional<int64_t> record(const PredictorUse& use) = 0;
  // Returns the earliest predicted use of the region that is not before `now`, without recording.
  [[nodiscard]] virtual std::optional<int64_t> next_use(uint64_t region, int64_t now) const = 0;
  // Returns the most likely time of the use that the last record() of the region predicted, if the
  // predictor tells it from the time at which the memory must be registered.
  [[nodiscard]] virtual std::optional<int64_t> expected_use(uint64_t /*region*/) const {
    return std::nullopt;
  }
  // Forgets a region whose name will not be used again.
  virtual void forget(uint64_t region) = 0;
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
  [[nodiscard]] size_t signatures() const { return sites_.size(); }

 private:
  static constexpr uint32_t kMaxWindow = 4;
  static constexpr size_t kSamples = 8;
  struct Site {
    int64_t last = 0;
    uint64_t periods = 0;  // observed so far
    int64_t shortest = INT64_MAX;
    std::array<int64_t, kSamples> recent{};
  };
  [[nodiscard]] uint64_t signature(const PredictorUse& use) const;
  [[nodiscard]] std::optional<int64_t> period(const Site& site) const;

  const PredictorOptions options_;
  std::array<uint64_t, kMaxWindow> context_{};  // of the previous communications, latest first
  std::unordered_map<uint64_t, Site> sites_;    // by signature
  std::unordered_map<uint64_t, std::vector<uint64_t>> signatures_of_;  // by region
  std::unique_ptr<ContextPredictor> without_context_;                  // if options_.learn_early
};

class CARIAMA_DTUTILS_EXPORT PeriodicityPredictor final : public PeriodPredictor {
 public:
  explicit PeriodicityPredictor(const PredictorOptions& options);
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  void forget(uint64_t region) override;
  // The period of the stream in uses; 0 if none was found.
  [[nodiscard]] size_t stream_period() const { return period_; }

 private:
  const PredictorOptions options_;
  std::deque<PredictorUse> stream_;
  size_t period_ = 0;
  std::unordered_map<uint64_t, std::pair<int64_t, int64_t>> predicted_;  // region: use, next use
};

class CARIAMA_DTUTILS_EXPORT GapPredictor final : public PeriodPredictor {
 public:
  explicit GapPredictor(const PredictorOptions& options);
  // Predicts from the second use of a region on: with the context if this signature was followed by
  // a use before, else from the call site alone.
  [[nodiscard]] std::optional<int64_t> record(const PredictorUse& use) override;
  [[nodiscard]] std::optional<int64_t> next_use(uint64_t region, int64_t now) const override;
  [[nodiscard]] std::optional<int64_t> expected_use(uint64_t region) const override;
  void forget(uint64_t region) override;

 private:
  static constexpr uint32_t kMaxWindow = 4;
  static constexpr size_t kSamples = 16;
  // More signatures of a region than these are not told apart: a bound of memory.
  static constexpr size_t kMaxSignatures = 1024;
  struct Gaps {
    uint64_t seen = 0;
    std::array<int64_t, kSamples> recent{};
  };
  struct Region {
    int64_t last = 0;  // time of the last use
    uint64_t with_context = 0;
    uint64_t call_site = 0;
    std::optional<int64_t> due;
    int64_t expected = 0;
    std::unordered_map<uint64_t, Gaps> gaps;  // by signature
  };
  void add_gap(Region& region, uint64_t signature, int64_t gap) const;
  void predict(Region& region) const;

  const PredictorOptions options_;
  std::array<uint64_t, kMaxWindow> context_{};  // of the previous communications, latest first
  std::unordered_map<uint64_t, Region> regions_;
};

enum class PredictorKind : uint8_t { kContext, kPeriodicity, kGap };
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::unique_ptr<PeriodPredictor> make_predictor(
    PredictorKind kind, const PredictorOptions& options);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_PERIOD_PREDICTOR_H_
