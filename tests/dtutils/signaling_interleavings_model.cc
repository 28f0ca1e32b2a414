#include "tests/dtutils/signaling_interleavings_model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace cariama::testing {
namespace {

using internal::Proof;

constexpr size_t kThreads = 3;
constexpr size_t kOperations = 16;
constexpr size_t kAccesses = 28;  // most accesses of one action
constexpr size_t kCells = 5;
// The number of lanes: it is constant, so reading it is no step.
constexpr size_t kConstantCell = 3;

struct Operation {
  bool signaled;
  bool polled;
  bool tagged;
  uint8_t tag;           // tag of its buffer
  uint8_t flush_number;  // flush number of its proof
  uint8_t covers;        // number of operations that its proof covers
};

struct Thread {
  uint8_t posted, covered, credits, number;  // contents of the lane
  uint8_t action;
  bool waiting;  // the action found the queue full and polls
  uint8_t accesses;
  uint8_t unused;  // fills the place of padding
  uint16_t results[kAccesses];
};

// Has no padding, so that it can be hashed as bytes.
struct State {
  uint8_t cells[kCells];
  uint8_t posted;   // number of operations posted to the device
  uint8_t covered;  // number of these that a polled completion covers
  Operation operations[kOperations];
  Thread threads[kThreads];
};
static_assert(std::has_unique_object_representations_v<Thread>);
static_assert(std::is_trivially_copyable_v<State>);

struct EndOfStep {};

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The step being made. (Global, because the model's atomics have no other access to their state.)
struct Step {
  State* state = nullptr;
  Thread* thread = nullptr;
  uint8_t replayed = 0;
  bool made = false;
  bool free_running = false;  // accesses are not steps: all of them execute immediately
  bool exchange_blindly = false;

  template <typename Access>
  uint16_t access(Access&& perform) {
    if (free_running) return perform(*state);
    if (replayed < thread->accesses) return thread->results[replayed++];
    if (made) throw EndOfStep();
    made = true;
    const uint16_t result = perform(*state);
    if (thread->accesses == kAccesses) throw Violation("an action has too many accesses to model");
    thread->results[thread->accesses++] = result;
    ++replayed;
    return result;
  }
};
Step step;
uint8_t* next_cell = nullptr;  // not null while the shared variables are constructed
size_t cells_made = 0;

// An atomic. If it is shared, each access is a step; accesses to a lane's own atomics are not
// steps.
template <typename T>
class ModelAtomic {
 public:
  ModelAtomic(T initial) : own_(initial), cell_(next_cell == nullptr ? kCells : cells_made++) {
    if (next_cell != nullptr) *next_cell++ = static_cast<uint8_t>(initial);
  }

  T load(std::memory_order) const {
    return access([](uint8_t& value) { return value; });
  }
  void store(T desired, std::memory_order) {
    access([&](uint8_t& value) { return value = static_cast<uint8_t>(desired); });
  }
  T fetch_add(T by, std::memory_order) {
    return access([&](uint8_t& value) {
      const uint8_t old = value;
      value = static_cast<uint8_t>(value + by);
      return old;
    });
  }
  T fetch_sub(T by, std::memory_order order) { return fetch_add(T{} - by, order); }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order, std::memory_order) {
    const bool blindly = step.exchange_blindly;
    const T old = access([&](uint8_t& value) {
      const uint8_t seen = value;
      if (blindly || seen == expected) value = static_cast<uint8_t>(desired);
      return seen;
    });
    if (blindly || old == expected) return true;
    expected = old;
    return false;
  }

 private:
  template <typename Access>
  T access(Access&& perform) const {
    if (cell_ == kCells) {
      uint8_t value = static_cast<uint8_t>(own_);
      const T result = perform(value);
      own_ = value;
      return result;
    }
    if (cell_ == kConstantCell) return perform(step.state->cells[cell_]);
    return step.access([&](State& state) { return perform(state.cells[cell_]); });
  }

  mutable T own_;
  size_t cell_;
};

using Signaling = internal::Signaling<ModelAtomic>;

class Explorer {
 public:
  explicit Explorer(const Instance& instance) : instance_(instance) {
    cells_made = 0;
    std::memset(&initial_, 0, sizeof initial_);
    next_cell = initial_.cells;
    signaling_ = std::make_unique<Signaling>(instance.depth);
    flushed_ = std::make_unique<ModelAtomic<uint64_t>>(0);
    next_cell = nullptr;
    step = {.state = &initial_,
            .free_running = true,
            .exchange_blindly = instance.mistake == Mistake::kCreditsByStore};
    const uint64_t lanes =
        instance.lanes_for_batch != 0 ? instance.lanes_for_batch : instance.programs.size();
    for (uint64_t i = 0; i < lanes; ++i) signaling_->add_lane();
  }

  Exploration run() {
    Exploration result;
    try {
      result.schedules = schedules_from(initial_);
    } catch (const Violation& violation) {
      result.violation = std::string(violation.what()) + ", after steps of threads";
      for (const uint8_t thread : path_) result.violation += " " + std::to_string(thread);
    }
    result.states = seen_.size();
    return result;
  }

 private:
  // The order in which Signaling and this class construct the shared variables.
  enum Cell { kEpoch, kGranted, kRetired, kLanes, kFlushed };
  static_assert(kLanes == kConstantCell && kFlushed + 1 == kCells);
  enum class Outcome { kDone, kFull };
  static constexpr double kOnPath = -1;

  // A hash that stands for the state. It has 128 bits: the probability that two of 10^9 states
  // share a hash is below 10^-20.
  struct Key {
    uint64_t a, b;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.a; }
  };
  static Key key_of(const State& state) {
    uint64_t words[(sizeof(State) + 7) / 8] = {};
    std::memcpy(words, &state, sizeof state);
    Key key{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};
    for (const uint64_t word : words) {
      key.a = (key.a ^ word) * 0xff51afd7ed558ccd;
      key.a ^= key.a >> 32;
      key.b = (key.b + word) * 0xc4ceb9fe1a85ec53;
      key.b ^= key.b >> 29;
    }
    return key;
  }

  // ---- The search ----

  double schedules_from(const State& state) {
    const auto [place, fresh] = seen_.try_emplace(key_of(state), kOnPath);
    if (!fresh) {
      if (place->second == kOnPath)
        throw Violation(
            "the threads can return to a state they were in: some execution never ends");
      return place->second;
    }
    double schedules = 0;
    bool finished = true;
    bool moved = false;
    for (uint8_t i = 0; i < instance_.programs.size(); ++i) {
      if (state.threads[i].action == instance_.programs[i].size()) continue;
      finished = false;
      const Thread& thread = state.threads[i];
      if (thread.waiting && thread.accesses == 0 && !worth_polling(state)) continue;
      moved = true;
      path_.push_back(i);
      State next = state;
      make_step(next, i);
      check(state, next);
      schedules += schedules_from(next);
      path_.pop_back();
    }
    if (finished) {
      check_end(state);
      schedules = 1;
    } else if (!moved) {
      throw Violation("deadlock: all threads wait, and no completion is pending");
    }
    // Look up again: the map has grown, so the reference may be invalid.
    seen_.find(key_of(state))->second = schedules;
    return schedules;
  }

  // Returns whether a poll by a waiting thread would change anything: a completion is pending, or
  // the queue has a free slot.
  bool worth_polling(const State& state) const {
    for (size_t i = 0; i < state.posted; ++i) {
      if (state.operations[i].signaled && !state.operations[i].polled) return true;
    }
    return state.cells[kGranted] < state.cells[kRetired] + instance_.depth;
  }

  void make_step(State& state, uint8_t index) {
    Thread& thread = state.threads[index];
    step.state = &state;
    step.thread = &thread;
    step.replayed = 0;
    step.made = false;
    step.free_running = false;
    Signaling::Lane lane;
    load_lane(thread, lane);
    const Action action = instance_.programs[index][thread.action];
    Outcome outcome;
    try {
      outcome = thread.waiting ? poll() : perform(action, lane);
    } catch (const EndOfStep&) {
      return;
    }
    store_lane(lane, thread);
    thread.accesses = 0;
    std::memset(thread.results, 0, sizeof thread.results);
    if (thread.waiting) {
      thread.waiting = false;  // the thread tries its action again
    } else if (outcome == Outcome::kFull && action != Action::kTryPost) {
      thread.waiting = true;
    } else {
      ++thread.action;
    }
  }

  static void load_lane(const Thread& thread, Signaling::Lane& lane) {
    lane.posted.store(thread.posted, std::memory_order_relaxed);
    lane.covered = thread.covered;
    lane.credits = thread.credits;
    lane.number = thread.number;
  }
  static void store_lane(const Signaling::Lane& lane, Thread& thread) {
    thread.posted = static_cast<uint8_t>(lane.posted.load(std::memory_order_relaxed));
    thread.covered = static_cast<uint8_t>(lane.covered);
    thread.credits = static_cast<uint8_t>(lane.credits);
    thread.number = static_cast<uint8_t>(lane.number);
  }

  // ---- Actions of the threads ----

  Outcome perform(Action action, Signaling::Lane& lane) {
    switch (action) {
      case Action::kPost:
      case Action::kTryPost:
        return post(lane, false, true);
      case Action::kPostSignaled:
        return post(lane, true, true);
      case Action::kPostRefused:
        return post(lane, false, false);
      case Action::kPoll:
        return poll();
      case Action::kLeave:
        signaling_->give_back(lane);
        return Outcome::kDone;
    }
    return Outcome::kDone;
  }

  // Like Transmitter::take_credit and post_accounted.
  Outcome post(Signaling::Lane& lane, bool wanted, bool accepted) {
    if (lane.credits == 0 && !signaling_->acquire(lane)) return Outcome::kFull;
    if (instance_.mistake != Mistake::kNone) return post_mistaken(lane, wanted, accepted);
    uint16_t position = 0;
    const bool posted = signaling_->post(lane, wanted, [&](const Proof* proof) {
      if (accepted) position = device_post(proof);
      return accepted;
    });
    if (posted) set_tag(position, signaling_->tag(lane));
    return Outcome::kDone;
  }

  Outcome post_mistaken(Signaling::Lane& lane, bool wanted, bool accepted) {
    const Mistake mistake = instance_.mistake;
    const bool signaled =
        wanted || (mistake != Mistake::kLastCreditUnsignaled && Signaling::due(lane));
    const uint64_t early_tag = mistake == Mistake::kTagBeforePost ? signaling_->tag() : 0;
    Proof proof;
    if (signaled && mistake != Mistake::kFlushNumberAfterPost) {
      proof = signaling_->begin_signaled(lane);
      if (mistake == Mistake::kCoversOneTooMany) ++proof.operations;
      if (mistake == Mistake::kCoversItselfOnly) proof.operations = 1;
      if (mistake == Mistake::kCountsOverAllLanes) proof.operations = counted_by_all() + 1;
    }
    if (!accepted) {
      if (mistake != Mistake::kKeepsCreditOfRefusal) signaling_->give_back(lane);
      return Outcome::kDone;
    }
    const bool late = signaled && mistake == Mistake::kFlushNumberAfterPost;
    const uint16_t position = device_post(signaled && !late ? &proof : nullptr);
    if (late) {
      proof = signaling_->begin_signaled(lane);
      step.access([&](State& state) {
        set_proof(state.operations[position], proof);
        return uint16_t{0};
      });
    }
    signaling_->after_post(lane, signaled);
    set_tag(position, mistake == Mistake::kTagBeforePost              ? early_tag
                      : mistake == Mistake::kTagOwnNumber && signaled ? proof.flush_number - 1
                                                                      : signaling_->tag());
    return Outcome::kDone;
  }

  // Returns the number of operations that all lanes have counted as posted. A lane counts an
  // operation at the end of its action.
  uint64_t counted_by_all() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < instance_.programs.size(); ++i) {
      sum += step.access([&](State& state) -> uint16_t { return state.threads[i].posted; });
    }
    return sum;
  }

  Outcome poll() {
    const uint16_t completion = device_poll();
    if (completion == 0) return Outcome::kDone;
    const Proof proof{static_cast<uint64_t>(completion >> 8), completion & uint64_t{0x7f}};
    if (instance_.mistake == Mistake::kFlushedByStore) {
      flushed_->store(proof.flush_number, std::memory_order_release);
      signaling_->retire({0, proof.operations}, *flushed_);
    } else if (instance_.mistake == Mistake::kCountsOverAllLanes) {
      signaling_->retire({proof.flush_number, 0}, *flushed_);
      step.access([&](State& state) -> uint16_t {
        state.cells[kRetired] =
            std::max(state.cells[kRetired], static_cast<uint8_t>(proof.operations));
        return 0;
      });
    } else {
      signaling_->retire(proof, *flushed_);
    }
    return Outcome::kDone;
  }

  // ---- The device ----

  static void set_proof(Operation& operation, const Proof& proof) {
    operation.signaled = true;
    operation.flush_number = static_cast<uint8_t>(proof.flush_number);
    operation.covers = static_cast<uint8_t>(proof.operations);
  }

  // Returns the position of the operation in the order of posting.
  uint16_t device_post(const Proof* proof) const {
    return step.access([&](State& state) -> uint16_t {
      if (state.posted - state.covered == static_cast<int>(instance_.depth)) {
        throw Violation("the send queue overflows");
      }
      if (state.posted == kOperations) throw Violation("more operations than the model holds");
      Operation& operation = state.operations[state.posted];
      if (proof != nullptr) set_proof(operation, *proof);
      return state.posted++;
    });
  }

  // Completes in order. Returns the proof of the next completion, packed and with bit 7 set, or 0
  // if there is no completion.
  static uint16_t device_poll() {
    return step.access([](State& state) -> uint16_t {
      for (uint8_t i = 0; i < state.posted; ++i) {
        Operation& operation = state.operations[i];
        if (!operation.signaled || operation.polled) continue;
        operation.polled = true;
        state.covered = std::max(state.covered, static_cast<uint8_t>(i + 1));
        return static_cast<uint16_t>(operation.flush_number << 8 | 0x80 | operation.covers);
      }
      return 0;
    });
  }

  // Not a step: the buffer belongs to the posting thread, and other threads only read `flushed`.
  static void set_tag(uint16_t position, uint64_t tag) {
    Operation& operation = step.state->operations[position];
    operation.tagged = true;
    operation.tag = static_cast<uint8_t>(tag);
  }

  // ---- Invariants ----

  bool is_free(const State& state, const Operation& operation) const {
    return instance_.mistake == Mistake::kFreeAtFlushNumber ? operation.tag <= state.cells[kFlushed]
                                                            : operation.tag < state.cells[kFlushed];
  }

  void check(const State& before, const State& after) const {
    for (uint8_t i = after.covered; i < after.posted; ++i) {
      const Operation& operation = after.operations[i];
      if (operation.tagged && is_free(after, operation)) {
        throw Violation("a buffer is reported free while the device uses it");
      }
    }
    if (after.cells[kFlushed] < before.cells[kFlushed]) throw Violation("flushed decreases");
    if (after.cells[kRetired] > after.covered) {
      throw Violation("more credits were retired than operations are complete");
    }
    if (after.cells[kGranted] > after.cells[kRetired] + instance_.depth) {
      throw Violation("more credits are granted than the queue has slots");
    }
  }

  // Checks that nothing was lost: once all completions are polled, one more signaled operation
  // frees every buffer, and every credit is back.
  void check_end(State state) {
    step.state = &state;
    step.free_running = true;
    for (uint8_t i = 0; i < kOperations + 1; ++i) poll();
    Signaling::Lane lane;
    load_lane(state.threads[0], lane);
    if (lane.credits == 0 && !signaling_->acquire(lane)) {
      throw Violation("all operations are complete, but the queue is full");
    }
    signaling_->post(lane, true, [&](const Proof* proof) {
      device_post(proof);
      return true;
    });
    poll();
    signaling_->give_back(lane);
    store_lane(lane, state.threads[0]);
    uint64_t lane_credits = 0;  // credits that lanes hold, unspent or uncovered
    for (const Thread& thread : state.threads) {
      lane_credits += thread.credits + static_cast<uint64_t>(thread.posted - thread.covered);
    }
    if (state.covered != state.posted) throw Violation("operations stay uncovered");
    for (uint8_t i = 0; i < state.posted; ++i) {
      const Operation& operation = state.operations[i];
      if (operation.tagged && !is_free(state, operation)) throw Violation("a buffer is lost");
    }
    if (state.cells[kGranted] != state.cells[kRetired] + lane_credits)
      throw Violation("credits are lost");
    if (lane_credits >= instance_.depth)
      throw Violation("the lanes hold the credits of the whole queue");
  }

  const Instance& instance_;
  State initial_;
  std::unique_ptr<Signaling> signaling_;
  std::unique_ptr<ModelAtomic<uint64_t>> flushed_;
  std::unordered_map<Key, double, KeyHash> seen_;  // value: number of schedules from that state
  std::vector<uint8_t> path_;
};

}  // namespace

Exploration explore(const Instance& instance) { return Explorer(instance).run(); }

}  // namespace cariama::testing
