// Explores every interleaving of one owner and two thieves on the THE deque
// (tasks/paper/the_deque.h). The owner runs the real code. Deliberate mistakes in the protocol
// must each be detected.
//
// As in split_deque_interleavings_test.cc, every access to shared memory is a step, an actor
// between two steps is plain data, and a step executes the action again from its beginning with the
// results of its earlier accesses. Accesses are sequentially consistent. The one reordering that
// the algorithm prevents by a fence is modelled as a mistake (kNoFence).
//
// A device executes the atomic operations on `lock`: it reads the word, and later writes it, also
// if a comparison has failed. It executes one of them at a time.
//
// The frames of a task are one word that contains the number of the task. The owner overwrites them
// when it has taken the task back, and when it installs another task.
#include "tasks/paper/the_deque.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace cariama::tasks {
namespace {

constexpr size_t kThieves = 2;
constexpr size_t kPositions = 4;  // position 0 is not used

enum class Mistake {
  kNone,
  kNoFence,      // pop's load of base overtakes its store of top
  kNoLock,       // the thief proceeds without having acquired the lock
  kOldTop,       // the thief uses the top that it read before it acquired the lock
  kBaseNotBack,  // a thief that finds no entry does not restore base
  kFreedEarly,   // the thief frees the lock before it has read the frames
  kFreedByZero,  // the thief frees the lock by writing 0, as in the paper
};

struct Words {
  uint64_t lock = 0;
  uint64_t base = 1;
  uint64_t top = 1;
  bool device_is_busy = false;
  std::array<uint64_t, kPositions> entries{};
  std::array<uint64_t, kPositions> frames{};
  friend auto operator<=>(const Words&, const Words&) = default;
};

struct Abandoned {};
struct Waits {};
struct DeviceIsBusy {};

struct Actor {
  size_t action = 0;
  std::vector<uint64_t> seen;
  friend auto operator<=>(const Actor&, const Actor&) = default;
};

class Steps {
 public:
  Steps(Words& words, Actor& actor) : words_(words), actor_(actor) {}

  template <typename Access>
  uint64_t step(const Access& access) {
    if (next_ < actor_.seen.size()) return actor_.seen[next_++];
    if (done_) throw Abandoned();
    done_ = true;
    actor_.seen.push_back(access(words_));
    return actor_.seen[next_++];
  }
  // An atomic operation of the device on `lock`. next(old) is the new value. Returns the old one.
  template <typename Next>
  uint64_t atomic(const Next& next) {
    const uint64_t old = step([&](Words& words) {
      if (words.device_is_busy) throw DeviceIsBusy();
      words.device_is_busy = true;
      return words.lock;
    });
    step([&](Words& words) {
      words.device_is_busy = false;
      return words.lock = next(old);
    });
    return old;
  }
  uint64_t add_to_lock(uint64_t addend) {
    return atomic([=](uint64_t old) { return old + addend; });
  }

 private:
  Words& words_;
  Actor& actor_;
  size_t next_ = 0;
  bool done_ = false;
};

// The memory of the real TheOwner. Only the addresses of `queue` are used. Without fences it delays
// a store of top until after the next load.
class ModelMemory {
 public:
  ModelMemory(Steps& steps, TheQueue& queue, bool fences)
      : steps_(steps), queue_(queue), fences_(fences) {}

  uint64_t load(const std::atomic<uint64_t>& word) {
    const uint64_t value = steps_.step([&](Words& words) { return find(words, word); });
    drain();
    return value;
  }
  void store(std::atomic<uint64_t>& word, uint64_t value) {
    if (!fences_ && &word == &queue_.top) {
      late_ = true;
      late_top_ = value;
    } else {
      steps_.step([&](Words& words) { return find(words, word) = value; });
    }
  }
  uint64_t compare_swap(std::atomic<uint64_t>& /*lock*/, uint64_t expected, uint64_t desired) {
    drain();
    return steps_.atomic([=](uint64_t old) { return old == expected ? desired : old; });
  }
  void add(std::atomic<uint64_t>& /*lock*/, uint64_t addend) {
    drain();
    steps_.add_to_lock(addend);
  }
  void fence() {}
  void drain() {
    if (!late_) return;
    steps_.step([&](Words& words) { return words.top = late_top_; });
    late_ = false;
  }

 private:
  uint64_t& find(Words& words, const std::atomic<uint64_t>& word) const {
    if (&word == &queue_.lock) return words.lock;
    return &word == &queue_.base ? words.base : words.top;
  }

  Steps& steps_;
  TheQueue& queue_;
  const bool fences_;
  bool late_ = false;  // the store of late_top_ to top is delayed
  uint64_t late_top_ = 0;
};

enum class Owner : uint8_t { kPush, kPop };

struct Instance {
  std::vector<Owner> owner;
  size_t thief_attempts = 1;  // number of steals that each thief tries
};

class System {
 public:
  System(const Instance& instance, Mistake mistake) : instance_(&instance), mistake_(mistake) {}

  Words words;
  std::array<Actor, 1 + kThieves> actors{};
  uint64_t top = 1;          // private copy of the owner: one past the newest entry
  uint64_t pushed = 0;       // number of tasks pushed so far; the newest task has this number
  uint64_t stolen = 0;       // number of steals since the owner last emptied the queue
  std::set<uint64_t> taken;  // tasks that the owner or a thief has taken
  std::string violation;

  [[nodiscard]] auto key() const {
    return std::make_tuple(words, actors, top, pushed, stolen, taken);
  }
  [[nodiscard]] bool ended(size_t index) const {
    return actors[index].action >=
           (index == 0 ? instance_->owner.size() : instance_->thief_attempts);
  }

  // Makes one step of actor `index`. Returns false, and changes nothing, if the device is busy.
  [[nodiscard]] bool step(size_t index) {
    Actor& actor = actors[index];
    Steps steps(words, actor);
    try {
      if (index == 0) {
        owner_action(steps, instance_->owner[actor.action]);
      } else {
        thief_action(steps);
      }
      actor.seen.clear();
      ++actor.action;
    } catch (const Abandoned&) {
    } catch (const DeviceIsBusy&) {
      return false;
    } catch (const Waits&) {
      // The owner repeats the two steps of the failed compare-and-swap of the lock.
      actor.seen.resize(actor.seen.size() - 2);
      if (words.lock != 0 && ended(1) && ended(2)) violation = "the lock is held for ever";
    }
    return true;
  }

 private:
  void take(uint64_t task) {
    if (!taken.insert(task).second) violation = "a task was taken twice";
  }

  // An action changes private data only after its last step, because it may be abandoned before.
  void owner_action(Steps& steps, Owner action) {
    ModelMemory memory(steps, queue_, mistake_ != Mistake::kNoFence);
    TheOwner<ModelMemory> owner(memory, queue_);
    const auto overwrite = [&](uint64_t position) {
      steps.step([&](Words& words) { return words.frames[position] = 0xdead; });
    };
    const auto wait = [](uint64_t) { throw Waits(); };
    if (action == Owner::kPush) {
      const uint64_t task = pushed + 1;
      steps.step([&](Words& words) { return words.frames[top] = task; });
      steps.step([&](Words& words) { return words.entries[top] = task; });
      owner.push(top + 1);
      memory.drain();
      ++top;
      ++pushed;
      return;
    }
    if (top == 1) return;
    const uint64_t position = top - 1;
    if (owner.pop(position, wait)) {
      const uint64_t task = steps.step([&](Words& words) { return words.entries[position]; });
      overwrite(position);
      top = position;
      take(task);
      return;
    }
    // Thieves have taken this entry, and therefore all older ones: install another task.
    const uint64_t gone = owner.reset(wait);
    memory.drain();
    for (uint64_t i = 1; i < kPositions; ++i) overwrite(i);
    if (gone != position) violation = "reset() returned a wrong number of steals";
    top = 1;
  }

  void thief_action(Steps& steps) {
    const auto free = [&] {
      if (mistake_ == Mistake::kFreedByZero) {
        steps.step([](Words& words) { return words.lock = 0; });
      } else {
        steps.add_to_lock(kMinusOne);
      }
    };
    const uint64_t lock = steps.step([](Words& words) { return words.lock; });
    const uint64_t old_base = steps.step([](Words& words) { return words.base; });
    const uint64_t old_top = steps.step([](Words& words) { return words.top; });
    if (lock != 0 || old_base >= old_top) return;
    const uint64_t holder = steps.add_to_lock(1);
    if (holder != 0 && mistake_ != Mistake::kNoLock) {
      if (mistake_ != Mistake::kFreedByZero) free();
      return;
    }
    const uint64_t base = steps.step([](Words& words) { return words.base++; });
    uint64_t newest = old_top;
    if (mistake_ != Mistake::kOldTop) newest = steps.step([](Words& words) { return words.top; });
    if (base + 1 > newest) {
      if (mistake_ != Mistake::kBaseNotBack) {
        steps.step([&](Words& words) { return words.base = base; });
      }
      free();
      return;
    }
    const uint64_t task = steps.step([&](Words& words) { return words.entries[base]; });
    if (mistake_ == Mistake::kFreedEarly) free();
    const uint64_t frames = steps.step([&](Words& words) { return words.frames[base]; });
    if (mistake_ != Mistake::kFreedEarly) free();
    if (frames != task) violation = "a thief got frames that are not the task's";
    take(task);
  }

  const Instance* instance_;
  Mistake mistake_;
  static inline TheQueue queue_;  // only its addresses are used
};

struct Exploration {
  size_t states = 0;
  size_t ends = 0;
  std::string violation;
};

Exploration explore(const Instance& instance, Mistake mistake = Mistake::kNone) {
  Exploration result;
  std::set<decltype(System(instance, mistake).key())> known;
  std::vector<System> open{System(instance, mistake)};
  while (!open.empty()) {
    const System system = open.back();
    open.pop_back();
    if (!known.insert(system.key()).second) continue;
    bool moved = false;
    bool all_ended = true;
    for (size_t index = 0; index < system.actors.size(); ++index) {
      if (system.ended(index)) continue;
      all_ended = false;
      System next = system;
      if (!next.step(index)) continue;
      moved = true;
      if (!next.violation.empty()) {
        result.violation = next.violation;
        return result;
      }
      open.push_back(next);
    }
    if (moved) continue;
    ++result.ends;
    const Words& words = system.words;
    if (!all_ended) {
      result.violation = "an actor waits for ever";
    } else if (words.lock != 0) {
      result.violation = "the lock is held for ever";
    } else if (words.base > words.top + 1 ||
               system.taken.size() + words.top - std::min(words.base, words.top) != system.pushed) {
      result.violation = "a task was lost";
    }
    if (!result.violation.empty()) return result;
  }
  result.states = known.size();
  return result;
}

constexpr Owner kPush = Owner::kPush;
constexpr Owner kPop = Owner::kPop;

struct Named {
  const char* name;
  Instance instance;
};
const Named kInstances[] = {
    {"one_entry", {{kPush, kPop}, 2}},
    {"two_entries", {{kPush, kPush, kPop, kPop}, 2}},
    {"the_same_position_again", {{kPush, kPop, kPush, kPop, kPush}, 2}},
    {"three_entries", {{kPush, kPush, kPush, kPop, kPop, kPop, kPush}, 1}},
    {"pushed_on_top_of_stolen_ones", {{kPush, kPush, kPop, kPush, kPop, kPop, kPush}, 1}},
};

TEST(TheDequeInterleavings, KeepEveryInvariant) {
  for (const Named& named : kInstances) {
    const Exploration result = explore(named.instance);
    EXPECT_EQ(result.violation, "") << named.name;
    EXPECT_GT(result.ends, 0u) << named.name;
    std::printf("%s: %zu states\n", named.name, result.states);
  }
}

TEST(TheDequeInterleavings, MistakesAreFound) {
  const auto find = [](Mistake mistake) {
    for (const Named& named : kInstances) {
      const Exploration result = explore(named.instance, mistake);
      if (!result.violation.empty()) return result.violation;
    }
    return std::string();
  };
  EXPECT_NE(find(Mistake::kNoFence), "");
  EXPECT_NE(find(Mistake::kNoLock), "");
  EXPECT_NE(find(Mistake::kOldTop), "");
  EXPECT_NE(find(Mistake::kBaseNotBack), "");
  EXPECT_NE(find(Mistake::kFreedEarly), "");
  EXPECT_NE(find(Mistake::kFreedByZero), "");
}

}  // namespace
}  // namespace cariama::tasks
