// Explores every interleaving of one owner and two thieves on the public part of the split deque
// (tasks/internal/split_deque.h). The owner runs the real code. Deliberate mistakes in the protocol
// must each be detected.
//
// Every access to shared memory is a step. Between two steps, an actor is plain data: its position
// in its program, and the results of the accesses of its current action. To make a step, the test
// executes the action again from its beginning with these results, performs one new access, and
// abandons the action at the next one. So the whole system is a value that can be copied and
// compared, and a search that stores the visited states explores every interleaving. Accesses are
// sequentially consistent here; the header states the memory order that each access needs.
//
// With Atomics::kTwoSteps, a device executes the compare-and-swaps: it reads the word, and later
// writes it, also if the comparison has failed. It executes one of them at a time.
//
// The frames of a task are one word that contains the number of the task. If a thief reads another
// word there, the frames were overwritten before it copied them.
#include "tasks/internal/split_deque.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cariama::tasks {
namespace {

constexpr size_t kThieves = 2;
constexpr size_t kPositions = 4;

enum class Mistake {
  kNone,
  kSameVersion,      // the owner does not change the version
  kSlotBeforeState,  // the thief reads the slot before the state
  kNoCompare,        // the thief stores the state without comparing
  kNotCopied,        // the owner does not wait until thieves have copied the frames
  kCopiedEarly,      // the thief increments `copied` before it has read the frames
  kStoreToPublish,   // the owner publishes by a store instead of a compare-and-swap
};

enum class Atomics : uint8_t { kOneStep, kTwoSteps };

// The shared memory of the model: the words of the public part, and the frames.
struct Words {
  uint64_t state = 0;
  uint64_t copied = 0;
  std::array<uint64_t, kPublicSlots> slots{};  // the sp words; the other words are not modelled
  std::array<uint64_t, kPositions> frames{};
  bool device_is_busy = false;
  friend auto operator<=>(const Words&, const Words&) = default;
};

struct Abandoned {};
struct DeviceIsBusy {};

// The owner or a thief: the results of the accesses of its current action, and its private
// variables.
struct Actor {
  size_t action = 0;
  std::vector<uint64_t> seen;
  std::array<uint64_t, 4> variables{};
  friend auto operator<=>(const Actor&, const Actor&) = default;
};

// Performs the accesses of an action: repeats the results in `seen`, then performs one new access,
// then abandons the action.
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
  // Exchanges the word word_of(words), if it is `expected`, by `desired`. Returns the old value.
  template <typename WordOf>
  uint64_t compare_swap(Atomics atomics, const WordOf& word_of, uint64_t expected,
                        uint64_t desired) {
    const auto result = [&](uint64_t old) { return old == expected ? desired : old; };
    const uint64_t old = step([&](Words& words) {
      if (words.device_is_busy) throw DeviceIsBusy();
      words.device_is_busy = atomics == Atomics::kTwoSteps;
      uint64_t& word = word_of(words);
      const uint64_t there = word;
      if (!words.device_is_busy) word = result(there);
      return there;
    });
    if (atomics == Atomics::kTwoSteps) {
      step([&](Words& words) {
        words.device_is_busy = false;
        return word_of(words) = result(old);
      });
    }
    return old;
  }

 private:
  Words& words_;
  Actor& actor_;
  size_t next_ = 0;
  bool done_ = false;
};

// The memory of the real PublicPartOwner. Only the addresses of `public_part` are used.
struct ModelMemory {
  Steps& steps;
  PublicPart& public_part;
  Mistake mistake;
  Atomics atomics;

  uint64_t* find(Words& words, const std::atomic<uint64_t>& word) const {
    if (&word == &public_part.state) return &words.state;
    if (&word == &public_part.copied) return &words.copied;
    for (size_t i = 0; i < kPublicSlots; ++i) {
      if (&word == &public_part.slots[i][0]) return &words.slots[i];
    }
    return nullptr;  // top, report and record are not modelled
  }
  uint64_t load(const std::atomic<uint64_t>& word) const {
    return steps.step([&](Words& words) { return *find(words, word); });
  }
  void store(std::atomic<uint64_t>& word, uint64_t value) const {
    Words unused;
    if (find(unused, word) == nullptr) return;
    steps.step([&](Words& words) { return *find(words, word) = version(word, value); });
  }
  uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const {
    if (mistake == Mistake::kStoreToPublish && PublicState::decode(expected).count == 0) {
      store(word, desired);
      return expected;
    }
    return steps.compare_swap(
        atomics, [&](Words& words) -> uint64_t& { return *find(words, word); }, expected,
        version(word, desired));
  }
  uint64_t version(const std::atomic<uint64_t>& word, uint64_t value) const {
    return mistake == Mistake::kSameVersion && &word == &public_part.state ? value & 0xffff : value;
  }
};

// The actions of the owner: it pushes tasks, publishes one or two, pops one, and installs a new
// task when it has no entry left. Each task has a number; its frames are at its position.
enum class Owner : uint8_t { kPush, kPublishOne, kPublishTwo, kPop, kInstall };

struct Instance {
  std::vector<Owner> owner;
  size_t thief_attempts = 1;  // number of steals that each thief tries
};

class System {
 public:
  System(const Instance& instance, Mistake mistake, Atomics atomics)
      : instance_(&instance), mistake_(mistake), atomics_(atomics) {}

  // Variables of the owner: [0] number of entries in the deque, [1] floor, [2] number of the last
  // task, [3] number of entries stolen so far. entries: task numbers by position.
  Words words;
  std::array<Actor, 1 + kThieves> actors{};
  std::array<uint64_t, kPositions> entries{};
  std::set<uint64_t> taken;  // tasks that the owner or a thief has taken
  std::string violation;

  [[nodiscard]] auto key() const { return std::tie(words, actors, entries, taken); }

  [[nodiscard]] bool ended(size_t index) const {
    return actors[index].action >=
           (index == 0 ? instance_->owner.size() : instance_->thief_attempts);
  }

  // Makes one step of actor `index`. Returns false if the actor waits.
  [[nodiscard]] bool step(size_t index) {
    Actor& actor = actors[index];
    Steps steps(words, actor);
    try {
      const bool finished = index == 0 ? owner_action(steps, actor) : thief_action(steps, actor);
      if (!finished) {  // the actor waits: forget its last load
        actor.seen.clear();
        return false;
      }
      actor.seen.clear();
      ++actor.action;
    } catch (const Abandoned&) {
    } catch (const DeviceIsBusy&) {
      return false;
    }
    return true;
  }

 private:
  void take(uint64_t task) {
    if (!taken.insert(task).second) violation = "a task was taken twice";
  }

  bool owner_action(Steps& steps, Actor& me) {
    ModelMemory memory{steps, public_part_, mistake_, atomics_};
    PublicPartOwner<ModelMemory> public_part(memory, public_part_);
    uint64_t& top = me.variables[0];
    uint64_t& floor = me.variables[1];
    uint64_t& next = me.variables[2];
    switch (instance_->owner[me.action]) {
      case Owner::kPush: {
        const uint64_t task = next + 1;
        steps.step([&](Words& words) { return words.frames[top] = task; });
        entries[top] = task;
        ++top;
        ++next;
        return true;
      }
      case Owner::kPublishOne:
      case Owner::kPublishTwo: {
        const uint32_t wanted = instance_->owner[me.action] == Owner::kPublishTwo ? 2 : 1;
        if (public_part.count() != 0) return true;
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(wanted, top - floor));
        if (count == 0) return true;
        const uint64_t begin = floor;
        public_part.publish(
            [&](uint32_t i) {
              return PublicEntry{entries[begin + i] << 8 | (begin + i), 0, 0, 0};
            },
            count);
        floor += count;
        return true;
      }
      case Owner::kPop:
        if (top == 0) return true;
        if (top > floor) {
          --top;
          take(entries[top]);
          return true;
        }
        if (public_part.take_back()) {
          --top;
          floor = top;
          take(entries[top]);
        }
        return true;
      case Owner::kInstall: {
        // All entries below the floor were stolen: overwrite their frames.
        if (top > floor) return true;
        if (public_part.count() != 0) return true;
        const uint64_t all = me.variables[3] + top;
        if (mistake_ != Mistake::kNotCopied && public_part.copied() != all) return false;
        steps.step([&](Words& words) {
          words.frames.fill(0xdead);
          return 0;
        });
        me.variables[3] = all;
        top = floor = 0;
        return true;
      }
    }
    return true;
  }

  bool thief_action(Steps& steps, Actor&) {
    uint64_t early_slot = 0;
    if (mistake_ == Mistake::kSlotBeforeState) {
      early_slot = steps.step([](Words& words) { return words.slots[0]; });
    }
    const uint64_t seen = steps.step([](Words& words) { return words.state; });
    const PublicState state = PublicState::decode(seen);
    if (state.count == 0) return true;
    uint64_t slot = early_slot;
    if (mistake_ != Mistake::kSlotBeforeState) {
      slot = steps.step([&](Words& words) { return words.slots[state.first]; });
    }
    if (mistake_ == Mistake::kNoCompare) {
      steps.step([&](Words& words) { return words.state = claim_oldest(seen); });
    } else if (steps.compare_swap(
                   atomics_, [](Words& words) -> uint64_t& { return words.state; }, seen,
                   claim_oldest(seen)) != seen) {
      return true;
    }
    const auto copied = [&] { steps.step([](Words& words) { return ++words.copied; }); };
    if (mistake_ == Mistake::kCopiedEarly) copied();
    const uint64_t task = slot >> 8;
    const uint64_t frames = steps.step([&](Words& words) { return words.frames[slot & 0xff]; });
    if (frames != task) violation = "a thief got frames that are not the task's";
    if (mistake_ != Mistake::kCopiedEarly) copied();
    take(task);
    return true;
  }

  const Instance* instance_;
  Mistake mistake_;
  Atomics atomics_;
  static inline PublicPart public_part_;  // only its addresses are used
};

struct Exploration {
  size_t states = 0;
  size_t ends = 0;
  std::string violation;
};

Exploration explore(const Instance& instance, Mistake mistake, Atomics atomics) {
  Exploration result;
  std::set<std::tuple<Words, std::array<Actor, 1 + kThieves>, std::array<uint64_t, kPositions>,
                      std::set<uint64_t>>>
      known;
  std::vector<System> open{System(instance, mistake, atomics)};
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
    const Actor& owner = system.actors[0];
    if (!all_ended) {
      result.violation = "an actor waits for ever";
    } else if (system.taken.size() + (owner.variables[0] - owner.variables[1]) +
                   PublicState::decode(system.words.state).count !=
               owner.variables[2]) {
      result.violation = "a task was lost";
    }
    if (!result.violation.empty()) return result;
  }
  result.states = known.size();
  return result;
}

constexpr Owner kPush = Owner::kPush;
constexpr Owner kOne = Owner::kPublishOne;
constexpr Owner kTwo = Owner::kPublishTwo;
constexpr Owner kPop = Owner::kPop;
constexpr Owner kInstall = Owner::kInstall;

struct Named {
  const char* name;
  Instance instance;
};
const Named kInstances[] = {
    {"one_entry", {{kPush, kOne, kPop, kInstall}, 2}},
    {"two_entries", {{kPush, kPush, kTwo, kPop, kPop, kInstall}, 2}},
    {"one_after_the_other", {{kPush, kPush, kOne, kOne, kPop, kPop, kInstall, kPush, kPop}, 2}},
    {"taken_back_and_published_again",
     {{kPush, kPush, kTwo, kPop, kPush, kPop, kPop, kPush, kOne, kPop, kInstall}, 1}},
    {"the_same_slot_again", {{kPush, kOne, kPop, kPush, kOne, kPop, kInstall}, 2}},
    {"installed_again", {{kPush, kOne, kPop, kInstall, kPush, kOne, kPop, kInstall}, 2}},
    {"private_ones_above",
     {{kPush, kOne, kPush, kPush, kPop, kOne, kPop, kPop, kInstall, kPush, kPop}, 2}},
};

void expect_no_violation(Atomics atomics) {
  for (const Named& named : kInstances) {
    const Exploration result = explore(named.instance, Mistake::kNone, atomics);
    EXPECT_EQ(result.violation, "") << named.name;
    EXPECT_GT(result.ends, 0u) << named.name;
    std::printf("%s: %zu states\n", named.name, result.states);
  }
}
TEST(SplitDequeInterleavings, KeepEveryInvariant) { expect_no_violation(Atomics::kOneStep); }
TEST(SplitDequeInterleavings, KeepEveryInvariantIfAtomicsTakeTwoSteps) {
  expect_no_violation(Atomics::kTwoSteps);
}

TEST(SplitDequeInterleavings, MistakesAreFound) {
  const auto find = [](Mistake mistake, Atomics atomics = Atomics::kOneStep) {
    for (const Named& named : kInstances) {
      const Exploration result = explore(named.instance, mistake, atomics);
      if (!result.violation.empty()) return result.violation;
    }
    return std::string();
  };
  EXPECT_NE(find(Mistake::kSameVersion), "");
  EXPECT_NE(find(Mistake::kSlotBeforeState), "");
  EXPECT_NE(find(Mistake::kNoCompare), "");
  EXPECT_NE(find(Mistake::kNotCopied), "");
  EXPECT_NE(find(Mistake::kCopiedEarly), "");
  EXPECT_NE(find(Mistake::kStoreToPublish, Atomics::kTwoSteps), "");
  EXPECT_EQ(find(Mistake::kStoreToPublish, Atomics::kOneStep), "");
}

}  // namespace
}  // namespace cariama::tasks
