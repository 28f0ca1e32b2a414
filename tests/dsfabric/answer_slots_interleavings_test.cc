// Explores every interleaving of callers, the callee and a service thread on the answer slots
// (dsfabric/peers/answer_slots.h) and on the pending calls (dsfabric/calls/pending_calls.h), which
// are the real code. Each call must be completed once, with its own result, and each result in a
// slot must be taken once: by the caller that polls, or in stop_polling(). If the peer is
// considered failed, its answers may come late. Deliberate mistakes must each be detected.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/calls/pending_calls.h"
#include "dsfabric/peers/answer_slots.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/interleavings.h"

namespace cariama::internal {
namespace {
namespace slots_model {

using testing::Exploration;
using testing::explore;
using testing::Interleaving;

enum class Mistake : uint8_t {
  kNone,
  kPollUnlocked,        // a thread marks its slots as polled without the mutex
  kAnswerByStore,       // the callee stores the state without comparing
  kAnswerBeforeData,    // the callee changes the state before it stores the result
  kTakeWithoutCompare,  // a thread takes a result that another thread has taken
  kNoTakeAfterStop,     // the caller does not take the results after it has stopped polling
  kReleasedEarly,       // the slot is released before its result is copied
  kFailedSlotsReused,   // the slots of a failed peer are released
  kNoGenerations,       // an answer names the entry of a call, without its generation
};

struct World;
World& world();

struct Model {
  template <typename T>
  class Atomic : public testing::ModelAtomic<T> {
   public:
    using testing::ModelAtomic<T>::ModelAtomic;
    [[nodiscard]] T load(std::memory_order order) const;
    void store(T value, std::memory_order order);
    bool compare_exchange_strong(T& expected, T desired, std::memory_order success,
                                 std::memory_order failure = std::memory_order_relaxed);
  };
  static PollerId poller();
};
using Slot = BasicAnswerSlot<Model>;
using Slots = BasicAnswerSlots<Model>;
using Calls = BasicPendingCalls<Slots, testing::ModelMutex>;

struct Instance {
  const char* name;
  uint32_t callers = 1;
  uint32_t calls_of_each = 1;
  uint32_t callees = 1;        // threads of the callee's process
  bool fails = false;          // the peer is considered failed at any time, and answers later
  bool takes = true;           // each caller takes results while it polls, not only afterwards
  bool coarse = false;         // accesses to handles and results are no steps of their own
  bool second_sleeps = false;  // the second caller sleeps at once, without polling
  bool dispatches = false;     // a thread of the caller's process takes the results of all threads
};

struct World final : Interleaving {
  static constexpr uint32_t kPeer = 1;
  static constexpr uint32_t kMostCalls = 4;
  static constexpr uint64_t kIndex = (1u << 26) - 1;  // the part of a handle that names the entry

  struct Call final : PendingCall {
    Call(World& world, uint32_t number) : world(world), number(number) {}
    void complete(const absl::Status& status, std::span<const std::byte> result) override {
      if (world.done[number]) world.violate("a call is completed twice");
      world.done[number] = true;
      if (!status.ok()) return;
      uint64_t word = 0;
      if (result.size() == sizeof word) std::memcpy(&word, result.data(), sizeof word);
      if (word != result_of(number)) world.violate("a call is completed with another result");
    }
    World& world;
    const uint32_t number;
  };

  World(const Instance& instance, Mistake mistake) : instance(instance), mistake(mistake) {
    for (uint32_t i = 0; i < instance.callers; ++i) add_thread([this, i] { call(i); });
    const uint32_t calls = instance.callers * instance.calls_of_each;
    for (uint32_t i = 0; i < instance.callees; ++i) {
      add_thread([this, share = calls / this->instance.callees] {
        for (uint32_t k = 0; k < share; ++k) answer();
      });
    }
    add_thread([this] { serve(); });
    if (instance.fails) add_thread([this] { fail(); });
    if (instance.dispatches) {
      add_thread([this] { take(nullptr); });
    }
  }
  ~World() override { abandon(); }

  [[nodiscard]] static uint64_t result_of(uint32_t number) {
    return (number + 1) * 0x0101010101010101;
  }

  // ---- The caller's process
  void call(uint32_t caller) {
    for (uint32_t k = 0; k < instance.calls_of_each; ++k) {
      const uint32_t number = caller * instance.calls_of_each + k;
      const uint64_t handle = calls.add(kPeer, std::make_unique<Call>(*this, number), &slots);
      handles.push_back(handle);
      begin_step();
      requests.emplace_back(handle, number);
      if (caller == 0 || !instance.second_sleeps) poll();
      // The thread sleeps: only a message or another thread completes the call.
      if (!await([this, number] { return done[number]; })) return;
    }
  }
  void poll() {
    const PollerId me = Model::poller();
    if (mistake == Mistake::kPollUnlocked) {
      slots.start_polling(me);
    } else {
      calls.start_polling(slots, me);
    }
    if (instance.takes) take(me);
    slots.stop_polling(me);
    if (mistake != Mistake::kNoTakeAfterStop) take(me);
  }
  // As Answers::take_results().
  void take(PollerId poller) {
    slots.take(poller, [this](const Slots::Answer& answer) {
      ++taken;
      if (answer.handle == 0) {
        if (!instance.fails) violate("a slot contains the handle of another call");
        return;
      }
      complete(answer.handle, std::span(answer.result).first(answer.bytes));
    });
  }
  void complete(uint64_t handle, std::span<const std::byte> result) {
    if (mistake == Mistake::kNoGenerations) {
      for (const uint64_t other : handles) {
        if (((other ^ handle) & kIndex) == 0) handle = other;
      }
    }
    const std::unique_ptr<PendingCall> call = calls.take(handle, kPeer);
    if (call != nullptr) call->complete(absl::OkStatus(), result);
  }
  // The service thread: completes the calls whose answers come as messages.
  void serve() {
    while (await([this] { return !messages.empty(); })) {
      const auto [handle, result] = messages.front();
      messages.pop_front();
      complete(handle, std::as_bytes(std::span(&result, 1)));
    }
  }
  void fail() {
    begin_step();
    const size_t known = handles.size();
    Calls::Cursor from;
    while (const auto call = calls.take_failed(kPeer, from)) {
      if (mistake == Mistake::kFailedSlotsReused) {
        const uint32_t number = static_cast<Call&>(*call).number;
        if (number < known) slots.release(Calls::slot_of(handles[number]));
      }
      call->complete(absl::UnavailableError("failed"), {});
    }
  }

  // ---- The callee's process
  void answer() {
    if (!await([this] { return !requests.empty(); })) return;
    const auto [handle, number] = requests.front();
    requests.pop_front();
    note(number);
    const uint64_t result = result_of(number);
    const uint32_t slot = Calls::slot_of(handle);
    if (slot != 0 && memory[slot - 1].answer(handle, std::as_bytes(std::span(&result, 1)))) {
      ++answered;
      return;
    }
    begin_step();
    messages.emplace_back(handle, result);
  }

  [[nodiscard]] std::string state() const override {
    std::string text;
    const auto add = [&](uint64_t word) { text += std::to_string(word) + ' '; };
    for (size_t i = 0; i < kMostCalls; ++i) {
      const Slot& slot = memory[i];
      add(slot.state.value());
      add(slot.bytes.value());
      add(slot.handle.value());
      add(slot.result[0].value());
    }
    for (const bool one : done) add(one ? 1 : 0);
    for (const uint64_t handle : handles) add(handle);
    text += 'r';
    for (const auto& [handle, number] : requests) add(handle);
    text += 'm';
    for (const auto& [handle, result] : messages) add(handle);
    add(answered);
    add(taken);
    return text;
  }
  [[nodiscard]] std::string wrong_at_the_end() const override {
    for (uint32_t i = 0; i < instance.callers * instance.calls_of_each; ++i) {
      if (!done[i]) return "a call is never completed";
    }
    if (!instance.fails && taken != answered) return "a result was not taken once";
    return "";
  }

  [[nodiscard]] uint32_t slot_with(const void* state_word) const {
    for (uint32_t i = 0; i < Slots::kCount; ++i) {
      if (&memory[i].state == state_word) return i + 1;
    }
    return 0;
  }

  const Instance& instance;
  const Mistake mistake;
  std::array<Slot, Slots::kCount> memory;
  Slots slots{memory.data(), false};
  Calls calls;
  std::array<bool, kMostCalls> done{};
  std::vector<uint64_t> handles;
  std::deque<std::pair<uint64_t, uint32_t>> requests;
  std::deque<std::pair<uint64_t, uint64_t>> messages;
  uint32_t answered = 0;
  uint32_t taken = 0;
};
World& world() { return static_cast<World&>(Interleaving::current()); }

// A caller is identified by its thread.
PollerId Model::poller() {
  static constexpr std::array<char, 16> kIdentities{};
  return &kIdentities[world().thread()];
}

template <typename T>
T Model::Atomic<T>::load(std::memory_order order) const {
  using Base = testing::ModelAtomic<T>;
  if (std::is_same_v<T, uint64_t> && world().instance.coarse) return Base::seen(Base::value());
  return Base::load(order);
}

template <typename T>
void Model::Atomic<T>::store(T value, std::memory_order order) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (world().mistake == Mistake::kAnswerBeforeData) {
      for (Slot& slot : world().memory) {
        if (static_cast<const void*>(&slot.handle) != this) continue;
        uint32_t state = Slot::kPolled;
        slot.state.testing::ModelAtomic<uint32_t>::compare_exchange_strong(state, Slot::kAnswered);
      }
    }
  }
  if (std::is_same_v<T, uint64_t> && world().instance.coarse) {
    static_cast<testing::ModelAtomic<T>&>(*this) = testing::ModelAtomic<T>(value);
    return;
  }
  testing::ModelAtomic<T>::store(value, order);
}

template <typename T>
bool Model::Atomic<T>::compare_exchange_strong(T& expected, T desired, std::memory_order success,
                                               std::memory_order failure) {
  using Base = testing::ModelAtomic<T>;
  if constexpr (std::is_same_v<T, uint32_t>) {
    World& all = world();
    const uint32_t slot = all.slot_with(this);
    if (slot != 0 && desired == Slot::kAnswered) {
      if (all.mistake == Mistake::kAnswerByStore) {
        Base::store(desired);
        return true;
      }
      if (all.mistake == Mistake::kAnswerBeforeData) {
        // The compare-and-swap was made before the stores: it has succeeded unless the slot was
        // not polled.
        return Base::load() != Slot::kUnpolled;
      }
    }
    if (slot != 0 && desired == Slot::kTaken) {
      if (all.mistake == Mistake::kTakeWithoutCompare) {
        Base::store(desired);
        return true;
      }
      if (all.mistake == Mistake::kReleasedEarly) {
        const bool taken = Base::compare_exchange_strong(expected, desired, success, failure);
        if (taken) all.slots.release(slot);
        return taken;
      }
    }
  }
  return Base::compare_exchange_strong(expected, desired, success, failure);
}

const Instance kInstances[] = {
    {.name = "one_call"},
    {.name = "slot_used_again", .calls_of_each = 2},
    {.name = "two_callers", .callers = 2, .takes = false, .coarse = true, .second_sleeps = true},
    {.name = "dispatcher", .dispatches = true},
    {.name = "dispatcher_and_slot_used_again",
     .calls_of_each = 2,
     .takes = false,
     .coarse = true,
     .dispatches = true},
    {.name = "failure", .calls_of_each = 2, .callees = 2, .fails = true, .takes = false},
};

Exploration explore_slots(const Instance& instance, Mistake mistake) {
  return explore([&] { return std::make_unique<World>(instance, mistake); });
}

TEST(AnswerSlotsInterleavings, EveryCallIsCompletedOnce) {
  for (const Instance& instance : kInstances) {
    const Exploration result = explore_slots(instance, Mistake::kNone);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name, result.states);
  }
}

TEST(AnswerSlotsInterleavings, MistakesAreFound) {
  const std::pair<const char*, Mistake> mistakes[] = {
      {"poll unlocked", Mistake::kPollUnlocked},
      {"answer by store", Mistake::kAnswerByStore},
      {"answer before data", Mistake::kAnswerBeforeData},
      {"take without compare", Mistake::kTakeWithoutCompare},
      {"no take after stop", Mistake::kNoTakeAfterStop},
      {"released early", Mistake::kReleasedEarly},
      {"failed slots reused", Mistake::kFailedSlotsReused},
      {"no generations", Mistake::kNoGenerations},
  };
  for (const auto& [name, mistake] : mistakes) {
    std::string found;
    for (const Instance& instance : kInstances) {
      found = explore_slots(instance, mistake).violation;
      if (found.empty()) continue;
      std::printf("%s: %s: %s\n", name, instance.name, found.c_str());
      break;
    }
    EXPECT_NE(found, "") << name;
  }
}

}  // namespace slots_model
}  // namespace
}  // namespace cariama::internal
