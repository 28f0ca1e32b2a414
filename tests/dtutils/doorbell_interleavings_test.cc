// Explores every interleaving of sleepers and ringers on doorbells (dtutils/doorbell.h), with the
// real code of the doorbells and of sleep_once(). No execution may end with a thread asleep
// although its condition holds. Each step that the header names is then weakened, and must be
// missed.
//
// The memory model is that of a processor with store buffers (TSO): a store waits in a buffer of
// its thread, the thread itself loads from the buffer, and the oldest store becomes visible at any
// later time. Read-modify-writes, fences and system calls wait until the buffer is empty. A weaker
// processor also needs the acquire and release orders that the code states.
//
// Every access to shared memory is a step. Between two steps a thread is plain data: the number of
// its action, and the results of the accesses of this action. To make a step, the test executes the
// action again from its beginning with these results, performs one new access, and abandons the
// action at the next one. So the whole system is a value that can be copied and compared.
#include "dtutils/doorbell.h"

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/wait.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

enum class Mistake {
  kNone,
  kArmByStore,          // arm() marks the word by a plain store, without a fence
  kNoRecheck,           // the sleeper does not evaluate the condition after arm()
  kWaitWithoutCompare,  // wait() sleeps also if the word differs from the expected value
  kRingWithoutFence,    // ring() loads the mark without a fence
  kNoFenceRingers,      // the sleeper does not fence ringers that do not fence themselves
  kWakeBeforeDisarm,    // ring() wakes before it changes the word
  kRingKeepsSequence,   // ring() clears the mark, and does not count the ring
  kGroupBeforeOwn,      // the sleeper arms the doorbell of the group before its own one
  kReceivesBeforeOwn,   // the receiver arms `receives` before its own doorbell
  kNoPollAfterWake,     // the receiver does not poll although a sender has taken `receives`
  kReadBeforeWrite,     // remote: the READ is executed before the WRITE
  kPublishByStore,      // remote: the count is published by a plain store
  kEventBeforeDisarm,   // remote: the event is sent before the doorbell is disarmed
};

constexpr size_t kCells = 8;

// Values that are on their way to a cell, oldest first.
using Queue = std::vector<std::pair<uint64_t, uint64_t>>;

struct Thread {
  uint32_t action = 0;
  std::vector<uint64_t> seen;  // results of the accesses of this action
  Queue buffer;                // stores
  Queue in_flight;             // WRITEs and events of its queue pair
  int64_t asleep_on = -1;      // a cell
  bool ended = false;
  friend auto operator<=>(const Thread&, const Thread&) = default;
};

struct State {
  std::array<uint64_t, kCells> memory{};
  std::vector<Thread> threads;
  friend auto operator<=>(const State&, const State&) = default;
};

struct Abandoned {};
struct Blocked {};

// The step being made. Global, because the model's atomics have no other access to it.
struct Step {
  State* state = nullptr;
  Thread* thread = nullptr;
  Mistake mistake = Mistake::kNone;
  bool sleeper = false;  // the thread is a sleeper
  size_t replayed = 0;
  bool made = false;
  size_t next_cell = 0;  // of the next atomic that is constructed

  template <typename Access>
  uint64_t access(Access&& perform) {
    if (replayed < thread->seen.size()) return thread->seen[replayed++];
    if (made) throw Abandoned();
    const uint64_t result = perform(*state, *thread);
    made = true;
    thread->seen.push_back(result);
    return thread->seen[replayed++];
  }
  // For read-modify-writes, fences and system calls.
  template <typename Access>
  uint64_t ordered(Access&& perform) {
    return access([&](State& all, Thread& me) {
      if (!me.buffer.empty()) throw Blocked();
      return perform(all);
    });
  }
};
Step step;

uint64_t load(size_t cell) {
  return step.access([&](State& all, Thread& me) {
    for (size_t i = me.buffer.size(); i-- != 0;) {
      if (me.buffer[i].first == cell) return me.buffer[i].second;
    }
    return all.memory[cell];
  });
}
void store(size_t cell, uint64_t value) {
  step.access([&](State&, Thread& me) {
    me.buffer.emplace_back(cell, value);
    return uint64_t{0};
  });
}
template <typename Function>
uint64_t modify(size_t cell, Function&& function) {
  return step.ordered(
      [&](State& all) { return std::exchange(all.memory[cell], function(all.memory[cell])); });
}
void wake_all(State& all, size_t cell) {
  for (Thread& thread : all.threads) {
    if (thread.asleep_on == static_cast<int64_t>(cell)) thread.asleep_on = -1;
  }
}

template <typename T>
class ModelAtomic {
 public:
  ModelAtomic(T initial) : cell_(step.next_cell++) { static_cast<void>(initial); }  // NOLINT
  size_t cell() const { return cell_; }

  T load(std::memory_order) const { return static_cast<T>(cariama::load(cell_)); }
  T exchange(T desired, std::memory_order) {
    if (step.mistake != Mistake::kPublishByStore || cell_ != 0) {
      return static_cast<T>(modify(cell_, [&](uint64_t) { return desired; }));
    }
    store(cell_, desired);
    return 0;
  }
  T fetch_or(T bits, std::memory_order) {
    if (step.mistake == Mistake::kArmByStore) {
      const uint64_t old = cariama::load(cell_);
      store(cell_, old | bits);
      return static_cast<T>(old);
    }
    return static_cast<T>(modify(cell_, [&](uint64_t old) { return old | bits; }));
  }
  T fetch_and(T bits, std::memory_order) {
    return static_cast<T>(modify(cell_, [&](uint64_t old) { return old & bits; }));
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order, std::memory_order) {
    if (step.mistake == Mistake::kWakeBeforeDisarm) {
      step.ordered([&](State& all) {
        wake_all(all, cell_);
        return uint64_t{0};
      });
    }
    const T wanted = step.mistake == Mistake::kRingKeepsSequence ? expected - 1 : desired;
    const T old =
        static_cast<T>(modify(cell_, [&](uint64_t old) { return old == expected ? wanted : old; }));
    return std::exchange(expected, old) == old;
  }

 private:
  size_t cell_;
};

struct Model {
  template <typename T>
  using Atomic = ModelAtomic<T>;
  using Until = Deadline;

  static void full_fence() {
    if (step.mistake == (step.sleeper ? Mistake::kArmByStore : Mistake::kRingWithoutFence)) return;
    step.ordered([](State&) { return uint64_t{0}; });
  }
  static void fence_ringers() {
    if (step.mistake == Mistake::kNoFenceRingers) return;
    step.ordered([](State& all) {
      for (Thread& thread : all.threads) {
        for (const auto& [cell, value] : std::exchange(thread.buffer, {})) all.memory[cell] = value;
      }
      return uint64_t{0};
    });
  }
  static void wait(const ModelAtomic<uint32_t>& word, uint32_t expected, Deadline) {
    wait(word.cell(), expected);
  }
  static void wait(size_t cell, uint64_t expected) {
    step.access([&](State& all, Thread& me) {
      if (!me.buffer.empty()) throw Blocked();
      if (all.memory[cell] == expected || step.mistake == Mistake::kWaitWithoutCompare) {
        me.asleep_on = static_cast<int64_t>(cell);
      }
      return uint64_t{0};
    });
    // The action continues when the thread is awake again.
    step.access([](State&, Thread&) { return uint64_t{0}; });
  }
  static void wake(const ModelAtomic<uint32_t>& word) {
    if (step.mistake == Mistake::kWakeBeforeDisarm) return;
    step.ordered([&](State& all) {
      wake_all(all, word.cell());
      return uint64_t{0};
    });
  }
};

using ModelDoorbell = internal::BasicDoorbell<Model>;

enum class Then { kAgain, kNext, kEnd };  // what a thread does after an action
// The actions of a thread; `number` counts the results kNext.
using Actions = std::function<Then(uint32_t number)>;
struct Program {
  std::vector<Actions> sleepers;
  std::vector<Actions> ringers;
};

struct Exploration {
  size_t states = 0;
  bool lost = false;  // an execution ends with a thread asleep
};

class Explorer {
 public:
  Explorer(const Program& program, Mistake mistake)
      : program_(program.sleepers), sleepers_(program.sleepers.size()), mistake_(mistake) {
    program_.insert(program_.end(), program.ringers.begin(), program.ringers.end());
  }

  Exploration run() {
    Exploration result;
    State initial;
    initial.threads.resize(program_.size());
    std::vector<State> open{initial};
    std::set<State> seen{initial};
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      bool moved = false;
      bool ended = true;
      for (size_t i = 0; i < state.threads.size(); ++i) {
        ended = ended && state.threads[i].ended;
        for (const auto move : {&Explorer::act, &Explorer::drain, &Explorer::deliver}) {
          State next = state;
          if (!(this->*move)(next, i)) continue;
          moved = true;
          if (seen.insert(next).second) open.push_back(std::move(next));
        }
      }
      result.lost = result.lost || (!moved && !ended);
    }
    result.states = seen.size();
    return result;
  }

 private:
  bool act(State& state, size_t index) {
    Thread& thread = state.threads[index];
    if (thread.ended || thread.asleep_on >= 0) return false;
    step = {.state = &state, .thread = &thread, .mistake = mistake_, .sleeper = index < sleepers_};
    try {
      const Then then = program_[index](thread.action);
      thread.ended = then == Then::kEnd;
      if (then == Then::kNext) ++thread.action;
    } catch (const Abandoned&) {
      return true;
    } catch (const Blocked&) {
      return false;
    }
    thread.seen.clear();
    return true;
  }
  bool drain(State& state, size_t index) { return take(state, state.threads[index].buffer); }
  bool deliver(State& state, size_t index) {
    Queue& queue = state.threads[index].in_flight;
    if (queue.empty()) return false;
    const uint64_t cell = queue.front().first;
    take(state, queue);
    wake_all(state, cell);
    return true;
  }
  static bool take(State& state, Queue& queue) {
    if (queue.empty()) return false;
    state.memory[queue.front().first] = queue.front().second;
    queue.erase(queue.begin());
    return true;
  }

  std::vector<Actions> program_;
  const size_t sleepers_;
  const Mistake mistake_;
};

// ---- Doorbells in memory ------------------------------------------------------------------------

// The shared variables, constructed in the same order in each step.
struct Shared {
  ModelDoorbell own;
  ModelDoorbell group;
  internal::BasicSleeperSet<Model> set;
  ModelAtomic<uint64_t> work[2] = {0, 0};  // of each ringer: the number of its messages
};
constexpr std::memory_order kAcquire = std::memory_order_acquire;

enum class Kind {
  kPlain,     // ring()
  kUnfenced,  // is_armed(), ring(), fence_ringers()
  kGroup,     // take() of a doorbell that stands for the sleeper's own one
  kShared,    // as kGroup, armed only if it is not armed already
  kRelay,     // ring() of a doorbell on which no thread sleeps, then of the sleeper's own one
  kSet,       // SleeperSet
};

class ModelSleeper final : public Sleeper {
 public:
  ModelSleeper(Shared& shared, Kind kind) : shared_(shared), kind_(kind) {}
  void arm() override {
    const bool early = step.mistake == Mistake::kGroupBeforeOwn;
    if (early) static_cast<void>(shared_.group.arm());
    expected_ = shared_.own.arm();
    if ((kind_ == Kind::kGroup && !early) || kind_ == Kind::kRelay ||
        (kind_ == Kind::kShared && !shared_.group.is_armed())) {
      static_cast<void>(shared_.group.arm());
    }
    if (kind_ == Kind::kSet) shared_.set.arm(3);
    if (kind_ == Kind::kUnfenced) Model::fence_ringers();
  }
  void wait(Deadline deadline) override { shared_.own.wait(expected_, deadline); }

 private:
  Shared& shared_;
  const Kind kind_;
  uint32_t expected_ = 0;
};

// Sleeps until every ringer in [first, last) has sent `messages`.
Actions sleeper(Kind kind, uint32_t first, uint32_t last, uint64_t messages) {
  return [=](uint32_t) {
    Shared shared;
    ModelSleeper sleeper(shared, kind);
    bool checks = step.mistake != Mistake::kNoRecheck;
    const auto all_came = [&] {
      if (!std::exchange(checks, true)) return false;
      for (uint32_t i = first; i < last; ++i) {
        if (shared.work[i].load(kAcquire) != messages) return false;
      }
      return true;
    };
    return sleep_once(all_came, kForever, sleeper) ? Then::kEnd : Then::kAgain;
  };
}

Actions ringer(Kind kind, uint32_t index, uint64_t messages) {
  return [=](uint32_t number) {
    Shared shared;
    store(shared.work[index].cell(), number + 1);
    switch (kind) {
      case Kind::kPlain:
        shared.own.ring();
        break;
      case Kind::kUnfenced:
        if (shared.own.is_armed()) shared.own.ring();
        break;
      case Kind::kGroup:
      case Kind::kShared:
        if (shared.group.take()) shared.own.ring();
        break;
      case Kind::kRelay:
        if (shared.group.ring()) shared.own.ring();
        break;
      case Kind::kSet:
        if (const uint64_t armed = shared.set.armed(); armed != 0) {
          shared.set.disarm(static_cast<uint32_t>(__builtin_ctzll(armed)));
          shared.own.ring();
        }
        break;
    }
    return number + 1 == messages ? Then::kEnd : Then::kNext;
  };
}

// Two ringers and one sleeper.
Program two_ringers(Kind kind, uint64_t messages) {
  return {{sleeper(kind, 0, 2, messages)}, {ringer(kind, 0, messages), ringer(kind, 1, messages)}};
}
// Two sleepers on one doorbell, each for a ringer of its own.
Program two_sleepers(Kind kind) {
  return {{sleeper(kind, 0, 1, 1), sleeper(kind, 1, 2, 1)},
          {ringer(kind, 0, 1), ringer(kind, 1, 1)}};
}

class DoorbellInterleavings : public ::testing::TestWithParam<Kind> {};

TEST_P(DoorbellInterleavings, NoExecutionLosesAWakeUp) {
  const Exploration ringers = Explorer(two_ringers(GetParam(), 1), Mistake::kNone).run();
  EXPECT_FALSE(ringers.lost);
  EXPECT_GT(ringers.states, 100u);
  const Exploration again =
      Explorer({{sleeper(GetParam(), 0, 1, 2)}, {ringer(GetParam(), 0, 2)}}, Mistake::kNone).run();
  EXPECT_FALSE(again.lost);
  if (GetParam() == Kind::kSet) return;  // a slot has one sleeper
  EXPECT_FALSE(Explorer(two_sleepers(GetParam()), Mistake::kNone).run().lost);
}

TEST_P(DoorbellInterleavings, EachStepIsNecessary) {
  const Kind kind = GetParam();
  const Program one{{sleeper(kind, 0, 1, 1)}, {ringer(kind, 0, 1)}};
  for (const Mistake mistake :
       {Mistake::kNoRecheck, Mistake::kWaitWithoutCompare, Mistake::kWakeBeforeDisarm}) {
    EXPECT_TRUE(Explorer(one, mistake).run().lost) << static_cast<int>(mistake);
  }
  // fence_ringers() fences the sleeper, too.
  EXPECT_EQ(Explorer(one, Mistake::kArmByStore).run().lost, kind != Kind::kUnfenced);
  EXPECT_EQ(Explorer(one, Mistake::kRingWithoutFence).run().lost, kind != Kind::kUnfenced);
  EXPECT_EQ(Explorer(one, Mistake::kNoFenceRingers).run().lost, kind == Kind::kUnfenced);
  if (kind == Kind::kGroup) {
    const Program two{{sleeper(kind, 0, 1, 2)}, {ringer(kind, 0, 2)}};
    EXPECT_TRUE(Explorer(two, Mistake::kGroupBeforeOwn).run().lost);
  }
  if (kind == Kind::kSet) return;
  EXPECT_TRUE(Explorer(two_sleepers(kind), Mistake::kRingKeepsSequence).run().lost);
}

std::string name_of(const ::testing::TestParamInfo<Kind>& info) {
  constexpr std::array kNames{"Plain", "Unfenced", "Group", "Shared", "Relay", "Set"};
  return kNames[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Kinds, DoorbellInterleavings,
                         ::testing::Values(Kind::kPlain, Kind::kUnfenced, Kind::kGroup,
                                           Kind::kShared, Kind::kRelay, Kind::kSet),
                         name_of);

// ---- Doorbells of a receiver --------------------------------------------------------------------

// A receiver, the service thread that polls while the receiver sleeps, and a sender, which wakes
// one of the two. Constructed in the same order in each step; all cells are in use.
struct Direct {
  internal::BasicReceiverDoorbells<Model> receiver;
  ModelDoorbell skipped;             // Ports: armed by the service thread if its poll was skipped
  ModelAtomic<uint64_t> arrived{0};  // number of messages in the completion queue
  ModelAtomic<uint64_t> inbox{0};    // number of messages that were delivered to the receiver
  ModelAtomic<uint64_t> armed{0};    // the completion queue is armed
  ModelAtomic<uint64_t> events{0};   // of the channel on which the service thread sleeps
  ModelAtomic<uint64_t> polling{0};
};

void signal(const Direct& shared) {
  const size_t cell = shared.events.cell();
  modify(cell, [](uint64_t events) { return events + 1; });
  step.ordered([&](State& all) {
    wake_all(all, cell);
    return uint64_t{0};
  });
}

enum class Polled { kNothing, kMessages, kSkipped };
Polled poll(Direct& shared) {
  if (modify(shared.polling.cell(), [](uint64_t) { return uint64_t{1}; }) != 0) {
    return Polled::kSkipped;
  }
  const uint64_t arrived = load(shared.arrived.cell());
  const bool came = load(shared.inbox.cell()) != arrived;
  if (came) {
    modify(shared.inbox.cell(), [&](uint64_t) { return arrived; });
    shared.receiver.doorbell.ring();
  }
  store(shared.polling.cell(), 0);
  if (shared.skipped.take()) signal(shared);
  return came ? Polled::kMessages : Polled::kNothing;
}

// Workers::WaitSleeper and Ports::receive_once().
Actions receiver(uint64_t messages) {
  return [=](uint32_t) {
    Direct shared;
    internal::BasicReceiverDoorbells<Model>& bells = shared.receiver;
    const auto receive = [&] {
      if (poll(shared) == Polled::kSkipped) signal(shared);
    };
    const bool early = step.mistake == Mistake::kReceivesBeforeOwn;
    if (early) static_cast<void>(bells.receives.arm());
    const uint32_t expected = bells.doorbell.arm();
    if (load(shared.inbox.cell()) != messages) {
      if (!early) static_cast<void>(bells.receives.arm());
      bells.doorbell.wait(expected, kForever);
      const bool must_receive = !bells.receives.take();
      if (must_receive && step.mistake != Mistake::kNoPollAfterWake) receive();
      return Then::kAgain;
    }
    signal(shared);  // ends the service thread
    return Then::kEnd;
  };
}

// Ports::serve() and PortSleeper.
Actions service_thread(uint64_t messages) {
  return [=](uint32_t) {
    Direct shared;
    const uint64_t expected = load(shared.events.cell());
    modify(shared.armed.cell(), [](uint64_t) { return uint64_t{1}; });
    const Polled polled = poll(shared);
    if (load(shared.inbox.cell()) == messages) return Then::kEnd;
    if (polled == Polled::kMessages) return Then::kAgain;
    if (polled == Polled::kSkipped) {
      static_cast<void>(shared.skipped.arm());
      if (load(shared.polling.cell()) == 0) return Then::kAgain;
    }
    Model::wait(shared.events.cell(), expected);
    return Then::kAgain;
  };
}

// ShmQueuePair::publish_receive().
Actions sender(uint64_t messages) {
  return [=](uint32_t number) {
    Direct shared;
    modify(shared.arrived.cell(), [&](uint64_t) { return uint64_t{number} + 1; });
    if (!shared.receiver.wake() && load(shared.armed.cell()) != 0 &&
        modify(shared.armed.cell(), [](uint64_t) { return uint64_t{0}; }) != 0) {
      signal(shared);
    }
    return number + 1 == messages ? Then::kEnd : Then::kNext;
  };
}

Program direct(uint64_t messages) {
  return {{receiver(messages), service_thread(messages)}, {sender(messages)}};
}

TEST(ReceiverDoorbellInterleavings, NoExecutionLosesAWakeUp) {
  for (const uint64_t messages : {uint64_t{1}, uint64_t{2}}) {
    const Exploration result = Explorer(direct(messages), Mistake::kNone).run();
    EXPECT_FALSE(result.lost) << messages;
    EXPECT_GT(result.states, 100u);
  }
}

TEST(ReceiverDoorbellInterleavings, EachStepIsNecessary) {
  for (const Mistake mistake : {Mistake::kReceivesBeforeOwn, Mistake::kNoPollAfterWake}) {
    EXPECT_TRUE(Explorer(direct(1), mistake).run().lost) << static_cast<int>(mistake);
  }
}

// ---- Remote doorbells ---------------------------------------------------------------------------

// The first two cells are those of the doorbell, in the ringer's memory. The others are in the
// sleeper's memory.
struct Remote {
  internal::BasicRemoteDoorbell<Model> doorbell;
  ModelAtomic<uint64_t> message{0};
  ModelAtomic<uint64_t> events{0};
};
constexpr size_t kPublishedCell = internal::BasicRemoteDoorbell<Model>::kPublished / 8;
constexpr size_t kArmedCell = internal::BasicRemoteDoorbell<Model>::kArmed / 8;

// Posts a WRITE or an event. The queue pair delivers them in order.
void post(size_t cell, uint64_t value) {
  step.access([&](State&, Thread& me) {
    me.in_flight.emplace_back(cell, value);
    return uint64_t{0};
  });
}

Actions remote_ringer(uint64_t messages) {
  return [=](uint32_t number) {
    Remote remote;
    const uint64_t total = number + 1;
    post(remote.message.cell(), total);
    if (step.mistake == Mistake::kEventBeforeDisarm) {
      modify(kPublishedCell, [&](uint64_t) { return total; });
      if (load(kArmedCell) != 0) {
        post(remote.events.cell(), total);
        modify(kArmedCell, [](uint64_t) { return uint64_t{0}; });
      }
    } else if (remote.doorbell.ring(total)) {
      post(remote.events.cell(), total);
    }
    return total == messages ? Then::kEnd : Then::kNext;
  };
}

// The WRITE and the READ that arm() posts are executed in order, while the sleeper checks its
// condition: after `executed_early` of them.
Actions remote_sleeper(uint64_t messages, int executed_early) {
  return [=](uint32_t) {
    Remote remote;
    const bool reversed = step.mistake == Mistake::kReadBeforeWrite;
    uint64_t published = 0;
    int executed = 0;
    const auto execute = [&](int until) {
      for (; executed < until; ++executed) {
        if ((executed == 0) != reversed) {
          modify(kArmedCell, [](uint64_t) { return uint64_t{1}; });
        } else {
          published = load(kPublishedCell);
        }
      }
    };
    const uint64_t expected = load(remote.events.cell());  // arms the completion queue
    execute(executed_early);
    const uint64_t consumed = load(remote.message.cell());
    if (consumed == messages) return Then::kEnd;
    execute(2);
    if (published <= consumed) Model::wait(remote.events.cell(), expected);
    return Then::kAgain;
  };
}

TEST(RemoteDoorbellInterleavings, NoExecutionLosesAWakeUp) {
  for (int early = 0; early <= 2; ++early) {
    const Exploration result =
        Explorer({{remote_sleeper(3, early)}, {remote_ringer(3)}}, Mistake::kNone).run();
    EXPECT_FALSE(result.lost) << early;
    EXPECT_GT(result.states, 100u);
  }
}

TEST(RemoteDoorbellInterleavings, EachStepIsNecessary) {
  const Program program{{remote_sleeper(3, 2)}, {remote_ringer(3)}};
  for (const Mistake mistake :
       {Mistake::kReadBeforeWrite, Mistake::kPublishByStore, Mistake::kEventBeforeDisarm}) {
    EXPECT_TRUE(Explorer(program, mistake).run().lost) << static_cast<int>(mistake);
  }
}

}  // namespace
}  // namespace cariama
