// Explores every interleaving of the owner of a request cell (tasks/pool/request_cell.h) and
// thieves. The owner runs the real code. A device executes the compare-and-swaps: it reads the
// cell, and later writes it, also if the comparison has failed. It executes one of them at a time.
//
// Properties: the owner answers each request that has reached the cell exactly once, and the cell
// can be opened again afterwards.
#include "tasks/pool/request_cell.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/interleavings.h"

namespace cariama::tasks {
namespace {

using pool::internal::kBlocked;
using pool::internal::kOpen;
using testing::Exploration;
using testing::Interleaving;

enum class Mistake : uint8_t {
  kNone,
  kForgetRequest,  // the owner does not recognize a request id that has returned
  kCpuClose,       // the owner closes the cell by an instruction of the CPU
  kStoreToClose,   // the owner closes the cell by a store
};

// The owner's step: serve() with tasks or without, and the state in which it leaves the cell after
// it has taken a request id.
enum class Owner : uint8_t { kIdle, kHasTask, kHasTasks };

struct Instance {
  const char* name;
  std::vector<Owner> owner;
  size_t thieves;
  size_t requests;  // of each thief
};

class World final : public Interleaving {
 public:
  World(const Instance& instance, Mistake mistake) : instance_(instance), mistake_(mistake) {
    add_thread([this] { own(); });
    for (size_t thief = 0; thief < instance.thieves; ++thief) {
      answers_.emplace_back();
      add_thread([this, thief] { ask(thief); });
    }
  }
  [[nodiscard]] std::string state() const override {
    std::string text = std::to_string(cell_) + (busy_ ? 'b' : '-');
    for (const auto& answers : answers_) {
      for (const int count : answers) text += ',' + std::to_string(count);
      text += ';';
    }
    return text;
  }
  [[nodiscard]] std::string wrong_at_the_end() const override {
    for (size_t i = 0; i < threads(); ++i) {
      if (!has_ended(i)) return "a thief waits for ever";
    }
    return "";
  }

 private:
  // One step: returns a value that the thread reads.
  template <typename Access>
  static uint64_t access(const Access& perform) {
    current().begin_step();
    const uint64_t value = perform();
    current().note(value);
    return value;
  }

  struct Memory {
    World& world;
    uint64_t load(const std::atomic<uint64_t>& word) const {
      return access([&] { return word.load(); });
    }
    void store(std::atomic<uint64_t>& word, uint64_t value) const {
      current().begin_step();
      word.store(value);
    }
    uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const {
      if (world.mistake_ == Mistake::kCpuClose) {
        return access([&] {
          word.compare_exchange_strong(expected, desired);
          return expected;
        });
      }
      if (world.mistake_ == Mistake::kStoreToClose) {
        store(word, desired);
        return expected;
      }
      return world.device_compare_swap(expected, desired);
    }
  };

  uint64_t device_compare_swap(uint64_t expected, uint64_t desired) {
    if (!await([this] { return !busy_; })) return kBlocked;
    busy_ = true;
    const uint64_t old = cell_;
    note(old);
    begin_step();
    cell_.store(old == expected ? desired : old);
    busy_ = false;
    return old;
  }

  void serve(std::optional<RequestCellOwner<Memory>>& owner, Owner step) {
    const uint64_t request_id = step == Owner::kIdle ? owner->close() : owner->open();
    if (request_id == kNoRequestId) return;
    if (request_id == kBlocked) return violate("the owner takes kBlocked for a request_id");
    const size_t thief = request_id % 16;
    const size_t number = request_id / 16 - 1;
    if (++answers_[thief][number] > 1) violate("a request was answered twice");
    owner->take(request_id, step == Owner::kHasTasks ? kOpen : kBlocked);
    if (mistake_ == Mistake::kForgetRequest) owner.emplace(memory_, cell_);
  }
  void own() {
    std::optional<RequestCellOwner<Memory>> owner;
    owner.emplace(memory_, cell_);
    for (const Owner step : instance_.owner) serve(owner, step);
    // Until the thieves have ended: their last compare-and-swaps may undo a store.
    while (others_are_active()) {
      if (!await([this] { return cell_ > kBlocked || !others_are_active(); })) return;
      serve(owner, Owner::kIdle);
    }
    // A worker that gets tasks opens its cell.
    for (int i = 0; i < 2; ++i) serve(owner, Owner::kHasTasks);
    if (cell_ != kOpen) violate("the cell stays blocked");
  }
  [[nodiscard]] bool others_are_active() const {
    for (size_t i = 1; i < threads(); ++i) {
      if (!has_ended(i)) return true;
    }
    return false;
  }
  void ask(size_t thief) {
    auto& answers = answers_[thief];
    for (size_t number = 0; number < instance_.requests; ++number) {
      answers.push_back(0);
      const uint64_t request_id = (number + 1) * 16 + thief;
      if (device_compare_swap(kOpen, request_id) != kOpen) continue;
      if (!await([&] { return answers[number] != 0; })) return;
    }
  }

  const Instance& instance_;
  const Mistake mistake_;
  std::atomic<uint64_t> cell_{kBlocked};
  bool busy_ = false;                      // the device executes a compare-and-swap
  std::vector<std::vector<int>> answers_;  // by thief and request
  Memory memory_{*this};
};

constexpr Owner kIdle = Owner::kIdle;
constexpr Owner kHasTask = Owner::kHasTask;
constexpr Owner kHasTasks = Owner::kHasTasks;
const Instance kInstances[] = {
    {"one_thief", {kHasTasks, kHasTasks, kIdle, kHasTask}, 1, 3},
    {"two_thieves", {kHasTasks, kHasTasks, kIdle, kHasTasks, kHasTask}, 2, 2},
    {"the_last_task", {kHasTasks, kHasTask, kHasTasks, kHasTask, kIdle}, 2, 2},
    {"three_thieves", {kHasTasks, kHasTask, kHasTasks, kIdle}, 3, 1},
};

Exploration explore(const Instance& instance, Mistake mistake) {
  return testing::explore([&] { return std::make_unique<World>(instance, mistake); });
}

TEST(RequestCellInterleavings, EachRequestIsAnsweredOnce) {
  for (const Instance& instance : kInstances) {
    const Exploration result = explore(instance, Mistake::kNone);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name, result.states);
  }
}

TEST(RequestCellInterleavings, MistakesAreFound) {
  for (const Mistake mistake :
       {Mistake::kForgetRequest, Mistake::kCpuClose, Mistake::kStoreToClose}) {
    std::string found;
    for (const Instance& instance : kInstances) {
      if (found.empty()) found = explore(instance, mistake).violation;
    }
    EXPECT_NE(found, "") << static_cast<int>(mistake);
  }
}

}  // namespace
}  // namespace cariama::tasks
