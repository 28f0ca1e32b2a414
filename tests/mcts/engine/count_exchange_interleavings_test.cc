// Explores every interleaving of rollouts and exchanges of counts at copies of a node
// (mcts/engine/count_exchange.h). The exchange and the additions are the real code; the test stands
// for the node, the messages and the owner.
//
// Property: when all threads have ended and the remaining counts were sent, the original has each
// visit and each value of each rollout exactly once. A copy always has all of its own rollouts that
// have ended. Values are different powers of two, so each sum tells which rollouts are in it. Each
// step that the header names is then weakened, and the exploration must detect that.
#include "mcts/engine/count_exchange.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/interleavings.h"

namespace cariama::mcts {
namespace {

using cariama::testing::Exploration;
using cariama::testing::Interleaving;
using cariama::testing::ModelAtomic;

enum class Mistake {
  kNone,
  kTwoExchanges,    // an exchange begins while one is in flight
  kEndBeforeMerge,  // the exchange ends before the counts of the owner are merged
  kSendAgain,       // `common` does not contain the counts that were sent
  kReadTwice,       // take_grown() reads the counts that it sends, and again those that are common
  kMergeByStore,    // merge() stores the counts of the owner in the copy
  kMergeAll,        // merge() makes the counts of the copy common
  kKeepCommon,      // merge() leaves `common` as it was
  kPlainAdditions,  // the counts are added by a load and a store
  kAnswerFirst,     // the owner reads its counts before it adds those of the message
  kDropFailed,      // counts that were not sent are not returned
};
Mistake mistake = Mistake::kNone;

template <typename T>
class Count : public ModelAtomic<T> {
 public:
  T fetch_add(T by, std::memory_order /*order*/) {
    if (mistake == Mistake::kPlainAdditions) {
      const T old = this->load();
      this->store(old + by);
      return old;
    }
    Interleaving::current().begin_step();
    return this->seen(std::exchange(this->value_, static_cast<T>(this->value_ + by)));
  }
};

// A node with one move.
struct ModelNode {
  Count<uint32_t> visits;
  Count<double> value;

  [[nodiscard]] MoveCounts counts(int /*move*/) const {
    MoveCounts counts;
    counts.visits = visits.load();
    counts.value = value.load();
    return counts;
  }
  void add_counts(int /*move*/, const MoveCounts& now, const MoveCounts& before) {
    add_difference(visits, value, now, before);
  }
};

enum class Action : uint8_t {
  kRollout,   // counts a visit, then a value
  kCancel,    // counts a visit, and removes it
  kExchange,  // if none is in flight
  kFail,      // as kExchange, but the message is not sent
};

struct Program {
  size_t copy = 0;  // kOriginal: the rollouts are those of the owner
  std::vector<Action> actions;
};
constexpr size_t kOriginal = 2;

struct Instance {
  const char* name;
  std::vector<Program> programs;
};

class World final : public Interleaving {
 public:
  explicit World(const Instance& instance) : channels_(instance.programs.size()) {
    for (Copy& copy : copies_) {
      copy.exchange.set_common(std::vector<MoveCounts>(1));
      copy.exchange.end();  // the copy has arrived
    }
    for (size_t i = 0; i < instance.programs.size(); ++i) {
      const Program& program = instance.programs[i];
      add_thread([this, i, &program] { run(program, channels_[i]); });
      // The owner's thread with the same index.
      if (program.copy != kOriginal) add_thread([this, i] { serve(channels_[i]); });
    }
  }

  [[nodiscard]] std::string state() const override {
    std::string text = text_of(original_) + std::to_string(next_value_) + ' ';
    for (const Copy& copy : copies_) {
      text += text_of(copy.node) + text_of(copy.exchange.common()[0]) + std::to_string(copy.ended) +
              (copy.exchange.is_in_flight() ? "! " : ". ");
    }
    for (const Channel& channel : channels_) {
      for (const auto& message : channel.requests) text += '>' + text_of(message);
      for (const auto& message : channel.answers) text += '<' + text_of(message);
      text += channel.ended ? '.' : ' ';
    }
    return text;
  }
  // Sends the last counts, as send_last_counts() does.
  [[nodiscard]] std::string wrong_at_the_end() const override {
    for (size_t i = 0; i < threads(); ++i) {
      if (!has_ended(i)) return "a thread waits for ever";
    }
    auto visits = static_cast<int64_t>(original_.visits.value());
    double value = original_.value.value();
    for (const Copy& copy : copies_) {
      if (copy.exchange.is_in_flight()) return "an exchange does not end";
      const MoveCounts& common = copy.exchange.common()[0];
      visits += static_cast<int32_t>(copy.node.visits.value() - common.visits);
      value += copy.node.value.value() - common.value;
    }
    if (visits != __builtin_popcountll(next_value_ - 1)) return "visits are lost or repeated";
    if (value != static_cast<double>(next_value_ - 1)) return "values are lost or repeated";
    return "";
  }

 private:
  using Exchange = BasicCountExchange<ModelAtomic>;
  struct Copy {
    ModelNode node;
    Exchange exchange;
    uint64_t ended = 0;  // the values of its own rollouts that have ended
  };
  // Between a thread that has a copy and a thread of the owner.
  struct Channel {
    std::deque<MoveCounts> requests;
    std::deque<MoveCounts> answers;
    bool ended = false;
  };

  [[nodiscard]] static std::string text_of(const MoveCounts& counts) {
    return std::to_string(counts.visits) + ',' + std::to_string(counts.value) + ' ';
  }
  [[nodiscard]] static std::string text_of(const ModelNode& node) {
    return std::to_string(node.visits.value()) + ',' + std::to_string(node.value.value()) + ' ';
  }

  // ---- In the process that has the copy.

  void run(const Program& program, Channel& channel) {
    size_t position = 0;
    for (const Action action : program.actions) {
      forget(position++);
      ModelNode& node = program.copy == kOriginal ? original_ : copies_[program.copy].node;
      switch (action) {
        case Action::kRollout: {
          node.visits.fetch_add(1, std::memory_order_relaxed);
          // The number of the rollout is part of its last step.
          const uint64_t value = std::exchange(next_value_, 2 * next_value_);
          node.value.fetch_add(static_cast<double>(value), std::memory_order_relaxed);
          if (program.copy != kOriginal) copies_[program.copy].ended |= value;
          break;
        }
        case Action::kCancel:
          node.visits.fetch_add(1, std::memory_order_relaxed);
          node.visits.fetch_add(static_cast<uint32_t>(-1), std::memory_order_relaxed);
          break;
        case Action::kExchange:
        case Action::kFail:
          if (!exchange(copies_[program.copy], channel, action == Action::kFail)) return;
          break;
      }
    }
    channel.ended = true;
  }
  // Returns false if the execution was abandoned.
  [[nodiscard]] bool exchange(Copy& copy, Channel& channel, bool fails) {
    if (!copy.exchange.begin() && mistake != Mistake::kTwoExchanges) return true;
    const std::vector<MoveCounts> grown = copy.exchange.take_grown(copy.node, false);
    if (mistake == Mistake::kSendAgain) copy.exchange.return_grown(grown);
    if (mistake == Mistake::kReadTwice) {
      static_cast<void>(copy.exchange.take_grown(copy.node, false));
    }
    if (fails) {
      if (mistake != Mistake::kDropFailed) copy.exchange.return_grown(grown);
      copy.exchange.end();
      return true;
    }
    channel.requests.push_back(grown.empty() ? MoveCounts{} : grown[0]);
    if (!await([&channel] { return !channel.answers.empty(); })) return false;
    const MoveCounts original = channel.answers.front();
    channel.answers.pop_front();
    if (mistake == Mistake::kEndBeforeMerge) copy.exchange.end();
    merge(copy, original);
    if (mistake != Mistake::kEndBeforeMerge) copy.exchange.end();
    return true;
  }
  void merge(Copy& copy, const MoveCounts& original) {
    switch (mistake) {
      case Mistake::kMergeByStore:
        copy.node.visits.store(original.visits);
        copy.node.value.store(original.value);
        return copy.exchange.set_common({original});
      case Mistake::kMergeAll:
        copy.exchange.merge(copy.node, 0, original);
        return copy.exchange.set_common({copy.node.counts(0)});
      case Mistake::kKeepCommon:
        return copy.node.add_counts(0, original, copy.exchange.common()[0]);
      default:
        copy.exchange.merge(copy.node, 0, original);
    }
    const uint64_t ended = copy.ended;
    if ((static_cast<uint64_t>(copy.node.value.value()) & ended) != ended)
      violate("a copy misses its own rollouts");
  }

  // ---- In the process of the owner: CopyExchange::on_counts().

  void serve(Channel& channel) {
    for (;;) {
      forget(0);
      if (!await([&channel] { return channel.ended || !channel.requests.empty(); })) return;
      if (channel.requests.empty()) return;
      const MoveCounts grown = channel.requests.front();
      channel.requests.pop_front();
      MoveCounts answer;
      if (mistake == Mistake::kAnswerFirst) answer = original_.counts(0);
      original_.add_counts(0, grown, {});
      if (mistake != Mistake::kAnswerFirst) answer = original_.counts(0);
      channel.answers.push_back(answer);
    }
  }

  ModelNode original_;
  std::array<Copy, 2> copies_;
  std::deque<Channel> channels_;
  uint64_t next_value_ = 1;
};

Exploration explore(const Instance& instance, Mistake wrong = Mistake::kNone) {
  mistake = wrong;
  const Exploration result =
      cariama::testing::explore([&] { return std::make_unique<World>(instance); });
  mistake = Mistake::kNone;
  return result;
}

constexpr Action kRollout = Action::kRollout;
constexpr Action kCancel = Action::kCancel;
constexpr Action kExchange = Action::kExchange;
constexpr Action kFail = Action::kFail;

const Instance kInstances[] = {
    {"one_thread", {{0, {kRollout, kExchange, kRollout, kExchange}}}},
    {"two_threads", {{0, {kRollout, kExchange}}, {0, {kRollout, kExchange}}}},
    {"a_message_is_not_sent", {{0, {kRollout, kFail, kExchange}}, {0, {kRollout}}}},
    {"a_rollout_is_cancelled", {{0, {kExchange, kExchange}}, {0, {kCancel, kRollout}}}},
    {"the_owner_runs_rollouts", {{0, {kRollout, kExchange}}, {kOriginal, {kRollout, kCancel}}}},
    {"two_copies", {{0, {kRollout, kExchange}}, {1, {kRollout, kExchange}}}},
    {"two_copies_and_the_owner",
     {{0, {kRollout, kExchange}}, {1, {kRollout, kExchange}}, {kOriginal, {kRollout}}}},
    {"one_copy_twice",
     {{0, {kRollout, kExchange, kRollout, kExchange}}, {0, {kRollout, kCancel, kExchange}}}},
};

TEST(CountExchangeInterleavings, EachRolloutIsCountedOnce) {
  for (const Instance& instance : kInstances) {
    const Exploration result = explore(instance);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name, result.states);
  }
}

TEST(CountExchangeInterleavings, MistakesAreFound) {
  for (auto wrong = static_cast<int>(Mistake::kTwoExchanges);
       wrong <= static_cast<int>(Mistake::kDropFailed); ++wrong) {
    bool found = false;
    for (const Instance& instance : kInstances) {
      const std::string violation = explore(instance, static_cast<Mistake>(wrong)).violation;
      found = found || !violation.empty();
      if (found) std::printf("%d: %s, %s\n", wrong, instance.name, violation.c_str());
      if (found) break;
    }
    EXPECT_TRUE(found) << wrong;
  }
}

}  // namespace
}  // namespace cariama::mcts
