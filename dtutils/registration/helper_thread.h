// The helper policy: a thread predicts when each region is used next, deregisters it after its use
// and registers it again shortly before the next one. (D. Li et al., "Scalable memory registration
// for high performance networks using helper threads".)
//
//   HelperOptions options = HelperOptions::improved();   // HelperOptions{}: the paper's system
//   auto policy = std::make_shared<HelperPolicy>(options);
//   auto cache = RegistrationCache::create(pinner, {.policy = policy});
//
// A communicating thread stores one record for each use, after the transfer, in a ring of its own
// (the deregistration queue, DQ): region, time, return addresses. Storing a record takes no lock
// and never waits, except for a thread's first one of a policy (or if a thread alternates between
// more than four policies). (The look-up before the transfer may take the
// cache's lock: RegistrationCache::acquire().) If the ring is full, the oldest record is
// overwritten: its region stays registered until a later use, or until the budget of the cache ends
// the registration.
//
// The helper takes one DQ record at a time, then looks at the registration queue (RQ), which is
// ordered by deadline:
// - DQ: predict the next use td. If tc + tp <= td, deregister the region, and put it into the RQ
//   with the deadline td. If no use is predicted, deregister it. The decision about a region waits
//   until the DQ is empty, or 64 records were taken: a later record of the region may be in it.
// - RQ: if tc + tp >= td for the first item, register it; also if an item after it would be late
//   otherwise, because each takes the time of one DQ and one RQ item.
// A record may also revise the predictions of other regions (FollowPredictor): their deadlines
// move. tp is the sum of the costs of the steps, which CostModel refits while the program runs, and
// of the time by which the helper wakes too late.
#ifndef CARIAMA_DTUTILS_REGISTRATION_HELPER_THREAD_H_
#define CARIAMA_DTUTILS_REGISTRATION_HELPER_THREAD_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/export.h"
#include "dtutils/registration/cost_model.h"
#include "dtutils/registration/period_predictor.h"
#include "dtutils/registration/policy.h"
#include "dtutils/wait.h"

namespace cariama {

namespace internal {
struct UseRecord;
class UseQueue;
}  // namespace internal

// No time is negative or longer than an hour.
struct CARIAMA_DTUTILS_EXPORT HelperOptions {
  PredictorKind predictor_kind = PredictorKind::kContext;
  PredictorOptions predictor{};
  // Records of one DQ, 1 to 2^20, rounded up to a power of two.
  uint32_t queue_records = 256;
  // The time between two checks of the DQ while no region is due, not 0. While no memory is
  // registered and no record arrives, the time doubles, up to 8 times its value.
  std::chrono::microseconds poll_interval{1000};
  // The shortest time until the next use for which a region is deregistered, while all of the
  // budget is free. The time falls linearly to 0 at three quarters of the budget. 0: the paper's
  // system.
  std::chrono::microseconds horizon{0};
  // A registered region whose predicted use did not come is deregistered when this multiple of its
  // period, plus one poll_interval, has passed since its deadline. 0: never (the paper's system).
  double give_up_after = 0;
  // The shortest time between two checks of the DQ. The helper checks it when a use of registered
  // memory is expected to have ended. 0: the helper checks it each poll_interval (the paper's
  // system).
  std::chrono::microseconds look_interval{0};
  // While the helper is awake, it also registers the regions that are due within this time. This
  // saves wake-ups. 0: the paper's system.
  std::chrono::microseconds batch{0};
  // Messages of at least `piece_from` bytes are registered in pieces of `piece_bytes`
  // (ChunkedRegistration). piece_bytes 0: all are registered whole.
  size_t piece_bytes = 0;
  size_t piece_from = 0;
  // Aggressive core policy (section 5): the number n of helpers that share this helper's core,
  // their time slice, and the cost of a switch. n * (t_slice + t_cs) is added to tp. If n is not 0,
  // the helper always runs, whatever the board says.
  uint32_t sharing_helpers = 0;
  std::chrono::microseconds time_slice{3000};
  std::chrono::microseconds context_switch{5};
  // Conservative core policy, in effect if RegistrationOptions::place has a board (in a fabric it
  // has one): the number of cores of the host on which helpers may run, each on its own. The
  // helpers with the most registered bytes run. A number of bytes counts for some seconds after the
  // bytes are deregistered; otherwise a helper would lose its core by its own work. While a helper
  // does not run, its process leaves memory registered, within the budget. Empty:
  // HelperPlace::idle_cores. UINT32_MAX: the helper always runs.
  std::optional<uint32_t> idle_cores{};
  // false: no thread; the owner calls step(). For simulations with a clock of their own.
  bool own_thread = true;

  // The improvements together (docs/registration.md has the comparison): PredictorKind::kFollow,
  // horizon 300 µs, give_up_after 1, look_interval 250 µs, batch 50 µs; messages of 16 MiB or more
  // are registered in pieces of 1 MiB.
  [[nodiscard]] static HelperOptions improved();

  // Returns INVALID_ARGUMENT, with the name of the option and its range, if one is out of range.
  [[nodiscard]] absl::Status validate() const;
};

// The numbers since the policy was attached to its cache (the last one, if it serves none).
struct HelperStatistics {
  uint64_t steps = 0;        // wake-ups
  uint64_t records = 0;      // taken from the DQ
  uint64_t overwritten = 0;  // lost in a full DQ
  uint64_t deregistered = 0;
  uint64_t stayed_registered = 0;  // the next use was too near
  uint64_t registered_ahead = 0;
  uint64_t given_up = 0;   // deregistered because the predicted use did not come
  bool runs = true;        // now: the board grants this helper a core
  uint64_t forgotten = 0;  // now: regions that the cache has forgotten, the helper not yet
  uint64_t known = 0;      // now: regions of which the helper has a state
  uint64_t listed = 0;     // now: of these, those that the helper visits in each step
  // Uses whose thread took a lock to find its DQ, since the policy exists: one of each thread, more
  // if the thread alternates between more than four policies.
  uint64_t queue_searches = 0;
  int64_t cpu_nanoseconds = 0;  // of the helper's thread
  int64_t wake_delay = 0;       // by which the helper wakes late, ns
  PredictionErrors errors;
};

class CARIAMA_DTUTILS_EXPORT HelperPolicy final : public RegistrationPolicy {
 public:
  // The largest number of running threads whose uses are recorded. Memory that further threads use
  // stays registered until the budget ends the registration.
  static constexpr size_t kMaxThreads = 256;

  // One policy serves one cache at a time. The next one begins without predictions. Options out of
  // their range are an error of RegistrationCache::create().
  explicit HelperPolicy(HelperOptions options);
  ~HelperPolicy() override;

  [[nodiscard]] std::string_view name() const override { return "helper"; }
  [[nodiscard]] absl::Status validate() const override { return options_.validate(); }
  void attach(RegionControl* control) override;
  [[nodiscard]] bool records_uses() const override { return true; }
  [[nodiscard]] bool ended(const RegionUse& use) override;
  void forgotten(RegionName region) override;
  [[nodiscard]] size_t piece_bytes(size_t message_bytes) const override {
    return message_bytes < options_.piece_from ? 0 : options_.piece_bytes;
  }

  // Executes the steps that are due and returns the time at which the next step is due, in ns of
  // the cache's clock (INT64_MAX if no cache has this policy). Called by the helper's thread, or by
  // the owner if own_thread is false. One thread at a time.
  int64_t step();

  [[nodiscard]] HelperStatistics statistics() const;

 private:
  struct Communicator;
  // A thread that begins uses, and its predictor.
  struct Beginner;
  using Waiting = std::multimap<int64_t, uint64_t>;
  // The helper's state of a region.
  struct Known {
    uint64_t bytes = 0;
    std::optional<int64_t> deadline;  // of its item in the RQ
    Waiting::iterator item{};         // that item, if there is a deadline
    int64_t not_before = INT64_MIN;   // when the item may be processed: a refused one waits
    int64_t give_up = INT64_MAX;      // registered ahead: the time at which it is deregistered
    int64_t last_use = 0;
    std::optional<int64_t> next;   // the predicted deadline
    int64_t expected = INT64_MAX;  // the most likely time of the next use
    bool registered = false;       // as far as the helper knows
    bool listed = false;           // it is in registered_
    bool undecided = false;        // it is in undecided_
    bool ahead = false;            // registered ahead, and not used yet
    bool given_up = false;         // it was not used when predicted; waits for its next use
    bool hot = false;              // stayed registered after a use because the next one is near
  };

  [[nodiscard]] internal::UseQueue* queue_of_this_thread();
  void run();
  void clear();
  void take_forgotten();
  [[nodiscard]] bool records_passed() const;
  void drop(uint64_t region);
  void drop_forgotten();
  void discard_records();
  void leave_registered();
  [[nodiscard]] std::vector<internal::UseRecord> take_records(size_t most);
  [[nodiscard]] Beginner& beginner_of(uint32_t thread);
  [[nodiscard]] std::optional<int64_t> earliest_use(const Beginner& from, uint64_t region,
                                                    int64_t time,
                                                    std::optional<int64_t> next) const;
  void process_record(const internal::UseRecord& record);
  void reconsider(uint64_t region, Known& known);
  void revise(const Beginner& from, const PredictionRevision& revision);
  void decide(uint64_t region, Known& known);
  void decide_all();
  void note_registered(uint64_t region, Known& known);
  void note_wake_delay(int64_t now);
  void compact_registered();
  [[nodiscard]] int64_t next_look(int64_t now) const;
  [[nodiscard]] int64_t next_begin() const;
  [[nodiscard]] bool register_due();
  void give_up_unused(int64_t time);
  void expect_later_use(uint64_t region, Known& known, int64_t time);
  [[nodiscard]] int64_t latest_use(const Known& known, int64_t deadline) const;
  [[nodiscard]] int64_t give_up_time(const Known& known, int64_t deadline) const;
  void enqueue(uint64_t region, Known& known, int64_t deadline);
  void dequeue(Known& known);
  // Return tp of the two conditions.
  [[nodiscard]] int64_t deregistration_delay(uint64_t bytes) const;
  [[nodiscard]] int64_t registration_delay(uint64_t bytes) const;
  [[nodiscard]] int64_t scheduling_delay() const;
  [[nodiscard]] int64_t horizon() const;
  [[nodiscard]] bool granted();

  const HelperOptions options_;
  const uint64_t serial_;
  RegionControl* control_ = nullptr;
  HelperPlace place_;
  double posted_ = 0;      // bytes on the board
  int64_t posted_at_ = 0;  // 0: never

  std::mutex communicators_mutex_;  // set-up of a thread's queue only
  std::array<std::atomic<Communicator*>, kMaxThreads> communicators_{};
  std::atomic<size_t> communicator_count_{0};

  std::mutex forgotten_mutex_;  // never held while the cache is called
  std::vector<uint64_t> forgotten_;
  std::vector<uint64_t> gone_;  // taken from forgotten_; of the helper
  std::atomic<bool> any_forgotten_{false};
  std::atomic<uint64_t> forgotten_count_{0};  // in forgotten_ and gone_
  std::atomic<uint64_t> queue_searches_{0};

  // Owned by the thread that calls step().
  std::unordered_map<uint64_t, Known> known_;
  Waiting waiting_;  // the RQ: by deadline
  // By RegionUse::thread, at most kMaxThreads: a further one replaces the one whose last record is
  // the oldest.
  std::unordered_map<uint32_t, Beginner> beginners_;
  PredictionErrors past_errors_;  // of those that were replaced
  uint64_t records_ = 0;
  std::vector<uint64_t> undecided_;  // their records were taken from the DQ
  // The registered regions, if options_ need the list; compacted at the end of each step.
  std::vector<uint64_t> registered_;
  CostModel register_cost_;
  CostModel deregister_cost_;
  CostModel insert_cost_;   // t_insert and t_update, by length of the RQ
  CostModel predict_cost_;  // t_hash and t_cache, by 1
  int64_t idle_polls_ = 0;
  int64_t due_ = INT64_MAX;  // when the next step is due

  mutable std::mutex statistics_mutex_;
  HelperStatistics statistics_;
  std::atomic<bool> granted_{true};
  std::atomic<int64_t> wake_delay_{0};
  std::atomic<bool> stop_{false};
  Doorbell wake_;
  std::thread thread_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_HELPER_THREAD_H_
