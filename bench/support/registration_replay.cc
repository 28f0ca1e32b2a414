#include "bench/support/registration_replay.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/futex.h"
#include "dtutils/registration/pinner.h"

namespace cariama::bench {
namespace {

constexpr uintptr_t kReplayPage = 4096;
constexpr int64_t kOverslept = 20'000;

// Mapped memory in place of that of the traced program: one mapping for each range of pages that
// the trace uses without a hole.
class TracedMemory {
 public:
  // `present`: the pages exist before they are used. On the virtual clock nothing accesses them.
  explicit TracedMemory(bool present) : present_(present) {}
  ~TracedMemory() {
    for (const auto& [start, range] : ranges_) munmap(range.memory, range.bytes);
  }

  absl::Status map(const RankTrace& rank) {
    std::map<uintptr_t, uintptr_t> pages;  // first byte: end
    for (const TraceMessage& message : rank) {
      const uintptr_t start = message.address / kReplayPage * kReplayPage;
      const uintptr_t end =
          (message.address + message.bytes + kReplayPage - 1) / kReplayPage * kReplayPage;
      pages[start] = std::max(pages[start], end);
    }
    uintptr_t start = 0;
    uintptr_t end = 0;
    for (const auto& [from, to] : pages) {
      if (from > end) {
        if (absl::Status mapped = map(start, end); !mapped.ok()) return mapped;
        start = from;
      }
      end = std::max(end, to);
    }
    return map(start, end);
  }

  [[nodiscard]] std::byte* translate(uintptr_t address) const {
    const auto range = std::prev(ranges_.upper_bound(address));
    return range->second.memory + (address - range->first);
  }

 private:
  struct Range {
    std::byte* memory;
    size_t bytes;
  };

  absl::Status map(uintptr_t start, uintptr_t end) {
    if (start == end) return absl::OkStatus();
    void* const memory =
        mmap(nullptr, end - start, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | (present_ ? MAP_POPULATE : MAP_NORESERVE), -1, 0);
    if (memory == MAP_FAILED) {
      return make_errno_error(
          errno, ErrorScope::kProcess,
          "mapping " + internal::format_bytes(end - start) + " for a buffer of the trace",
          "raise RLIMIT_AS, or free memory; --clock virtual needs addresses only");
    }
    ranges_[start] = {static_cast<std::byte*>(memory), end - start};
    return absl::OkStatus();
  }

  const bool present_;
  std::map<uintptr_t, Range> ranges_;
};

// The virtual clock of the replay in progress.
int64_t virtual_time = 0;
int64_t virtual_clock() { return virtual_time; }

constexpr int64_t pages_of(size_t bytes) { return static_cast<int64_t>(bytes / kReplayPage); }

// Pins nothing, and advances the virtual clock by the cost of pinning.
class CostedPinner final : public Pinner {
 public:
  class Region final : public MemoryRegion {
   public:
    Region(const MemorySource& source, ByteSecondsParts& parts)
        : MemoryRegion(source, Access::kAll), parts_(parts), since_(virtual_time) {
      virtual_time += kPinBase + kPinPerPage * pages_of(length_);
      ready_ = virtual_time;
    }
    ~Region() override {
      virtual_time += kUnpinBase + kUnpinPerPage * pages_of(length_);
      charge(used_ ? parts_.late : parts_.unused, virtual_time);
    }
    // The time at which the registration was complete.
    [[nodiscard]] int64_t ready() const { return ready_; }
    void used(int64_t begin, int64_t end) {
      charge(used_ ? parts_.between : parts_.early, begin);
      charge(parts_.in_use, end);
      used_ = true;
    }

   private:
    void charge(double& part, int64_t until) {
      if (until <= since_) return;
      part += static_cast<double>(until - since_) * 1e-9 * static_cast<double>(length_);
      since_ = until;
    }

    ByteSecondsParts& parts_;
    int64_t since_;  // the time before it is charged
    int64_t ready_;
    bool used_ = false;
  };

  explicit CostedPinner(ByteSecondsParts& parts) : parts_(parts) {}

  absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address, size_t bytes) override {
    return std::make_shared<Region>(MemorySource{.address = address, .length = bytes}, parts_);
  }

 private:
  ByteSecondsParts& parts_;
};

// Advances the time of a replay: spins, or runs the steps of the helper that are due.
class Time {
 public:
  explicit Time(ReplayClock clock) : clock_(clock) {
    if (clock == ReplayClock::kVirtual) virtual_time = 0;
    start_ = now() + 10'000'000;
  }
  [[nodiscard]] int64_t now() const {
    return clock_ == ReplayClock::kVirtual ? virtual_time : registration_clock();
  }
  [[nodiscard]] int64_t start() const { return start_; }
  void attach(HelperPolicy* helper) { helper_ = helper; }
  void run_until(int64_t time) {
    if (clock_ == ReplayClock::kReal) return spin_until(start_ + time);
    while (helper_ != nullptr && due_ + kWakeDelay <= start_ + time) {
      // The helper runs beside the application, so its clock may be ahead of the time of the
      // messages.
      virtual_time = std::max(due_ + kWakeDelay, helper_free_);
      virtual_time += kStepCost;
      due_ = helper_->step();
      helper_free_ = virtual_time;
    }
    virtual_time = start_ + time;
  }
  // Returns true if acquire() at `begin` had to wait for a registration by the helper.
  [[nodiscard]] bool waited(const MemoryRegion& region, int64_t begin) const {
    const auto* const costed = dynamic_cast<const CostedPinner::Region*>(&region);
    return costed != nullptr && costed->ready() > start_ + begin;
  }

 private:
  const ReplayClock clock_;
  HelperPolicy* helper_ = nullptr;
  int64_t start_ = 0;
  int64_t due_ = 0;
  int64_t helper_free_ = 0;
};

// The replay of one rank, message by message.
class RankReplay {
 public:
  RankReplay(const RankTrace& rank, ReplayClock clock, ReplayResult& result)
      : rank_(rank),
        clock_(clock),
        result_(result),
        memory_(clock == ReplayClock::kReal),
        time_(clock) {
    timeline_.reserve(4 * rank.size() + 16);
  }

  absl::Status start(const MakePolicy& make_policy, const MakePinner& make_pinner, uint64_t limit,
                     const HelperPlace& place) {
    if (absl::Status mapped = memory_.map(rank_); !mapped.ok()) return mapped;
    absl::StatusOr<std::shared_ptr<Pinner>> pinner = std::make_shared<CostedPinner>(result_.parts);
    if (clock_ == ReplayClock::kReal) pinner = make_pinner();
    if (!pinner.ok()) return pinner.status();
    RegistrationOptions options;
    options.max_bytes = limit;
    options.place = place;
    policy_ = make_policy(clock_ == ReplayClock::kReal);
    options.policy = policy_;
    if (clock_ == ReplayClock::kVirtual) {
      options.clock = virtual_clock;
      // No mapping changes. The results must not depend on whether the system permits userfaultfd.
      options.invalidation = Invalidation::kExplicit;
    }
    options.on_change = [this](int64_t at, uint64_t bytes) {
      timeline_.emplace_back(at - time_.start(), bytes);
    };
    auto cache = RegistrationCache::create(*pinner, options);
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    helper_ = std::dynamic_pointer_cast<HelperPolicy>(policy_);
    time_.attach(helper_.get());
    return absl::OkStatus();
  }

  // Returns the time of the next message, INT64_MAX after the last one.
  [[nodiscard]] int64_t next() const {
    return position_ < rank_.size() ? rank_[position_].begin : INT64_MAX;
  }

  // Replays the next message.
  absl::Status step() {
    const TraceMessage& message = rank_[position_++];
    run_until(message.begin);
    if (!failed_.ok()) return failed_;
    const int64_t start = time_.start();
    const CallStack stack{message.call_site};
    const UseContext context{&stack,
                             message.next_use == INT64_MAX ? INT64_MAX : start + message.next_use};
    const std::byte* const address = memory_.translate(message.address);
    const int64_t before = time_.now();
    Running one;
    bool hit = false;
    const size_t piece_bytes = policy_->piece_bytes(message.bytes);
    if (piece_bytes != 0 && message.bytes > piece_bytes) {
      one.pieces = std::make_unique<ChunkedRegistration>(*cache_, address, message.bytes,
                                                         piece_bytes, context);
      auto piece = one.pieces->next();
      if (!piece.ok()) return piece.status();
      hit = piece->was_hit && !time_.waited(*piece->region, message.begin);
      const auto pieces = static_cast<int64_t>((message.bytes + piece_bytes - 1) / piece_bytes);
      one.piece_ns = (message.end - message.begin) / pieces;
      note_use(*piece->region, start + message.begin, start + message.begin + 2 * one.piece_ns);
    } else {
      auto acquired = cache_->acquire(address, message.bytes, context);
      if (!acquired.ok()) return acquired.status();
      hit = acquired->was_hit() && !time_.waited(acquired->region(), message.begin);
      one.whole = *std::move(acquired);
      note_use(one.whole.region(), start + message.begin, start + message.end);
      one.piece_ns = message.end - message.begin;
    }
    const int64_t after = time_.now();
    result_.main_ns += static_cast<double>(after - before);
    if (hit) result_.hit_ns.push_back(static_cast<double>(after - before));
    ++result_.messages;
    result_.overslept += before - start > message.begin + kOverslept ? 1 : 0;
    result_.late += hit ? 0 : 1;
    result_.first_uses += message.signature_is_new ? 1 : 0;
    result_.repeated += message.signature_is_known ? 1 : 0;
    result_.late_repeated += message.signature_is_known && !hit ? 1 : 0;
    last_ = std::max(last_, message.end);
    running_.emplace(message.begin + one.piece_ns, std::move(one));
    return absl::OkStatus();
  }

  // Ends the transfers in progress, and adds the statistics of the rank to the result.
  absl::Status finish() {
    run_until(last_);
    while (failed_.ok() && !running_.empty()) run_until(running_.begin()->first);
    if (!failed_.ok()) return failed_;
    const RegistrationStatistics statistics = cache_->statistics();
    result_.byte_seconds += statistics.byte_seconds;
    result_.registrations += statistics.registrations;
    result_.registered_ahead += statistics.registered_ahead;
    result_.evictions += statistics.evictions;
    result_.seconds += static_cast<double>(last_) * 1e-9;
    if (helper_ != nullptr) {
      result_.helper_steps += helper_->statistics().steps;
      result_.helper_cpu_seconds +=
          static_cast<double>(helper_->statistics().cpu_nanoseconds) * 1e-9;
      result_.errors += helper_->statistics().errors;
    }
    cache_.reset();
    result_.timelines.push_back(std::move(timeline_));
    return absl::OkStatus();
  }

 private:
  struct Running {
    RegistrationUse whole;
    std::unique_ptr<ChunkedRegistration> pieces;
    int64_t piece_ns = 0;
  };

  static void note_use(const MemoryRegion& region, int64_t begin, int64_t end) {
    if (const auto* const costed = dynamic_cast<const CostedPinner::Region*>(&region)) {
      const_cast<CostedPinner::Region*>(costed)->used(begin, end);
    }
  }

  // Ends the transfers that end before `until`, in order. A transfer in pieces continues with its
  // next piece.
  void run_until(int64_t until) {
    while (failed_.ok() && !running_.empty() && running_.begin()->first <= until) {
      const int64_t end = running_.begin()->first;
      Running one = std::move(running_.begin()->second);
      running_.erase(running_.begin());
      time_.run_until(end);
      const int64_t before = time_.now();
      if (one.pieces != nullptr && !one.pieces->done()) {
        const auto piece = one.pieces->next();
        failed_.Update(piece.status());
        // The use of a piece ends when the piece after the next one begins.
        if (piece.ok()) {
          note_use(*piece->region, time_.now(), time_.start() + end + 2 * one.piece_ns);
        }
        running_.emplace(end + one.piece_ns, std::move(one));
      } else {
        one = {};
      }
      result_.main_ns += static_cast<double>(time_.now() - before);
    }
    time_.run_until(until);
  }

  const RankTrace& rank_;
  const ReplayClock clock_;
  ReplayResult& result_;
  TracedMemory memory_;
  Time time_;
  Timeline timeline_;
  std::shared_ptr<RegistrationPolicy> policy_;
  std::unique_ptr<RegistrationCache> cache_;
  std::shared_ptr<HelperPolicy> helper_;
  std::multimap<int64_t, Running> running_;  // by the end of the transfer, or of its piece
  absl::Status failed_;
  size_t position_ = 0;
  int64_t last_ = 0;  // end of a message
};

}  // namespace

void spin_until(int64_t time) {
  while (registration_clock() < time) internal::cpu_relax();
}

Timeline ReplayResult::sum(std::span<const size_t> ranks) const {
  std::multimap<int64_t, int64_t> changes;
  for (const size_t rank : ranks) {
    int64_t before = 0;
    for (const auto& [time, bytes] : timelines[rank]) {
      changes.emplace(time, static_cast<int64_t>(bytes) - before);
      before = static_cast<int64_t>(bytes);
    }
  }
  Timeline sum;
  int64_t now = 0;
  for (const auto& [time, change] : changes) {
    sum.emplace_back(time, static_cast<uint64_t>(now += change));
  }
  return sum;
}

uint64_t ReplayResult::peak_bytes(std::span<const size_t> ranks) const {
  uint64_t peak = 0;
  for (const auto& [time, bytes] : sum(ranks)) peak = std::max(peak, bytes);
  return peak;
}

absl::StatusOr<ReplayResult> replay_trace(const std::vector<RankTrace>& ranks,
                                          const MakePolicy& make_policy,
                                          const MakePinner& make_pinner, uint64_t limit,
                                          ReplayClock clock, std::span<const HelperPlace> places) {
  ReplayResult result;
  std::vector<std::unique_ptr<RankReplay>> replays;
  const auto start = [&](size_t rank) {
    replays.push_back(std::make_unique<RankReplay>(ranks[rank], clock, result));
    return replays.back()->start(make_policy, make_pinner, limit,
                                 places.empty() ? HelperPlace{} : places[rank]);
  };
  if (clock == ReplayClock::kReal) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      absl::Status done = start(rank);
      while (done.ok() && replays.back()->next() != INT64_MAX) done = replays.back()->step();
      if (done.ok()) done = replays.back()->finish();
      replays.pop_back();
      if (!done.ok()) return done;
    }
    return result;
  }
  std::multimap<int64_t, size_t> next;  // message of each rank
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (absl::Status started = start(rank); !started.ok()) return started;
    if (replays[rank]->next() != INT64_MAX) next.emplace(replays[rank]->next(), rank);
  }
  while (!next.empty()) {
    const size_t rank = next.begin()->second;
    next.erase(next.begin());
    if (absl::Status done = replays[rank]->step(); !done.ok()) return done;
    if (replays[rank]->next() != INT64_MAX) next.emplace(replays[rank]->next(), rank);
  }
  for (const auto& replay : replays) {
    if (absl::Status done = replay->finish(); !done.ok()) return done;
  }
  return result;
}

}  // namespace cariama::bench
