#include "dtutils/registration/helper_thread.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "dtutils/diagnostics.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/internal/use_queue.h"

namespace cariama {
namespace {

constexpr int64_t kMostWakeDelay = 2'000'000;
constexpr int64_t kNotGrantedPause = 100'000'000;
constexpr int64_t kLeastPause = 20'000;  // before a refused registration is tried again
// On a loaded machine a helper may wake this late. A post that expires meanwhile lets one helper
// too many run.
constexpr int64_t kPostExpires = 500'000'000;
// The time in ns in which bytes that were deregistered disappear from the board.
constexpr double kForgetBytes = 10e9;
constexpr int kMostIdleDoublings = 3;
constexpr size_t kMostRecordsPerStep = 64;
constexpr int kMostItemsAhead = 64;  // items of the RQ for which the helper begins earlier
constexpr size_t kRecentPolicies = 4;
constexpr uint32_t kSearchAgain = 64;  // uses of a thread for which there was no queue
// The helper looks at the DQ this long after the expected begin of a use, in ns: most uses have
// ended then.
constexpr int64_t kLookAfter = 50'000;
constexpr uint64_t kPage = 4096;  // unit of the cost model, whatever the machine's page is

// Initial costs, measured with io_uring on Zen 4; the models adapt.
constexpr double kRegisterPerPage = 54;
constexpr double kRegisterBase = 2000;
constexpr double kDeregisterPerPage = 18;
constexpr double kDeregisterBase = 1500;

uint64_t hash_stack(const CallStack& stack) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uintptr_t address : stack) {
    if (address == 0) break;
    hash = (hash ^ address) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash;
}

int64_t thread_cpu_time() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

std::atomic<uint64_t> last_policy_serial{0};

}  // namespace

// A thread that ends uses, and later another one: `thread` expires when a thread ends.
struct HelperPolicy::Communicator {
  explicit Communicator(const HelperOptions& options)
      : queue(std::bit_ceil(options.queue_records)) {}
  std::weak_ptr<const char> thread;  // guarded by communicators_mutex_
  internal::UseQueue queue;
};

struct HelperPolicy::Beginner {
  std::unique_ptr<PeriodPredictor> predictor;
  int64_t latest = 0;     // time of its last record
  uint64_t recorded = 0;  // number of that record
};

HelperPolicy::HelperPolicy(HelperOptions options)
    : options_(options),
      serial_(last_policy_serial.fetch_add(1, std::memory_order_relaxed) + 1),
      register_cost_(kRegisterPerPage, kRegisterBase),
      deregister_cost_(kDeregisterPerPage, kDeregisterBase),
      insert_cost_(10, 300),
      predict_cost_(0, 1000) {}

HelperPolicy::~HelperPolicy() {
  attach(nullptr);
  for (auto& one : communicators_) delete one.load(std::memory_order_relaxed);
}

void HelperPolicy::attach(RegionControl* control) {
  if (thread_.joinable()) {
    stop_.store(true, std::memory_order_release);
    wake_.ring();
    thread_.join();
    stop_.store(false, std::memory_order_relaxed);
  }
  if (place_.board != nullptr) place_.board->leave(place_.helper);
  control_ = control;
  place_ = control == nullptr ? HelperPlace{} : control->place();
  clear();
  if (control != nullptr) {
    const std::lock_guard lock(statistics_mutex_);
    statistics_ = {};
  }
  if (control == nullptr || !options_.own_thread) return;
  // The application's handlers must not run while this thread is in the cache, with its lock.
  auto thread = internal::start_quiet_thread([this] { run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    // Without a thread the policy behaves as if the board had not granted a helper: idle regions
    // stay registered.
    granted_.store(false, std::memory_order_relaxed);
    report_once("registration helper", std::string(thread.status().message()), "");
  }
}

// Forgets the regions of the previous cache: those of the next one may have equal names.
void HelperPolicy::clear() {
  known_.clear();
  waiting_.clear();
  undecided_.clear();
  registered_.clear();
  discard_records();
  drop_forgotten();
  take_forgotten();
  drop_forgotten();
  beginners_.clear();
  past_errors_ = {};
  idle_polls_ = 0;
  due_ = INT64_MAX;
  posted_ = 0;
  granted_.store(true, std::memory_order_relaxed);
}

internal::UseQueue* HelperPolicy::queue_of_this_thread() {
  // The queues of the policies that this thread used last. A process with several devices has a
  // policy for each.
  struct Recent {
    std::array<std::pair<uint64_t, internal::UseQueue*>, kRecentPolicies>
        queues{};  // serial, queue
    size_t oldest = 0;
    uint32_t unrecorded = 0;  // uses without a queue
    bool ended = false;       // the thread gives its queues back, and may still end uses
  };
  static thread_local Recent of_thread;
  Recent& recent = of_thread;
  for (auto& [serial, queue] : recent.queues) {
    if (serial != serial_) [[unlikely]]
      continue;
    if (queue != nullptr || ++recent.unrecorded % kSearchAgain != 0) [[likely]]
      return queue;
    serial = 0;
  }
  if (recent.ended) return nullptr;
  queue_searches_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(communicators_mutex_);
  static thread_local const struct Me {
    ~Me() {
      of_thread = {};
      of_thread.ended = true;
    }
    std::shared_ptr<const char> name = std::make_shared<const char>('\0');
  } of_this_thread;
  const std::shared_ptr<const char>& me = of_this_thread.name;
  const size_t count = communicator_count_.load(std::memory_order_relaxed);
  Communicator* mine = nullptr;
  Communicator* unused = nullptr;
  for (size_t i = 0; i < count && mine == nullptr; ++i) {
    Communicator* const one = communicators_[i].load(std::memory_order_relaxed);
    const std::shared_ptr<const char> owner = one->thread.lock();
    if (owner == me) mine = one;
    if (owner == nullptr) unused = one;
  }
  if (mine == nullptr && unused != nullptr) {
    mine = unused;
    mine->thread = me;
  } else if (mine == nullptr && count < kMaxThreads) {
    mine = new Communicator(options_);
    mine->thread = me;
    communicators_[count].store(mine, std::memory_order_release);
    communicator_count_.store(count + 1, std::memory_order_release);
  }
  internal::UseQueue* const queue = mine == nullptr ? nullptr : &mine->queue;
  recent.queues[recent.oldest] = {serial_, queue};
  recent.oldest = (recent.oldest + 1) % kRecentPolicies;
  return queue;
}

bool HelperPolicy::ended(const RegionUse& use) {
  if (!granted_.load(std::memory_order_relaxed)) return true;
  internal::UseQueue* const queue = queue_of_this_thread();
  if (queue != nullptr) queue->push(use);
  return true;
}

void HelperPolicy::forgotten(RegionName region) {
  // The thread could not be started: no step() takes the name.
  if (options_.own_thread && !thread_.joinable()) return;
  const std::lock_guard lock(forgotten_mutex_);
  try {
    forgotten_.push_back(region.value);
  } catch (const std::bad_alloc&) {
    return;  // the helper drops the region when it next calls the cache for it
  }
  forgotten_count_.fetch_add(1, std::memory_order_relaxed);
  any_forgotten_.store(true, std::memory_order_release);
}

// Takes the names that the cache has forgotten, if the last ones are dropped. The records that are
// in the queues now may name them.
void HelperPolicy::take_forgotten() {
  if (!gone_.empty() || !any_forgotten_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(forgotten_mutex_);
    gone_.swap(forgotten_);
    any_forgotten_.store(false, std::memory_order_relaxed);
  }
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    communicators_[i].load(std::memory_order_acquire)->queue.mark();
  }
}

// Returns true if no record that was in a queue when take_forgotten() took names is still there.
bool HelperPolicy::records_passed() const {
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    if (!communicators_[i].load(std::memory_order_acquire)->queue.passed()) return false;
  }
  return true;
}

void HelperPolicy::drop(uint64_t region) {
  if (const auto found = known_.find(region); found != known_.end()) {
    dequeue(found->second);
    known_.erase(found);
  }
  for (auto& [thread, beginner] : beginners_) beginner.predictor->forget(region);
}

void HelperPolicy::drop_forgotten() {
  for (const uint64_t region : gone_) drop(region);
  forgotten_count_.fetch_sub(gone_.size(), std::memory_order_relaxed);
  gone_.clear();
}

void HelperPolicy::discard_records() {
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    communicators_[i].load(std::memory_order_acquire)->queue.discard();
  }
}

int64_t HelperPolicy::scheduling_delay() const {
  const auto shared = std::chrono::nanoseconds(options_.time_slice + options_.context_switch);
  return wake_delay_.load(std::memory_order_relaxed) + options_.sharing_helpers * shared.count();
}

int64_t HelperPolicy::deregistration_delay(uint64_t bytes) const {
  const uint64_t pages = bytes / kPage;
  return deregister_cost_.predict(pages) + register_cost_.predict_most(pages) +
         insert_cost_.predict(waiting_.size()) + scheduling_delay();
}

int64_t HelperPolicy::registration_delay(uint64_t bytes) const {
  return predict_cost_.predict(1) + deregistration_delay(bytes);
}

int64_t HelperPolicy::horizon() const {
  if (options_.horizon.count() == 0) return 0;
  const double used = static_cast<double>(control_->registered_bytes()) /
                      static_cast<double>(std::max<uint64_t>(control_->max_bytes(), 1));
  const double rest = std::clamp(1 - used / 0.75, 0.0, 1.0);
  return static_cast<int64_t>(
      rest * static_cast<double>(std::chrono::nanoseconds(options_.horizon).count()));
}

void HelperPolicy::enqueue(uint64_t region, Known& known, int64_t deadline) {
  dequeue(known);
  known.item = waiting_.emplace(deadline, region);
  known.deadline = deadline;
}

// Returns when the helper must begin with the first item of the RQ, so that the items after it are
// processed before their deadlines, too, each with one DQ item. INT64_MAX if the RQ is empty.
int64_t HelperPolicy::next_begin() const {
  int64_t begin = INT64_MAX;
  int64_t work = scheduling_delay();
  int items = 0;
  for (const auto& [deadline, region] : waiting_) {
    const Known& known = known_.at(region);
    work += registration_delay(known.bytes) - scheduling_delay();
    begin = std::min(begin, deadline - work);
    work += deregistration_delay(known.bytes) - scheduling_delay();
    if (++items == kMostItemsAhead) break;
  }
  return begin;
}

void HelperPolicy::dequeue(Known& known) {
  if (!known.deadline.has_value()) return;
  waiting_.erase(known.item);
  known.deadline.reset();
  known.not_before = INT64_MIN;
}

void HelperPolicy::note_registered(uint64_t region, Known& known) {
  known.registered = true;
  // The helper visits the list only with one of these options.
  if (known.listed || (options_.give_up_after <= 0 && options_.look_interval.count() == 0)) return;
  known.listed = true;
  registered_.push_back(region);
}

HelperPolicy::Beginner& HelperPolicy::beginner_of(uint32_t thread) {
  if (beginners_.size() >= kMaxThreads && !beginners_.contains(thread)) {
    const auto oldest = std::min_element(
        beginners_.begin(), beginners_.end(),
        [](const auto& a, const auto& b) { return a.second.recorded < b.second.recorded; });
    past_errors_ += oldest->second.predictor->errors();
    beginners_.erase(oldest);
  }
  Beginner& beginner = beginners_[thread];
  if (beginner.predictor == nullptr) {
    beginner.predictor = make_predictor(options_.predictor_kind, options_.predictor);
  }
  return beginner;
}

// Returns the earliest of `next` and the uses of the region that threads other than `from` will
// make.
std::optional<int64_t> HelperPolicy::earliest_use(const Beginner& from, uint64_t region,
                                                  int64_t time, std::optional<int64_t> next) const {
  if (beginners_.size() == 1) return next;
  for (const auto& [thread, beginner] : beginners_) {
    if (&beginner == &from) continue;
    const auto other = beginner.predictor->next_use(region, time);
    if (other.has_value() && (!next.has_value() || *other < *next)) next = other;
  }
  return next;
}

void HelperPolicy::process_record(const internal::UseRecord& record) {
  const int64_t before = control_->now();
  Beginner& from = beginner_of(record.thread);
  from.recorded = ++records_;
  // The record of a use that ended early may have been processed before those of earlier uses.
  from.latest = std::max(from.latest, record.begin);
  Known& known = known_[record.region];
  known.bytes = record.bytes;
  known.last_use = from.latest;
  known.give_up = INT64_MAX;
  known.ahead = false;
  known.given_up = false;
  dequeue(known);
  note_registered(record.region, known);
  known.next =
      earliest_use(from, record.region, from.latest,
                   from.predictor->record({record.region, hash_stack(record.stack), from.latest}));
  known.expected =
      from.predictor->expected_use(record.region).value_or(known.next.value_or(INT64_MAX));
  reconsider(record.region, known);
  for (const PredictionRevision& revision : from.predictor->revisions()) revise(from, revision);
  predict_cost_.add(1, control_->now() - before);
}

void HelperPolicy::reconsider(uint64_t region, Known& known) {
  if (!known.undecided) undecided_.push_back(region);
  known.undecided = true;
}

// Takes over a newer prediction of a region that another communication has made. The time at which
// the helper gives the region up does not change, so that a region whose predictions never come
// true is deregistered.
void HelperPolicy::revise(const Beginner& from, const PredictionRevision& revision) {
  const auto found = known_.find(revision.region);
  if (found == known_.end() || found->second.given_up) return;
  Known& known = found->second;
  known.next = earliest_use(from, revision.region, from.latest, revision.due);
  known.expected = *known.next < revision.due ? *known.next : revision.expected;
  if (known.registered) {
    reconsider(revision.region, known);
  } else {
    enqueue(revision.region, known, *known.next);
  }
}

// Deregisters a region after its last known use, or leaves it registered.
void HelperPolicy::decide(uint64_t region, Known& known) {
  known.undecided = false;
  const int64_t now = control_->now();
  const bool near =
      known.next.has_value() && now + deregistration_delay(known.bytes) + horizon() > *known.next;
  known.hot = near && !known.ahead;
  if (near) {
    // A use that is due stays registered; the deadline is the time from which it is overdue.
    if (known.give_up == INT64_MAX) known.give_up = give_up_time(known, *known.next);
    const std::lock_guard lock(statistics_mutex_);
    ++statistics_.stayed_registered;
    return;
  }
  const DeregisterResult result = control_->deregister_idle({region});
  // If another use is in progress, its record will come.
  if (result == DeregisterResult::kInUse) return;
  if (result == DeregisterResult::kUnknown) return drop(region);
  known.registered = false;
  known.ahead = false;
  const int64_t after = control_->now();
  // The budget may have ended the registration. The next use needs one all the same.
  const bool done = result == DeregisterResult::kDeregistered;
  if (done) deregister_cost_.add(known.bytes / kPage, after - now);
  if (known.next.has_value()) {
    enqueue(region, known, *known.next);
    insert_cost_.add(waiting_.size(), control_->now() - after);
  }
  if (!done) return;
  const std::lock_guard lock(statistics_mutex_);
  ++statistics_.deregistered;
}

void HelperPolicy::decide_all() {
  for (const uint64_t region : undecided_) {
    const auto found = known_.find(region);
    if (found != known_.end() && found->second.undecided) decide(region, found->second);
    while (register_due()) {
    }
  }
  undecided_.clear();
}

// Returns the time after which a use with that deadline is not expected any more.
int64_t HelperPolicy::latest_use(const Known& known, int64_t deadline) const {
  const double periods = options_.give_up_after > 0 ? options_.give_up_after : 1;
  return deadline + std::chrono::nanoseconds(options_.poll_interval).count() +
         static_cast<int64_t>(periods * static_cast<double>(deadline - known.last_use));
}

int64_t HelperPolicy::give_up_time(const Known& known, int64_t deadline) const {
  return options_.give_up_after > 0 ? latest_use(known, deadline) : INT64_MAX;
}

// Takes up to `most` records of each DQ, and puts them into the order in which their uses began: a
// DQ has the order in which they ended.
std::vector<internal::UseRecord> HelperPolicy::take_records(size_t most) {
  std::vector<internal::UseRecord> taken;
  uint64_t overwritten = 0;
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    internal::UseQueue& queue = communicators_[i].load(std::memory_order_acquire)->queue;
    internal::UseRecord record;
    for (size_t n = 0; n < most && queue.pop(record, overwritten); ++n) taken.push_back(record);
  }
  std::stable_sort(taken.begin(), taken.end(),
                   [](const auto& a, const auto& b) { return a.precedes(b); });
  if (overwritten == 0 && taken.empty()) return taken;
  const std::lock_guard lock(statistics_mutex_);
  statistics_.overwritten += overwritten;
  statistics_.records += taken.size();
  return taken;
}

// Registers the first item of the RQ if it is due.
bool HelperPolicy::register_due() {
  if (waiting_.empty()) return false;
  const uint64_t region = waiting_.begin()->second;
  Known& known = known_[region];
  const int64_t due = *known.deadline;
  const int64_t before = control_->now();
  // Items that are due soon after the one for which the helper woke cost no wake-up of their own.
  const int64_t batch = std::chrono::nanoseconds(options_.batch).count();
  if (before + batch < next_begin() || before < known.not_before) return false;
  const RegisterAheadResult result =
      control_->register_ahead({region}, {due, latest_use(known, due)});
  if (result == RegisterAheadResult::kRefused && control_->now() < due) {
    // The cause may end before the deadline: a use of other memory, or a deregistration.
    // The pauses shorten towards the deadline, so a budget that stays full costs few attempts.
    const int64_t now = control_->now();
    known.not_before = now + std::max({kLeastPause, (due - now) / 8,
                                       register_cost_.predict(known.bytes / kPage) / 4});
    return false;
  }
  dequeue(known);
  if (result == RegisterAheadResult::kRefused) return true;
  if (result == RegisterAheadResult::kUnknown) {
    drop(region);
    return true;
  }
  note_registered(region, known);
  known.give_up = give_up_time(known, due);
  // A use that was late has registered the region: no cost was measured.
  if (result == RegisterAheadResult::kAlreadyRegistered) return true;
  register_cost_.add(known.bytes / kPage, control_->now() - before);
  known.ahead = true;
  const std::lock_guard lock(statistics_mutex_);
  ++statistics_.registered_ahead;
  return true;
}

void HelperPolicy::give_up_unused(int64_t time) {
  if (options_.give_up_after <= 0) return;
  for (const uint64_t region : registered_) {
    const auto found = known_.find(region);
    if (found == known_.end() || found->second.give_up > time) continue;
    found->second.give_up = INT64_MAX;
    const DeregisterResult result = control_->deregister_idle({region});
    if (result == DeregisterResult::kInUse) continue;
    if (result == DeregisterResult::kUnknown) {
      drop(region);
      continue;
    }
    found->second.registered = false;
    expect_later_use(region, found->second, time);
    if (result == DeregisterResult::kNotRegistered) continue;
    const std::lock_guard lock(statistics_mutex_);
    ++statistics_.given_up;
  }
}

// A use that was predicted from several gaps may come after a longer one of them.
void HelperPolicy::expect_later_use(uint64_t region, Known& known, int64_t time) {
  known.next.reset();
  for (const auto& [thread, beginner] : beginners_) {
    const auto later = beginner.predictor->later_use(region, time);
    if (later.has_value() && (!known.next.has_value() || *later < *known.next)) known.next = later;
  }
  known.given_up = !known.next.has_value();
  known.expected = known.next.value_or(INT64_MAX);
  if (known.next.has_value()) enqueue(region, known, *known.next);
}

// Takes the regions that are not registered any more out of the list.
void HelperPolicy::compact_registered() {
  std::erase_if(registered_, [this](uint64_t region) {
    const auto found = known_.find(region);
    if (found == known_.end()) return true;
    found->second.listed = found->second.registered;
    return !found->second.listed;
  });
}

// Returns when to look at the DQ for the uses of registered memory.
int64_t HelperPolicy::next_look(int64_t now) const {
  const int64_t poll = now + std::chrono::nanoseconds(options_.poll_interval).count();
  if (options_.look_interval.count() == 0) return poll;
  const int64_t soonest = now + std::chrono::nanoseconds(options_.look_interval).count();
  int64_t look = INT64_MAX;
  for (const uint64_t region : registered_) {
    const Known& known = known_.at(region);
    // The next use is expected, or overdue by less than one poll_interval. A hot region stays
    // registered after its next use, too: the DQ need not be looked at soon after that use.
    const bool soon =
        !known.hot && known.expected != INT64_MAX && known.expected > now - (poll - now);
    look = std::min(look, soon ? std::max(known.expected + kLookAfter, soonest) : poll);
  }
  return look == INT64_MAX ? poll : look;
}

bool HelperPolicy::granted() {
  if (place_.board == nullptr || options_.sharing_helpers != 0) return true;
  const int64_t now = control_->now();
  // The longest time until the next step, and as much again for a thread that wakes late.
  const int64_t pause =
      std::max(kNotGrantedPause, std::chrono::nanoseconds(options_.poll_interval).count()
                                     << kMostIdleDoublings);
  const double left = 1 - static_cast<double>(now - posted_at_) / kForgetBytes;
  posted_ =
      std::max(static_cast<double>(control_->registered_bytes()), posted_ * std::max(left, 0.0));
  posted_at_ = now;
  place_.board->post(place_.helper, static_cast<uint64_t>(posted_), now + 2 * pause + kPostExpires);
  const bool runs =
      place_.board->may_run(place_.helper, options_.idle_cores.value_or(place_.idle_cores), now);
  if (!runs && granted_.load(std::memory_order_relaxed)) leave_registered();
  granted_.store(runs, std::memory_order_relaxed);
  return runs;
}

// The deadlines of this time are old when the helper runs again.
void HelperPolicy::leave_registered() {
  waiting_.clear();
  undecided_.clear();
  registered_.clear();
  known_.clear();
}

void HelperPolicy::note_wake_delay(int64_t now) {
  if (due_ == INT64_MAX) return;
  // Rises fast and falls slowly, so it is above most delays.
  const int64_t late = std::clamp<int64_t>(now - due_, 0, kMostWakeDelay);
  const int64_t known = wake_delay_.load(std::memory_order_relaxed);
  wake_delay_.store(known + (late > known ? (late - known) / 4 : (late - known) / 32),
                    std::memory_order_relaxed);
}

int64_t HelperPolicy::step() {
  if (control_ == nullptr) return INT64_MAX;
  note_wake_delay(control_->now());
  take_forgotten();
  if (!granted()) {
    // A record from before may name a forgotten region.
    discard_records();
    drop_forgotten();
    return due_ = control_->now() + kNotGrantedPause;
  }
  bool worked = false;
  size_t taken = 0;
  while (taken < kMostRecordsPerStep) {
    const std::vector<internal::UseRecord> records = take_records(kMostRecordsPerStep - taken);
    taken += records.size();
    // One DQ item, then the RQ, in case that a deadline is near.
    for (const internal::UseRecord& record : records) {
      process_record(record);
      static_cast<void>(register_due());
    }
    bool registered = false;
    while (register_due()) registered = true;
    if (records.empty() && !registered) break;
    worked = true;
  }
  decide_all();
  // A record from before take_forgotten() may name a forgotten region, and would make it known
  // again.
  if (records_passed()) drop_forgotten();
  const int64_t now = control_->now();
  give_up_unused(now);
  compact_registered();
  {
    const std::lock_guard lock(statistics_mutex_);
    ++statistics_.steps;
    statistics_.errors = past_errors_;
    for (const auto& [thread, beginner] : beginners_) {
      statistics_.errors += beginner.predictor->errors();
    }
    statistics_.known = known_.size();
    statistics_.listed = registered_.size();
  }
  if (taken >= kMostRecordsPerStep) return due_ = now;
  // If the regions of all uses that are foreseen are in the RQ, only unforeseen uses wait for a
  // look at the DQ.
  const bool only_unforeseen = options_.look_interval.count() != 0 && !waiting_.empty();
  if (control_->registered_bytes() != 0 || (worked && !only_unforeseen)) {
    // Registered memory is used or will be soon; its record must not wait.
    idle_polls_ = 0;
    due_ = next_look(now);
  } else {
    idle_polls_ = only_unforeseen ? kMostIdleDoublings
                                  : std::min<int64_t>(idle_polls_ + 1, kMostIdleDoublings);
    due_ = now + (std::chrono::nanoseconds(options_.poll_interval).count() << idle_polls_);
  }
  if (!waiting_.empty()) {
    const Known& first = known_.at(waiting_.begin()->second);
    due_ = std::min(due_, std::max(next_begin(), first.not_before));
  }
  return due_ = std::max(due_, now);
}

void HelperPolicy::run() {
  // A wake-up 50 µs late, the default, would make registrations late or early by as much.
  prctl(PR_SET_TIMERSLACK, 1);
  while (!stop_.load(std::memory_order_acquire)) {
    const int64_t due = step();
    {
      const std::lock_guard lock(statistics_mutex_);
      statistics_.cpu_nanoseconds = thread_cpu_time();
    }
    const int64_t now = control_->now();
    if (due <= now) continue;
    DoorbellSleeper sleeper(wake_);
    static_cast<void>(sleep_once([&] { return stop_.load(std::memory_order_acquire); },
                                 deadline_after(std::chrono::nanoseconds(due - now)), sleeper));
  }
}

HelperStatistics HelperPolicy::statistics() const {
  HelperStatistics result;
  {
    const std::lock_guard lock(statistics_mutex_);
    result = statistics_;
  }
  result.forgotten = forgotten_count_.load(std::memory_order_relaxed);
  result.queue_searches = queue_searches_.load(std::memory_order_relaxed);
  result.runs = granted_.load(std::memory_order_relaxed);
  result.wake_delay = wake_delay_.load(std::memory_order_relaxed);
  return result;
}

}  // namespace cariama
