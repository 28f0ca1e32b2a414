// Explores every interleaving of an owner and thieves on the steal request of the split deque
// (tasks/internal/split_deque.h, split_deque_thief.h). The owner, the thieves and the set of the
// sleepers run the real code; the test stands for the fork, for the doorbells
// (doorbell_interleavings_test.cc) and for the words of the entries
// (split_deque_interleavings_test.cc).
//
// Property: when no thief can make a step, no thief sleeps while an entry is public, and as many
// further forks of the owner as there are sleepers wake all thieves that sleep. Each step that the
// headers name is then weakened, and the exploration must detect that.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/doorbell.h"
#include "gtest/gtest.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"
#include "tests/dtutils/testing/interleavings.h"

namespace cariama::tasks {
namespace {

using testing::Exploration;
using testing::Interleaving;

enum class Mistake {
  kNone,
  kClearWithoutWake,   // the owner clears a request while entries are public, and wakes no thief
  kWakeBeforeClear,    // as before, but it wakes thieves before it clears the request
  kClearAfterWake,     // the owner clears the request after it has published and woken thieves
  kClearForNothing,    // the owner clears a request for which it has no entry
  kWakeBeforePublish,  // the owner looks for sleepers before it has published
  kIgnoreSleepers,    // with a kRefillRequest, the owner keeps its only entry though a thief sleeps
  kNoRefillByThief,   // the thief writes no request when it takes the last public entry
  kRequestBeforeArm,  // the thief writes its request before it enters the sleeper set
  kNoRequest,         // the thief enters the sleeper set, and writes no request
  kStayArmed,         // the thief does not disarm its doorbell when it does not sleep
  kCountUnarmed,      // the owner counts thieves that do not sleep as woken
  kNoRecheck,         // the thief does not look for public entries before it sleeps
  kRecheckBeforeArm,  // the thief looks for them before it enters the sleeper set
};

enum class Owner : uint8_t { kFork, kPop };

struct Instance {
  const char* name;
  std::vector<Owner> owner;
  size_t sleepers = 1;            // thieves that sleep when they find nothing
  size_t steals = 0;              // attempts of a thief that polls
  bool request_is_first = false;  // a READ returns the request from before the state
  // The request of a sleeper becomes visible after the sleeper has looked for public entries: a
  // processor may execute a load before an earlier store.
  bool request_is_late = false;
};

struct Model {
  template <typename T>
  using Atomic = testing::ModelAtomic<T>;
  static void full_fence() {}
};
using ModelSleeperSet = internal::BasicSleeperSet<Model>;

class World final : public Interleaving {
 public:
  World(const Instance& instance, Mistake mistake) : instance_(instance), mistake_(mistake) {
    part_.steal_request = kRefillRequest;  // as Worker does
    add_thread([this] { own(); });
    for (uint32_t slot = 0; slot < instance.sleepers; ++slot) {
      add_thread([this, slot] { steal_or_sleep(slot); });
    }
    if (instance.steals != 0) add_thread([this] { poll(); });
  }

  [[nodiscard]] std::string state() const override {
    std::string text = std::to_string(part_.state) + ',' + std::to_string(part_.steal_request) +
                       ',' + std::to_string(private_) + ',' + std::to_string(sleepers_.armed());
    for (const Bell& bell : bells_)
      text += bell.asleep ? (bell.rung ? 'r' : 's') : (bell.armed ? 'a' : '-');
    return text;
  }
  [[nodiscard]] std::string wrong_at_the_end() const override {
    for (size_t i = 0; i < threads(); ++i) {
      if (!has_ended(i)) return "a thief sleeps though the owner has entries";
    }
    return "";
  }

 private:
  struct Bell {
    bool armed = false;
    bool asleep = false;
    bool rung = false;
  };

  // One access to shared memory.
  template <typename Access>
  static uint64_t access(const Access& perform) {
    current().begin_step();
    const uint64_t value = perform();
    current().note(value);
    return value;
  }

  // The memory of PublicPartOwner, and of request_before_sleep().
  struct Memory {
    World& world;
    uint64_t* buffer = nullptr;  // takes the store of a request
    [[nodiscard]] uint64_t load(const std::atomic<uint64_t>& word) const {
      return access([&] { return word.load(); });
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      PublicPart& part = world.part_;
      if (&word != &part.state && &word != &part.steal_request) return word.store(value);
      if (&word == &part.steal_request) {
        if (value == kNoRequest && world.mistake_ == Mistake::kWakeBeforeClear) world.wake(1);
        if (value == kNoRequest && world.skips_clear_) return;
        if (buffer != nullptr) {
          *buffer = value;
          return;
        }
      }
      current().begin_step();
      word.store(value);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const {
      return access([&] {
        uint64_t seen = expected;
        word.compare_exchange_strong(seen, desired);
        return seen;
      });
    }
  };

  // One-sided operations on the memory of the owner.
  class Access final : public RemoteAccess {
   public:
    explicit Access(World& world) : RemoteAccess(1, 2), world_(world) {}
    absl::Status read(int /*peer*/, std::span<const ReadPiece> pieces) override {
      const PublicPart& part = world_.part_;
      auto* const words = static_cast<uint64_t*>(pieces[0].local);
      const auto read_state = [&] { words[0] = world_.memory_.load(part.state); };
      const auto read_request = [&] { words[2] = world_.memory_.load(part.steal_request); };
      if (world_.instance_.request_is_first) read_request();
      read_state();
      if (!world_.instance_.request_is_first) read_request();
      words[1] = 0;
      std::memcpy(pieces[1].local, reinterpret_cast<const void*>(pieces[1].address),
                  pieces[1].bytes);
      return absl::OkStatus();
    }
    absl::Status write(int /*peer*/, uint64_t address, const void* local,
                       size_t /*bytes*/) override {
      EXPECT_EQ(address, reinterpret_cast<uint64_t>(&world_.part_.steal_request));
      uint64_t value = 0;
      std::memcpy(&value, local, sizeof value);
      if (value == kRefillRequest && world_.mistake_ == Mistake::kNoRefillByThief)
        return absl::OkStatus();
      world_.memory_.store(world_.part_.steal_request, value);
      return absl::OkStatus();
    }
    absl::StatusOr<uint64_t> compare_swap(int /*peer*/, uint64_t address, uint64_t expected,
                                          uint64_t desired) override {
      EXPECT_EQ(address, reinterpret_cast<uint64_t>(&world_.part_.state));
      return world_.memory_.compare_swap(world_.part_.state, expected, desired);
    }
    absl::StatusOr<uint64_t> fetch_add(int, uint64_t, uint64_t) override {
      return absl::UnimplementedError("");
    }
    absl::Status post_add(int, uint64_t, uint64_t) override { return absl::UnimplementedError(""); }
    absl::Status add_segment(size_t, const MemorySource&) override {
      return absl::UnimplementedError("");
    }
    void* mapped(int, uint64_t, size_t) override { return nullptr; }

   private:
    World& world_;
  };

  // ---- The owner: Scheduler::serve_steal_request(), publish(), take_parent_back().

  void wake(uint32_t entries) {
    wake_for_entries(sleepers_, entries, [this](uint32_t slot) {
      const bool rings = access([&] {
        bells_[slot].rung = bells_[slot].rung || bells_[slot].armed;
        return std::exchange(bells_[slot].armed, false);
      });
      return rings || mistake_ == Mistake::kCountUnarmed;
    });
  }
  void fork() {
    ++private_;
    const bool wakes =
        mistake_ != Mistake::kClearWithoutWake && mistake_ != Mistake::kWakeBeforeClear;
    const uint64_t wanted = owner_.request_to_serve([&](uint32_t entries) {
      if (wakes) wake(entries);
    });
    if (wanted == kNoRequest) return;
    const uint32_t count = how_many_to_publish(wanted, private_, [this] {
      return mistake_ != Mistake::kIgnoreSleepers && sleepers_.armed() != 0;
    });
    if (count == 0) {
      if (mistake_ == Mistake::kClearForNothing) memory_.store(part_.steal_request, kNoRequest);
      return;
    }
    private_ -= count;
    if (mistake_ == Mistake::kWakeBeforePublish) wake(count);
    skips_clear_ = mistake_ == Mistake::kClearAfterWake;
    owner_.publish([](uint32_t) { return PublicEntry{1, 2, 0, 0}; }, count);
    skips_clear_ = false;
    if (mistake_ != Mistake::kWakeBeforePublish) wake(count);
    if (mistake_ == Mistake::kClearAfterWake) memory_.store(part_.steal_request, kNoRequest);
  }
  void pop() {
    if (private_ != 0) {
      --private_;
      return;
    }
    if (owner_.take_back()) owner_.refill_if_empty();
  }
  void own() {
    for (size_t i = 0; i < instance_.owner.size(); ++i) {
      forget(i);
      instance_.owner[i] == Owner::kFork ? fork() : pop();
    }
    for (size_t i = 0; i < instance_.sleepers; ++i) {
      forget(instance_.owner.size() + i);
      if (!await([this] { return others_are_blocked(); })) return;
      const bool one_sleeps =
          std::any_of(bells_.begin(), bells_.end(), [](const Bell& bell) { return bell.asleep; });
      if (one_sleeps && PublicState::decode(part_.state).count != 0)
        violate("a thief sleeps though an entry is public");
      fork();
    }
  }
  [[nodiscard]] bool others_are_blocked() const {
    for (size_t i = 1; i < threads(); ++i) {
      const bool sleeps = i <= bells_.size() && bells_[i - 1].asleep && !bells_[i - 1].rung;
      if (!has_ended(i) && !sleeps) return false;
    }
    return true;
  }

  // ---- Thieves: Scheduler::steal_from(), Worker::pause_search().

  [[nodiscard]] Claim claim() {
    Access access(*this);
    PublicPartCopy copy;
    const auto got = claim_from_public_part(access, 0, part_, copy, [] {});
    EXPECT_TRUE(got.ok()) << got.status();
    return got.ok() ? got->claim : Claim::kNothing;
  }
  [[nodiscard]] bool nothing_is_public() {
    return PublicState::decode(memory_.load(part_.state)).count == 0;
  }
  void disarm(Bell& bell) {
    if (mistake_ == Mistake::kStayArmed) return;
    current().begin_step();
    bell.armed = false;
  }
  void request(uint32_t slot, uint64_t& late) {
    switch (mistake_) {
      case Mistake::kNoRequest:
        return sleepers_.arm(slot);
      case Mistake::kRequestBeforeArm:
        memory_.store(part_.steal_request, kAnyEntryRequest);
        return sleepers_.arm(slot);
      default: {
        Memory memory{*this, instance_.request_is_late ? &late : nullptr};
        request_before_sleep(memory, part_, sleepers_, slot);
      }
    }
  }
  void steal_or_sleep(uint32_t slot) {
    Bell& bell = bells_[slot];
    for (;;) {
      forget(0);
      const Claim got = claim();
      if (got == Claim::kClaimed) return;
      if (got == Claim::kLost) continue;
      current().begin_step();
      bell.armed = true;
      bell.rung = false;
      if (mistake_ == Mistake::kRecheckBeforeArm && !nothing_is_public()) {
        disarm(bell);
        continue;
      }
      uint64_t late = kNoRequest;
      request(slot, late);
      const bool rechecks =
          mistake_ != Mistake::kNoRecheck && mistake_ != Mistake::kRecheckBeforeArm;
      const bool found = rechecks && !nothing_is_public();
      if (late != kNoRequest) memory_.store(part_.steal_request, late);
      if (found) {
        disarm(bell);
        continue;
      }
      bell.asleep = true;
      if (!await([&bell] { return bell.rung; })) return;
      bell.asleep = false;
    }
  }
  void poll() {
    for (size_t i = 0; i < instance_.steals; ++i) {
      forget(i);
      static_cast<void>(claim());
    }
  }

  const Instance& instance_;
  const Mistake mistake_;
  PublicPart part_{};
  ModelSleeperSet sleepers_;
  size_t private_ = 0;  // entries
  std::array<Bell, 2> bells_{};
  Memory memory_{*this, nullptr};
  PublicPartOwner<Memory> owner_{memory_, part_};
  bool skips_clear_ = false;  // the owner does not clear the request now
};

Exploration explore(const Instance& instance, Mistake mistake = Mistake::kNone) {
  return testing::explore([&] { return std::make_unique<World>(instance, mistake); });
}

constexpr Owner kFork = Owner::kFork;
constexpr Owner kPop = Owner::kPop;

const Instance kInstances[] = {
    {"one_sleeper", {kFork, kFork, kPop, kFork}, 1, 0},
    {"one_sleeper_reads_the_request_first", {kFork, kFork, kPop, kFork}, 1, 0, true},
    {"one_sleeper_and_one_that_polls", {kFork, kFork}, 1, 1},
    {"it_reads_the_request_first", {kFork, kFork}, 1, 1, true},
    {"the_request_is_late", {kFork, kFork}, 1, 1, false, true},
    {"two_sleepers", {kFork}, 2, 0},
    {"one_sleeper_and_one_that_polls_twice", {kFork, kFork, kPop}, 1, 2},
};

TEST(StealRequestInterleavings, EverySleeperIsServed) {
  for (const Instance& instance : kInstances) {
    const Exploration result = explore(instance);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name, result.states);
  }
}

TEST(StealRequestInterleavings, MistakesAreFound) {
  for (auto mistake = static_cast<int>(Mistake::kClearWithoutWake);
       mistake <= static_cast<int>(Mistake::kRecheckBeforeArm); ++mistake) {
    bool found = false;
    for (const Instance& instance : kInstances) {
      found = found || !explore(instance, static_cast<Mistake>(mistake)).violation.empty();
      if (found) std::printf("%d: %s\n", mistake, instance.name);
      if (found) break;
    }
    EXPECT_TRUE(found) << mistake;
  }
}

}  // namespace
}  // namespace cariama::tasks
