// The state machine of a peer: each transition, and two processes that run it against each other in
// every order.
#include "dsfabric/peers/peer_state.h"

#include <array>
#include <cstddef>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using A = PeerAction;
using E = PeerEvent;
using S = PeerState;

constexpr std::array kStates = {S::kUnconnected, S::kOffering,  S::kConfirming,
                                S::kAnswered,    S::kConnected, S::kFailed};
constexpr std::array kEvents = {E::kConnect,         E::kOfferFailed, E::kAnswer,
                                E::kAnswerAccepted,  E::kConfirmed,   E::kOfferFromLower,
                                E::kOfferFromHigher, E::kNewerOffer,  E::kAttemptEnded,
                                E::kOfferAccepted,   E::kReady,       E::kFailure};

TEST(PeerState, EveryTransition) {
  // Pairs that are not listed leave the state as it is and reject the event.
  const std::map<std::pair<S, E>, PeerStep> listed = {
      {{S::kUnconnected, E::kConnect}, {S::kOffering, A::kOffer}},
      {{S::kUnconnected, E::kOfferFromLower}, {S::kUnconnected, A::kConnectQueuePairs}},
      {{S::kUnconnected, E::kOfferFromHigher}, {S::kUnconnected, A::kConnectQueuePairs}},
      {{S::kUnconnected, E::kOfferAccepted}, {S::kAnswered, A::kNone}},
      {{S::kUnconnected, E::kFailure}, {S::kFailed, A::kSpreadFailure}},

      {{S::kOffering, E::kConnect}, {S::kOffering, A::kWait}},
      {{S::kOffering, E::kOfferFailed}, {S::kUnconnected, A::kNone}},
      {{S::kOffering, E::kAnswer}, {S::kOffering, A::kConnectQueuePairs}},
      {{S::kOffering, E::kAnswerAccepted}, {S::kConfirming, A::kConfirm}},
      {{S::kOffering, E::kOfferFromLower}, {S::kOffering, A::kConnectQueuePairs}},
      {{S::kOffering, E::kOfferFromHigher}, {S::kOffering, A::kRefuseOffer}},
      {{S::kOffering, E::kOfferAccepted}, {S::kAnswered, A::kNone}},
      {{S::kOffering, E::kFailure}, {S::kFailed, A::kSpreadFailure}},

      {{S::kConfirming, E::kConnect}, {S::kConfirming, A::kWait}},
      {{S::kConfirming, E::kConfirmed}, {S::kConnected, A::kSendDeathNotices}},
      {{S::kConfirming, E::kOfferFromLower}, {S::kConfirming, A::kRefuseOffer}},
      {{S::kConfirming, E::kOfferFromHigher}, {S::kConfirming, A::kRefuseOffer}},
      {{S::kConfirming, E::kFailure}, {S::kFailed, A::kSpreadFailure}},

      {{S::kAnswered, E::kConnect}, {S::kAnswered, A::kWait}},
      {{S::kAnswered, E::kOfferFailed}, {S::kAnswered, A::kNone}},
      {{S::kAnswered, E::kOfferFromLower}, {S::kAnswered, A::kRefuseOffer}},
      {{S::kAnswered, E::kOfferFromHigher}, {S::kAnswered, A::kRefuseOffer}},
      {{S::kAnswered, E::kAnswer}, {S::kAnswered, A::kConnectQueuePairs}},
      {{S::kAnswered, E::kAnswerAccepted}, {S::kConfirming, A::kConfirm}},
      {{S::kAnswered, E::kNewerOffer}, {S::kAnswered, A::kConnectQueuePairs}},
      {{S::kAnswered, E::kAttemptEnded}, {S::kUnconnected, A::kNone}},
      {{S::kAnswered, E::kOfferAccepted}, {S::kAnswered, A::kNone}},
      {{S::kAnswered, E::kReady}, {S::kConnected, A::kSendDeathNotices}},
      {{S::kAnswered, E::kFailure}, {S::kFailed, A::kSpreadFailure}},

      {{S::kConnected, E::kConnect}, {S::kConnected, A::kNone}},
      {{S::kConnected, E::kOfferFailed}, {S::kConnected, A::kNone}},
      {{S::kConnected, E::kOfferFromLower}, {S::kConnected, A::kRefuseOffer}},
      {{S::kConnected, E::kOfferFromHigher}, {S::kConnected, A::kRefuseOffer}},
      {{S::kConnected, E::kFailure}, {S::kFailed, A::kSpreadFailure}},

      {{S::kFailed, E::kConnect}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kOfferFailed}, {S::kFailed, A::kNone}},
      {{S::kFailed, E::kAnswer}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kAnswerAccepted}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kConfirmed}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kOfferFromLower}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kOfferFromHigher}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kNewerOffer}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kAttemptEnded}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kOfferAccepted}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kReady}, {S::kFailed, A::kReportFailure}},
      {{S::kFailed, E::kFailure}, {S::kFailed, A::kNone}},
  };
  for (const S state : kStates) {
    for (const E event : kEvents) {
      const auto found = listed.find({state, event});
      const PeerStep expected = found == listed.end() ? PeerStep{state, A::kReject} : found->second;
      EXPECT_EQ(peer_step(state, event), expected)
          << "state " << static_cast<int>(state) << ", event " << static_cast<int>(event);
    }
  }
}

TEST(PeerState, OnlyConnectingStatesAreWaitedFor) {
  for (const S state : kStates) {
    EXPECT_EQ(is_connecting(state), peer_step(state, E::kConnect).action == A::kWait);
  }
}

// A thread that wants the connection.
struct ModelThread {
  enum Step { kIdle, kOffers, kRefused, kWaits, kAsks, kConfirms, kDone };
  enum Request { kNoRequest, kOffer, kReady, kQuestion };
  enum Received { kNothing, kAnswer, kRefusal, kReadyReceived, kEnded, kCounts };

  Step step = kIdle;
  Request request = kNoRequest;  // sent by the thread, not yet handled by the other process
  Received received = kNothing;  // to the thread's request
  int number = 0;                // of the attempt that request and received are about

  friend auto operator<=>(const ModelThread&, const ModelThread&) = default;
};

// One of two processes. Its broker handles one request at a time, in any order. A process that is
// stopped takes no step, so the orders of steps contain every stop and every continuation.
struct ModelProcess {
  S state = S::kUnconnected;
  std::array<ModelThread, 2> threads;
  int attempt = 0;        // number of the latest own offer
  int answered = 0;       // number of the peer's offer that was answered last
  bool offering = false;  // a thread makes an offer, or continues it
  int adopted_rank = -1;  // the queue pairs belong to this attempt of this rank
  int adopted = 0;
  std::set<int> late;      // own offers that have ended, and that the peer may still handle
  int notices = 0;         // number of times that death notices were sent
  int losses_left = 0;     // offers that may still be lost before the peer gets them
  int deadlines_left = 0;  // offers whose deadline may still end at any time

  friend auto operator<=>(const ModelProcess&, const ModelProcess&) = default;
};

using Model = std::array<ModelProcess, 2>;

class Explorer {
 public:
  // Takes every order of steps from `model`. Expects that both processes are connected wherever
  // no step is left, and that such an end can be reached from everywhere.
  void explore(const Model& model) {
    add(model);
    for (size_t at = 0; at < models_.size() && !::testing::Test::HasFailure(); ++at) {
      const size_t before = edges_.size();
      take_steps(at);
      if (edges_.size() == before) end(at);
    }
    expect_ends_reachable();
  }
  [[nodiscard]] size_t models() const { return models_.size(); }
  [[nodiscard]] size_t ends() const { return ends_.size(); }
  // Number of steps that abandoned an answered attempt.
  [[nodiscard]] size_t abandoned() const { return abandoned_; }

 private:
  size_t add(const Model& model) {
    const auto [found, is_new] = ids_.try_emplace(model, models_.size());
    if (is_new) models_.push_back(model);
    return found->second;
  }

  void take_steps(size_t at) {
    const auto take = [&](auto&& step) {
      Model model = models_[at];
      if (!step(model)) return;
      renumber(model, 0);
      renumber(model, 1);
      edges_.emplace_back(at, add(model));
    };
    for (size_t rank = 0; rank < 2; ++rank) {
      for (size_t thread = 0; thread < 2; ++thread) {
        take([&](Model& m) { return advance(m[rank], rank, m[rank].threads[thread]); });
        take([&](Model& m) { return answer_request(m, rank, m[1 - rank].threads[thread]); });
        take([&](Model& m) { return lose_offer(m[rank], m[rank].threads[thread]); });
        take([&](Model& m) { return end_at_deadline(m[rank], m[rank].threads[thread]); });
      }
      for (const int number : std::set<int>(models_[at][1 - rank].late)) {
        take([&](Model& m) {
          m[1 - rank].late.erase(number);
          static_cast<void>(answer_offer(m, rank, number));  // nothing waits for the answer
          return true;
        });
      }
    }
  }

  // Replaces the numbers of the attempts of `rank` by 1, 2, ... in their order, so that repeated
  // offers lead to a finite number of models.
  static void renumber(Model& model, size_t rank) {
    ModelProcess& self = model[rank];
    ModelProcess& other = model[1 - rank];
    std::vector<int*> numbers = {&self.attempt, &other.answered};
    for (ModelProcess& process : model) {
      if (process.adopted_rank == static_cast<int>(rank)) numbers.push_back(&process.adopted);
    }
    for (ModelThread& thread : self.threads) {
      const bool asks = thread.step == ModelThread::kAsks;  // about an attempt of the other
      if (!asks) numbers.push_back(&thread.number);
    }
    for (ModelThread& thread : other.threads) {
      if (thread.step == ModelThread::kAsks) numbers.push_back(&thread.number);
    }
    std::set<int> used(self.late);
    used.insert(0);
    for (const int* const number : numbers) used.insert(*number);
    const auto new_number = [&](int number) {
      return static_cast<int>(std::distance(used.begin(), used.find(number)));
    };
    for (int* const number : numbers) *number = new_number(*number);
    std::set<int> late;
    for (const int number : self.late) late.insert(new_number(number));
    self.late = std::move(late);
  }

  static A apply(ModelProcess& process, E event) {
    const PeerStep step = peer_step(process.state, event);
    EXPECT_NE(step.action, A::kReject)
        << "state " << static_cast<int>(process.state) << ", event " << static_cast<int>(event);
    process.state = step.next;
    if (step.action == A::kSendDeathNotices) ++process.notices;
    return step.action;
  }

  void adopt(ModelProcess& process, size_t rank, int number) {
    if (process.adopted_rank != -1) ++abandoned_;
    process.adopted_rank = static_cast<int>(rank);
    process.adopted = number;
  }

  static void set_idle(ModelThread& thread) { thread = ModelThread{}; }

  bool advance(ModelProcess& self, size_t rank, ModelThread& thread) {
    const auto received = std::exchange(thread.received, ModelThread::kNothing);
    switch (thread.step) {
      case ModelThread::kIdle: {
        const A action = apply(self, E::kConnect);
        if (action == A::kOffer) {
          self.offering = true;
          thread = {ModelThread::kOffers, ModelThread::kOffer, ModelThread::kNothing,
                    ++self.attempt};
        } else {
          thread.step = action == A::kWait ? ModelThread::kWaits : ModelThread::kDone;
        }
        return true;
      }
      case ModelThread::kOffers:
        if (received == ModelThread::kNothing) return false;
        if (received == ModelThread::kRefusal) {
          thread.step = ModelThread::kRefused;
          return true;
        }
        EXPECT_EQ(apply(self, E::kAnswer), A::kConnectQueuePairs);
        EXPECT_EQ(thread.number, self.attempt);
        adopt(self, rank, thread.number);
        EXPECT_EQ(apply(self, E::kAnswerAccepted), A::kConfirm);
        thread.step = ModelThread::kConfirms;
        thread.request = ModelThread::kReady;
        return true;
      case ModelThread::kRefused:
        // The thread waits for the peer's offer for a short time, which may end before it comes.
        apply(self, E::kOfferFailed);
        self.offering = false;
        set_idle(thread);
        return true;
      case ModelThread::kWaits:
        if (!is_connecting(self.state)) {
          set_idle(thread);
        } else if (self.state == S::kAnswered) {
          thread = {ModelThread::kAsks, ModelThread::kQuestion, ModelThread::kNothing,
                    self.answered};
        } else {
          return false;
        }
        return true;
      case ModelThread::kAsks:
        if (received == ModelThread::kNothing) return false;
        if (received == ModelThread::kEnded && self.state == S::kAnswered &&
            self.answered == thread.number && !self.offering) {
          apply(self, E::kAttemptEnded);
          self.adopted_rank = -1;
          self.adopted = 0;
          ++abandoned_;
        }
        set_idle(thread);
        return true;
      case ModelThread::kConfirms:
        if (received == ModelThread::kNothing) return false;
        apply(self, E::kConfirmed);
        self.offering = false;
        thread = ModelThread{.step = ModelThread::kDone};
        return true;
      case ModelThread::kDone:
        break;
    }
    return false;
  }

  // The broker of `rank` handles the request of `asking`, a thread of the other process.
  bool answer_request(Model& model, size_t rank, ModelThread& asking) {
    ModelProcess& self = model[rank];
    const auto request = std::exchange(asking.request, ModelThread::kNoRequest);
    switch (request) {
      case ModelThread::kNoRequest:
        return false;
      case ModelThread::kReady:
        EXPECT_EQ(self.answered, asking.number) << "ready of an attempt that was abandoned";
        EXPECT_EQ(apply(self, E::kReady), A::kSendDeathNotices);
        asking.received = ModelThread::kReadyReceived;
        return true;
      case ModelThread::kQuestion: {
        const bool continued =
            self.offering || (self.state != S::kUnconnected && self.state != S::kAnswered);
        asking.received = asking.number != self.attempt || !continued ? ModelThread::kEnded
                                                                      : ModelThread::kCounts;
        return true;
      }
      case ModelThread::kOffer:
        asking.received = answer_offer(model, rank, asking.number);
        return true;
    }
    return false;
  }

  ModelThread::Received answer_offer(Model& model, size_t rank, int number) {
    ModelProcess& self = model[rank];
    E event = rank == 1 ? E::kOfferFromLower : E::kOfferFromHigher;
    if (self.state == S::kAnswered && number > self.answered) event = E::kNewerOffer;
    const A action = apply(self, event);
    if (action == A::kRefuseOffer || number <= self.answered) return ModelThread::kRefusal;
    EXPECT_EQ(action, A::kConnectQueuePairs);
    adopt(self, 1 - rank, number);
    self.answered = number;
    apply(self, E::kOfferAccepted);
    return ModelThread::kAnswer;
  }

  // The offer does not reach the other process, and the thread tries again.
  static bool lose_offer(ModelProcess& self, ModelThread& thread) {
    if (self.losses_left == 0 || thread.request != ModelThread::kOffer) return false;
    --self.losses_left;
    give_up(self, thread);
    return true;
  }

  // The deadline of the offer ends before the thread has the answer: the peer has not handled the
  // offer, or its answer is not received. The thread tries again.
  static bool end_at_deadline(ModelProcess& self, ModelThread& thread) {
    if (self.deadlines_left == 0 || thread.step != ModelThread::kOffers) return false;
    --self.deadlines_left;
    if (thread.request == ModelThread::kOffer) self.late.insert(thread.number);
    give_up(self, thread);
    return true;
  }

  static void give_up(ModelProcess& self, ModelThread& thread) {
    apply(self, E::kOfferFailed);
    self.offering = false;
    set_idle(thread);
  }

  void end(size_t at) {
    ends_.push_back(at);
    const Model& model = models_[at];
    EXPECT_EQ(model[0].adopted_rank, model[1].adopted_rank) << "queue pairs of different offers";
    EXPECT_EQ(model[0].adopted, model[1].adopted) << "queue pairs of different attempts";
    for (const ModelProcess& process : model) {
      EXPECT_EQ(process.state, S::kConnected);
      EXPECT_EQ(process.notices, 1);
    }
  }

  void expect_ends_reachable() const {
    std::vector<std::vector<size_t>> before(models_.size());
    for (const auto& [from, to] : edges_) before[to].push_back(from);
    std::vector<bool> reached(models_.size(), false);
    std::vector<size_t> next = ends_;
    size_t count = 0;
    while (!next.empty()) {
      const size_t at = next.back();
      next.pop_back();
      if (reached[at]) continue;
      reached[at] = true;
      ++count;
      next.insert(next.end(), before[at].begin(), before[at].end());
    }
    EXPECT_EQ(count, models_.size()) << "from some models no end can be reached";
  }

  std::map<Model, size_t> ids_;
  std::deque<Model> models_;
  std::vector<std::pair<size_t, size_t>> edges_;
  std::vector<size_t> ends_;
  size_t abandoned_ = 0;
};

// Returns a model in which `threads` threads of each process want the connection.
Model model_of(size_t threads_of_0, size_t threads_of_1) {
  Model model;
  const std::array<size_t, 2> wanted = {threads_of_0, threads_of_1};
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t i = wanted[rank]; i < 2; ++i) model[rank].threads[i].step = ModelThread::kDone;
  }
  return model;
}

TEST(PeerState, BothConnectInEveryOrder) {
  Explorer explorer;
  explorer.explore(model_of(1, 1));
  EXPECT_GT(explorer.models(), 20u);
  EXPECT_GE(explorer.ends(), 2u);  // either offer may count
  EXPECT_EQ(explorer.abandoned(), 0u);
}

TEST(PeerState, OneConnectsInEveryOrder) {
  for (const size_t rank : {0, 1}) {
    Explorer explorer;
    explorer.explore(rank == 0 ? model_of(1, 0) : model_of(0, 1));
    EXPECT_EQ(explorer.ends(), 1u);
  }
}

TEST(PeerState, OffersThatFailAreRepeated) {
  Model model = model_of(1, 1);
  for (ModelProcess& process : model) process.losses_left = 2;
  Explorer explorer;
  explorer.explore(model);
  EXPECT_GT(explorer.models(), 100u);
}

TEST(PeerState, OffersThatEndAtTheirDeadlineAreReplaced) {
  Model model = model_of(1, 1);
  for (ModelProcess& process : model) process.deadlines_left = 2;
  Explorer explorer;
  explorer.explore(model);
  EXPECT_GT(explorer.models(), 100u);
  EXPECT_GT(explorer.abandoned(), 0u);
}

TEST(PeerState, AnOfferThatEndsAtItsDeadlineIsReplacedIfOnlyOneProcessConnects) {
  for (const size_t rank : {0, 1}) {
    Model model = rank == 0 ? model_of(1, 0) : model_of(0, 1);
    model[rank].deadlines_left = 3;
    Explorer explorer;
    explorer.explore(model);
    EXPECT_GT(explorer.abandoned(), 0u);
  }
}

TEST(PeerState, SeveralThreadsConnectAlthoughOffersEndAtTheirDeadline) {
  Model model = model_of(2, 2);
  for (ModelProcess& process : model) process.deadlines_left = 1;
  Explorer explorer;
  explorer.explore(model);
  EXPECT_GT(explorer.models(), 1000u);
  EXPECT_GT(explorer.abandoned(), 0u);
}

}  // namespace
}  // namespace cariama::internal
