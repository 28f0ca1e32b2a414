// Explores every interleaving of the processes that agree on the child of one move: processes that
// offer a node, the owner of the original, a process that creates the child for the owner, and
// a death. The records of the messages in flight (mcts/engine/offers.h) are the real code. The test
// stands for the node and the messages, as CopyExchange sends and handles them.
//
// Property: when no thread can make a step, the child of the move is no longer being created. If
// the owner lives, each offer was answered with that child. Each offered node is the child of the
// move at its copy, or was freed once. Each step on which this depends is then weakened, and the
// exploration must detect that.
#include "mcts/engine/offers.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/interleavings.h"

namespace cariama::mcts {
namespace {
namespace offers_model {

using cariama::testing::Exploration;
using cariama::testing::Interleaving;
using cariama::testing::ModelAtomic;

enum class Mistake {
  kNone,
  kNoDefer,          // an offer is answered while another process creates the child
  kTakeBeforeSet,    // the deferred offers are taken before the child is set
  kForgetDeferred,   // the deferred offers are not answered
  kAdoptByStore,     // the owner adopts a node without comparing
  kTakeTwice,        // an answer is handled although the offer was abandoned
  kNoLook,           // a request to a dead process is not ended by the thread that sent it
  kLookFirst,        // that thread looks for the death before it enters the request
  kLostBeforeMark,   // the requests to a dead process are ended before it is marked as dead
  kCreatedUnchecked  // a child that was created is set although its request has ended
};
Mistake mistake = Mistake::kNone;

// The child of a move.
constexpr uint64_t kNoChild = 0;
constexpr uint64_t kCreating = 1;
constexpr uint64_t kCreated = 2;   // by the process from which the owner has requested it
constexpr uint64_t kOffered = 10;  // and above: the node of each process that offers one

struct Child {
  uint64_t value;
  [[nodiscard]] bool is_creating() const { return value == kCreating; }
};
// A node with one move.
struct ModelNode {
  ModelAtomic<uint64_t> word{kNoChild};

  [[nodiscard]] Child child(int /*move*/) const { return {word.load()}; }
  [[nodiscard]] bool publish(uint64_t child) {
    uint64_t none = kNoChild;
    return word.compare_exchange_strong(none, child);
  }
};
using ModelOffers = BasicOffers<ModelNode, cariama::testing::ModelMutex>;

enum class Creation : uint8_t {
  kNotRequested,
  kSucceeds,
  kFails,  // the process has no memory for the child
};
struct Instance {
  const char* name;
  uint32_t offerers = 0;
  Creation creation = Creation::kNotRequested;
  bool creator_dies = false;
  bool owner_dies = false;  // the processes that offer consider it dead; its messages may be lost
};

class World final : public Interleaving {
 public:
  explicit World(const Instance& instance) : instance_(instance) {
    for (uint32_t i = 0; i < instance.offerers; ++i) {
      add_thread([this, i] { offer(i); });
      add_thread([this, i] { serve(i); });
    }
    if (instance.creation != Creation::kNotRequested) {
      add_thread([this] { request(); });
      add_thread([this] { create(); });
      add_thread([this] { receive_created(); });
    }
    if (instance.creator_dies) add_thread([this] { creator_dies(); });
    if (instance.owner_dies) add_thread([this] { owner_dies(); });
  }
  ~World() override { abandon(); }

  // The records are a function of the calls on them.
  [[nodiscard]] std::string state() const override {
    std::string text = std::to_string(original_.word.value()) + ' ' + calls_;
    for (const Process& one : processes_) {
      text += '/' + std::to_string(one.child) + (one.answered ? "a" : "") +
              std::to_string(one.freed) + (one.request ? ">" : "");
      if (one.answer) text += '<' + std::to_string(*one.answer);
    }
    text += requested_message_ ? ">" : "";
    if (created_message_) text += '<' + std::to_string(*created_message_);
    return text + (creator_is_gone_ ? "g" : "") + (creator_is_dead_.value() ? "c" : "") +
           (owner_is_dead_ ? "o" : "");
  }
  [[nodiscard]] std::string wrong_at_the_end() const override {
    const uint64_t child = original_.word.value();
    if (child == kCreating) return "the creation of the child does not end";
    for (uint32_t i = 0; i < instance_.offerers; ++i) {
      Process& one = processes_[i];
      if (!owner_is_dead_) {
        if (!one.answered) return "an offer is not answered";
        // An offer that arrives just before a creation fails may be answered without a child: the
        // process offers another node later.
        const bool fails = instance_.creation == Creation::kFails || instance_.creator_dies;
        if (one.child != child && (one.child != kNoChild || !fails)) {
          return "a copy has another child than the original";
        }
      }
      // After the search: frees the nodes of the offers that were not answered.
      const uint64_t freed = one.freed + one.offers.clear().size();
      const bool kept = one.child == kOffered + i;
      if (freed + (kept ? 1 : 0) != 1) return "an offered node is lost, or freed twice";
    }
    return "";
  }

 private:
  // A process that has a copy and offers a node to the owner.
  struct Process {
    ModelOffers offers;
    ModelNode copy;
    uint64_t child = kNoChild;  // of the move at the copy; only one thread uses it
    bool answered = false;
    uint64_t freed = 0;                         // the offered node, how many times
    std::optional<ModelOffers::Offer> request;  // in flight
    std::optional<uint64_t> answer;             // in flight
  };
  static constexpr Rank kOwner = 0;
  static constexpr Rank kCreator = 1;

  [[nodiscard]] static RemoteNode name_of(uint32_t i) {
    return {static_cast<uint16_t>(2 + i), 0, i};
  }

  // ---- In a process that offers a node: offer_child() and on_adopted().

  void offer(uint32_t i) {
    Process& self = processes_[i];
    self.child = kCreating;
    self.offers.add({name_of(i), kOwner, &self.copy, 0});
    calls_ += 'A';
    begin_step();
    ModelOffers::Offer offer;
    offer.name = name_of(i);
    self.request = offer;
    if (!await([&self] { return self.answer.has_value(); })) return;
    const uint64_t child = *std::exchange(self.answer, std::nullopt);
    const bool known = self.offers.take(name_of(i)).has_value();
    calls_ += 'T';
    if (!known && mistake != Mistake::kTakeTwice) return;
    self.answered = true;
    self.child = child;
    if (child != kOffered + i) ++self.freed;
  }
  // As Host::mark_dead(). Later answers of the owner may arrive as well.
  void owner_dies() {
    begin_step();
    owner_is_dead_ = true;
    for (uint32_t i = 0; i < instance_.offerers; ++i) {
      begin_step();
      processes_[i].request.reset();
      processes_[i].answer.reset();
      processes_[i].offers.abandon(kOwner);
      calls_ += 'L';
    }
  }

  // ---- In the process that owns the original: on_offered() and answer_offer().

  void serve(uint32_t i) {
    Process& from = processes_[i];
    if (!await([&from] { return from.request.has_value(); })) return;
    answer_offer(*std::exchange(from.request, std::nullopt));
  }
  void answer_offer(const ModelOffers::Offer& offer) {
    const uint64_t offered = kOffered + offer.name.slot;
    if (original_.child(0).value == kNoChild) {
      if (mistake == Mistake::kAdoptByStore) {
        original_.word.store(offered);
      } else {
        static_cast<void>(original_.publish(offered));
      }
    }
    if (mistake != Mistake::kNoDefer) {
      const bool deferred = owner_offers_.defer(original_, offer);
      calls_ += deferred ? 'D' : 'd';
      if (deferred) return;
    }
    const uint64_t now = original_.child(0).value;
    processes_[offer.name.slot].answer = now == kCreating ? kNoChild : now;
  }
  // request_child()
  void request() {
    if (!original_.publish(kCreating)) return;
    const bool dead_before = creator_is_dead_.load();
    requested_.add(kRequested);
    calls_ += 'R';
    begin_step();
    requested_message_ = true;
    if (mistake == Mistake::kNoLook) return;
    if (mistake == Mistake::kLookFirst ? !dead_before : !creator_is_dead_.load()) return;
    end_requests(kNoChild);
  }
  // on_created()
  void receive_created() {
    if (!await([this] { return created_message_.has_value(); })) return;
    const uint64_t child = *std::exchange(created_message_, std::nullopt);
    if (mistake == Mistake::kCreatedUnchecked) {
      end_creation(child);
    } else {
      end_requests(child);
    }
  }
  // The process ends, this process detects that, and marks it as dead: Host::mark_dead().
  void creator_dies() {
    begin_step();
    creator_is_gone_ = true;
    if (mistake == Mistake::kLostBeforeMark) end_requests(kNoChild);
    creator_is_dead_.store(true);
    begin_step();
    created_message_.reset();
    if (mistake != Mistake::kLostBeforeMark) end_requests(kNoChild);
  }
  void end_requests(uint64_t child) {
    const auto ended = requested_.take([](const RequestedChild& one) { return one == kRequested; });
    calls_ += ended.empty() ? 'e' : 'E';
    for (size_t i = 0; i < ended.size(); ++i) end_creation(child);
  }
  void end_creation(uint64_t child) {
    std::vector<ModelOffers::Offer> deferred;
    if (mistake == Mistake::kTakeBeforeSet) deferred = owner_offers_.take_deferred(original_, 0);
    const uint64_t before = original_.word.exchange(child);
    if (before != kCreating) violate("a child is replaced");
    if (mistake != Mistake::kTakeBeforeSet) deferred = owner_offers_.take_deferred(original_, 0);
    calls_ += 'F' + std::to_string(deferred.size());
    if (mistake == Mistake::kForgetDeferred) return;
    for (const ModelOffers::Offer& offer : deferred) answer_offer(offer);
  }

  // ---- In the process that creates the child.

  void create() {
    if (!await([this] { return requested_message_; })) return;
    if (creator_is_gone_) return;
    created_message_ = instance_.creation == Creation::kSucceeds ? kCreated : kNoChild;
  }

  static constexpr RequestedChild kRequested{{5, 0}, 0, kCreator};

  const Instance& instance_;
  ModelNode original_;
  ModelOffers owner_offers_;
  BasicRequestedChildren<cariama::testing::ModelMutex> requested_;
  mutable std::array<Process, 2> processes_;
  ModelAtomic<bool> creator_is_dead_{false};
  bool creator_is_gone_ = false;
  bool owner_is_dead_ = false;
  bool requested_message_ = false;
  std::optional<uint64_t> created_message_;
  std::string calls_;
};

const Instance kInstances[] = {
    {"one_offer", 1},
    {"two_offers", 2},
    {"an_offer_while_the_child_is_created", 1, Creation::kSucceeds},
    {"an_offer_while_the_creation_fails", 1, Creation::kFails},
    {"two_offers_while_the_child_is_created", 2, Creation::kSucceeds},
    {"the_creator_dies", 0, Creation::kSucceeds, true},
    {"the_creator_dies_during_an_offer", 1, Creation::kSucceeds, true},
    {"the_owner_dies", 1, Creation::kNotRequested, false, true},
    {"the_owner_dies_during_two_offers", 2, Creation::kNotRequested, false, true},
};

Exploration run(const Instance& instance, Mistake wrong = Mistake::kNone) {
  mistake = wrong;
  const Exploration result =
      cariama::testing::explore([&] { return std::make_unique<World>(instance); });
  mistake = Mistake::kNone;
  return result;
}

TEST(OffersInterleavings, AllProcessesGetOneChild) {
  for (const Instance& instance : kInstances) {
    const Exploration result = run(instance);
    EXPECT_EQ(result.violation, "") << instance.name;
    EXPECT_GT(result.ends, 0u) << instance.name;
    std::printf("%s: %zu states\n", instance.name, result.states);
  }
}

TEST(OffersInterleavings, MistakesAreFound) {
  for (auto wrong = static_cast<int>(Mistake::kNoDefer);
       wrong <= static_cast<int>(Mistake::kCreatedUnchecked); ++wrong) {
    bool found = false;
    for (const Instance& instance : kInstances) {
      const std::string violation = run(instance, static_cast<Mistake>(wrong)).violation;
      found = found || !violation.empty();
      if (found) std::printf("%d: %s, %s\n", wrong, instance.name, violation.c_str());
      if (found) break;
    }
    EXPECT_TRUE(found) << wrong;
  }
}

}  // namespace offers_model
}  // namespace
}  // namespace cariama::mcts
