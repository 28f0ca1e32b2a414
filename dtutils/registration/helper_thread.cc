#include "dtutils/registration/helper_thread.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <string>

#include "dtutils/diagnostics.h"
#include "dtutils/internal/start_thread.h"

namespace cariama {
namespace {

constexpr int64_t kMostWakeDelay = 2'000'000;
constexpr int64_t kNotGrantedPause = 100'000'000;
// On a loaded machine a helper may wake this late. A post that expires meanwhile lets one helper
// too many run.
constexpr int64_t kPostExpires = 500'000'000;
// The time in ns in which bytes that were deregistered disappear from the board.
constexpr double kForgetBytes = 10e9;
constexpr int kMostIdleDoublings = 3;
constexpr int kMostRecordsPerStep = 64;
constexpr size_t kRecentPolicies = 4;
constexpr int64_t kLookAfter = 50'000;  // the duration of a use, and half the noise of its begin
constexpr uint64_t kPage = 4096;        // unit of the cost model, whatever the machine's page is

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

HelperOptions HelperOptions::improved() {
  HelperOptions options;
  options.predictor_kind = PredictorKind::kFollow;
  options.horizon = std::chrono::microseconds(300);
  options.give_up_after = 1;
  options.look_interval = std::chrono::microseconds(250);
  options.batch = std::chrono::microseconds(50);
  options.piece_bytes = size_t{1} << 20;
  options.piece_from = size_t{16} << 20;
  return options;
}

struct HelperPolicy::Record {
  uint64_t region = 0;
  uint64_t bytes = 0;
  int64_t begin = 0;
  CallStack stack{};
};

// The DQ of one communicating thread: a ring that the producer overwrites without looking at the
// consumer. Each slot is a sequence lock: its number is 2 * position + 1 while the record of that
// position is written, and one more afterwards.
struct HelperPolicy::Queue {
  static constexpr size_t kWords = 3 + std::tuple_size_v<CallStack>;
  struct Slot {
    std::atomic<uint64_t> sequence{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  explicit Queue(uint32_t records) : slots(records), mask(records - 1) {}

  void push(const RegionUse& use) {
    const uint64_t position = head.load(std::memory_order_relaxed);
    Slot& slot = slots[position & mask];
    slot.sequence.store(2 * position + 1, std::memory_order_relaxed);
    // Release, each: a reader that sees a new word also sees the odd number before it.
    const auto put = [&slot](size_t i, uint64_t word) {
      slot.words[i].store(word, std::memory_order_release);
    };
    put(0, use.region.value);
    put(1, use.bytes);
    put(2, static_cast<uint64_t>(use.begin));
    for (size_t i = 0; i < use.stack.size(); ++i) {
      put(3 + i, use.stack[i]);
      if (use.stack[i] == 0) break;
    }
    slot.sequence.store(2 * position + 2, std::memory_order_release);
    head.store(position + 1, std::memory_order_release);
  }

  // Consumer only. mark() remembers the end of the queue; passed() returns true when all records
  // before that end were taken or overwritten.
  void mark() { marked = head.load(std::memory_order_acquire); }
  [[nodiscard]] bool passed() const { return tail >= marked; }

  // Consumer only.
  void discard() { tail = head.load(std::memory_order_acquire); }

  // Consumer only. Adds the number of records that were overwritten.
  bool pop(Record& record, uint64_t& overwritten) {
    while (true) {
      const uint64_t end = head.load(std::memory_order_acquire);
      if (tail == end) return false;
      if (end - tail > slots.size()) {
        overwritten += end - slots.size() - tail;
        tail = end - slots.size();
      }
      Slot& slot = slots[tail & mask];
      const uint64_t wanted = 2 * tail + 2;
      ++tail;
      if (slot.sequence.load(std::memory_order_acquire) == wanted) {
        const auto get = [&slot](size_t i) {
          return slot.words[i].load(std::memory_order_acquire);
        };
        record = {get(0), get(1), static_cast<int64_t>(get(2)), {}};
        for (size_t i = 0; i < record.stack.size(); ++i) {
          record.stack[i] = get(3 + i);
          if (record.stack[i] == 0) break;
        }
        if (slot.sequence.load(std::memory_order_relaxed) == wanted) return true;
      }
      ++overwritten;
    }
  }

  std::vector<Slot> slots;
  const uint64_t mask;
  alignas(64) std::atomic<uint64_t> head{0};  // written by the communicating thread
  alignas(64) uint64_t tail = 0;              // of the helper
  uint64_t marked = 0;                        // of the helper
};

struct HelperPolicy::Communicator {
  Communicator(const HelperOptions& options, std::thread::id id)
      : thread(id),
        queue(std::max(1u, options.queue_records)),
        predictor(make_predictor(options.predictor_kind, options.predictor)) {}
  const std::thread::id thread;
  Queue queue;
  std::unique_ptr<PeriodPredictor> predictor;
};

HelperPolicy::HelperPolicy(HelperOptions options)
    : options_([&options] {
        uint32_t records = 1;
        while (records < options.queue_records) records *= 2;
        options.queue_records = records;
        return options;
      }()),
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
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    communicators_[i].load(std::memory_order_acquire)->predictor =
        make_predictor(options_.predictor_kind, options_.predictor);
  }
  idle_polls_ = 0;
  due_ = INT64_MAX;
  posted_ = 0;
  granted_.store(true, std::memory_order_relaxed);
}

HelperPolicy::Queue* HelperPolicy::queue_of_this_thread() {
  // The queues of the policies that this thread used last. A process with several devices has a
  // policy for each.
  struct Recent {
    std::array<std::pair<uint64_t, Queue*>, kRecentPolicies> queues{};  // serial, queue
    size_t oldest = 0;
  };
  static thread_local Recent of_thread;
  Recent& recent = of_thread;
  for (const auto& [serial, queue] : recent.queues) {
    if (serial == serial_) [[likely]] {
      return queue;
    }
  }
  queue_searches_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(communicators_mutex_);
  const size_t count = communicator_count_.load(std::memory_order_relaxed);
  const std::thread::id me = std::this_thread::get_id();
  Communicator* mine = nullptr;
  for (size_t i = 0; i < count && mine == nullptr; ++i) {
    Communicator* const one = communicators_[i].load(std::memory_order_relaxed);
    if (one->thread == me) mine = one;
  }
  if (mine == nullptr && count < kMaxThreads) {
    mine = new Communicator(options_, me);
    communicators_[count].store(mine, std::memory_order_release);
    communicator_count_.store(count + 1, std::memory_order_release);
  }
  Queue* const queue = mine == nullptr ? nullptr : &mine->queue;
  recent.queues[recent.oldest] = {serial_, queue};
  recent.oldest = (recent.oldest + 1) % kRecentPolicies;
  return queue;
}

bool HelperPolicy::ended(const RegionUse& use) {
  if (!granted_.load(std::memory_order_relaxed)) return true;
  Queue* const queue = queue_of_this_thread();
  if (queue != nullptr) queue->push(use);
  return true;
}

void HelperPolicy::forgotten(RegionName region) {
  // The thread could not be started: no step() takes the name.
  if (options_.own_thread && !thread_.joinable()) return;
  forgotten_count_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(forgotten_mutex_);
  forgotten_.push_back(region.value);
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
    dequeue(region, found->second);
    known_.erase(found);
  }
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    communicators_[i].load(std::memory_order_acquire)->predictor->forget(region);
  }
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

// Inserts a region into the RQ, early enough that the items near it can be processed, too.
void HelperPolicy::enqueue(uint64_t region, Known& known, int64_t deadline) {
  dequeue(region, known);
  const int64_t gap =
      registration_delay(known.bytes) + deregistration_delay(known.bytes) - 2 * scheduling_delay();
  while (true) {
    const auto near = waiting_.lower_bound(deadline - gap + 1);
    if (near == waiting_.end() || near->first >= deadline + gap) break;
    deadline = near->first - gap;
  }
  waiting_.emplace(deadline, region);
  known.deadline = deadline;
}

void HelperPolicy::dequeue(uint64_t region, Known& known) {
  if (!known.deadline.has_value()) return;
  const auto [first, last] = waiting_.equal_range(*known.deadline);
  waiting_.erase(
      std::find_if(first, last, [region](const auto& item) { return item.second == region; }));
  known.deadline.reset();
}

void HelperPolicy::note_registered(uint64_t region, Known& known) {
  known.registered = true;
  // The helper visits the list only with one of these options.
  if (known.listed || (options_.give_up_after <= 0 && options_.look_interval.count() == 0)) return;
  known.listed = true;
  registered_.push_back(region);
}

void HelperPolicy::process_record(Communicator& from, const Record& record) {
  const int64_t before = control_->now();
  Known& known = known_[record.region];
  known.bytes = record.bytes;
  known.last_use = record.begin;
  known.give_up = INT64_MAX;
  known.ahead = false;
  known.given_up = false;
  dequeue(record.region, known);
  note_registered(record.region, known);
  known.next = from.predictor->record({record.region, hash_stack(record.stack), record.begin});
  // Other threads may use the region earlier.
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  for (size_t i = 0; count > 1 && i < count; ++i) {
    const auto other = communicators_[i]
                           .load(std::memory_order_acquire)
                           ->predictor->next_use(record.region, record.begin);
    if (other.has_value() && (!known.next.has_value() || *other < *known.next)) known.next = other;
  }
  known.expected =
      from.predictor->expected_use(record.region).value_or(known.next.value_or(INT64_MAX));
  reconsider(record.region, known);
  for (const PredictionRevision& revision : from.predictor->revisions()) revise(revision);
  predict_cost_.add(1, control_->now() - before);
}

void HelperPolicy::reconsider(uint64_t region, Known& known) {
  if (!known.undecided) undecided_.push_back(region);
  known.undecided = true;
}

// Takes over a newer prediction of a region that another communication has made. The time at which
// the helper gives the region up does not change, so that a region whose predictions never come
// true is deregistered.
void HelperPolicy::revise(const PredictionRevision& revision) {
  const auto found = known_.find(revision.region);
  if (found == known_.end() || found->second.given_up) return;
  Known& known = found->second;
  known.next = revision.due;
  known.expected = revision.expected;
  if (known.registered) {
    reconsider(revision.region, known);
  } else {
    enqueue(revision.region, known, revision.due);
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
    ++statistics_.kept;
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

int64_t HelperPolicy::give_up_time(const Known& known, int64_t deadline) const {
  if (options_.give_up_after <= 0) return INT64_MAX;
  return deadline + std::chrono::nanoseconds(options_.poll_interval).count() +
         static_cast<int64_t>(options_.give_up_after *
                              static_cast<double>(deadline - known.last_use));
}

// Takes one DQ item. Returns false if there is none.
bool HelperPolicy::take_record() {
  const size_t count = communicator_count_.load(std::memory_order_acquire);
  Record record;
  uint64_t overwritten = 0;
  Communicator* from = nullptr;
  for (size_t i = 0; i < count && from == nullptr; ++i) {
    next_communicator_ = (next_communicator_ + 1) % count;
    auto* const one = communicators_[next_communicator_].load(std::memory_order_acquire);
    if (one->queue.pop(record, overwritten)) from = one;
  }
  if (from != nullptr || overwritten != 0) {
    const std::lock_guard lock(statistics_mutex_);
    statistics_.overwritten += overwritten;
    if (from != nullptr) ++statistics_.records;
  }
  if (from == nullptr) return false;
  process_record(*from, record);
  PredictionErrors sum;
  for (size_t i = 0; i < count; ++i) {
    sum += communicators_[i].load(std::memory_order_acquire)->predictor->errors();
  }
  const std::lock_guard lock(statistics_mutex_);
  statistics_.errors = sum;
  return true;
}

// Registers the first item of the RQ if it is due.
bool HelperPolicy::register_due() {
  if (waiting_.empty()) return false;
  const auto [due, region] = *waiting_.begin();
  Known& known = known_[region];
  const int64_t before = control_->now();
  // Items that are due soon after the one for which the helper woke cost no wake-up of their own.
  const int64_t batch = std::chrono::nanoseconds(options_.batch).count();
  if (before + registration_delay(known.bytes) + batch < due) return false;
  dequeue(region, known);
  const RegisterAheadResult result = control_->register_ahead({region});
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
    found->second.given_up = true;
    if (result == DeregisterResult::kNotRegistered) continue;
    const std::lock_guard lock(statistics_mutex_);
    ++statistics_.given_up;
  }
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
    // A hot region stays registered after its next use, too.
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
  // Rises fast and falls slowly: about the 90th percentile of the delays.
  const int64_t late = std::clamp<int64_t>(now - due_, 0, kMostWakeDelay);
  const int64_t known = wake_delay_.load(std::memory_order_relaxed);
  wake_delay_.store(known + (late > known ? (late - known) / 4 : (late - known) / 32),
                    std::memory_order_relaxed);
}

int64_t HelperPolicy::step() {
  note_wake_delay(control_->now());
  take_forgotten();
  if (!granted()) {
    // A record from before may name a forgotten region.
    discard_records();
    drop_forgotten();
    return due_ = control_->now() + kNotGrantedPause;
  }
  int taken = 0;
  // One DQ item, then the RQ, in case that a deadline is near.
  for (; taken < kMostRecordsPerStep; ++taken) {
    const bool record = take_record();
    const bool registered = register_due();
    if (!record && !registered) break;
  }
  const bool worked = taken != 0;
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
    statistics_.known = known_.size();
    statistics_.listed = registered_.size();
  }
  if (taken == kMostRecordsPerStep) return due_ = now;
  if (worked || control_->registered_bytes() != 0) {
    // Registered memory is used or will be soon; its record must not wait.
    idle_polls_ = 0;
    due_ = next_look(now);
  } else {
    idle_polls_ = std::min<int64_t>(idle_polls_ + 1, kMostIdleDoublings);
    due_ = now + (std::chrono::nanoseconds(options_.poll_interval).count() << idle_polls_);
  }
  if (!waiting_.empty()) {
    const auto& [deadline, region] = *waiting_.begin();
    due_ = std::min(due_, deadline - registration_delay(known_[region].bytes));
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
