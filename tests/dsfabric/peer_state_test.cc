// The state machine of a peer: each transition, and two processes that run it against each other in
// every order.
#include "dsfabric/peers/peer_state.h"

#include <array>
#include <map>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using A = PeerAction;
using E = PeerEvent;
using S = PeerState;

constexpr std::array kStates = {S::kUnconnected, S::kOffering,  S::kConfirming,
                                S::kAnswered,    S::kConnected, S::kFailed};
constexpr std::array kEvents = {
    E::kConnect,        E::kOfferFailed,     E::kAnswer,        E::kAnswerAccepted, E::kConfirmed,
    E::kOfferFromLower, E::kOfferFromHigher, E::kOfferAccepted, E::kReady,          E::kFailure};

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

// One of two processes, with one thread that wants the connection. The broker of a process handles
// one request at a time, in any thread.
struct ModelProcess {
  enum Thread { kIdle, kOffers, kRefused, kWaits, kConfirms, kDone };
  enum Request { kNoRequest, kOffer, kReady };
  enum Reply { kNoReply, kAnswer, kRefusal, kReadyReceived };

  S state = S::kUnconnected;
  Thread thread = kIdle;
  Request request = kNoRequest;  // sent by the thread, not yet handled by the other process
  Reply reply = kNoReply;        // to the thread's request
  int adopted = -1;              // the rank whose offer the queue pairs belong to
  int notices = 0;               // number of times that death notices were sent
  int failures_left = 0;         // offers that may still fail

  friend auto operator<=>(const ModelProcess&, const ModelProcess&) = default;
};

using Model = std::array<ModelProcess, 2>;

class Explorer {
 public:
  // Takes every order of steps from `model`.
  void explore(const Model& model) {
    if (!seen_.insert(model).second || ::testing::Test::HasFailure()) return;
    bool any = false;
    for (size_t rank = 0; rank < 2; ++rank) {
      any = take(model, rank, &Explorer::advance_thread) || any;
      any = take(model, rank, &Explorer::answer_request) || any;
      any = take(model, rank, &Explorer::fail_offer) || any;
    }
    if (!any) end(model);
  }
  [[nodiscard]] size_t models() const { return seen_.size(); }
  [[nodiscard]] size_t ends() const { return ends_; }

 private:
  bool take(Model model, size_t rank, bool (Explorer::*step)(Model&, size_t)) {
    if (!(this->*step)(model, rank)) return false;
    explore(model);
    return true;
  }

  static A apply(ModelProcess& process, E event) {
    const PeerStep step = peer_step(process.state, event);
    EXPECT_NE(step.action, A::kReject) << "event " << static_cast<int>(event);
    process.state = step.next;
    if (step.action == A::kSendDeathNotices) ++process.notices;
    return step.action;
  }

  bool advance_thread(Model& model, size_t rank) {
    ModelProcess& self = model[rank];
    const auto reply = std::exchange(self.reply, ModelProcess::kNoReply);
    switch (self.thread) {
      case ModelProcess::kIdle: {
        const A action = apply(self, E::kConnect);
        if (action == A::kOffer) {
          self.thread = ModelProcess::kOffers;
          self.request = ModelProcess::kOffer;
        } else {
          // kNone: connected; kReportFailure: the thread returns the failure.
          self.thread = action == A::kWait ? ModelProcess::kWaits : ModelProcess::kDone;
        }
        return true;
      }
      case ModelProcess::kOffers:
        if (reply == ModelProcess::kNoReply) return false;
        if (reply == ModelProcess::kRefusal) {
          self.thread = ModelProcess::kRefused;
          return true;
        }
        EXPECT_EQ(apply(self, E::kAnswer), A::kConnectQueuePairs);
        self.adopted = static_cast<int>(rank);
        EXPECT_EQ(apply(self, E::kAnswerAccepted), A::kConfirm);
        self.thread = ModelProcess::kConfirms;
        self.request = ModelProcess::kReady;
        return true;
      case ModelProcess::kRefused:
        // The thread waits for the peer's offer for a short time, which may end before it comes.
        apply(self, E::kOfferFailed);
        self.thread = ModelProcess::kIdle;
        return true;
      case ModelProcess::kWaits:
        if (is_connecting(self.state)) return false;
        self.thread = ModelProcess::kIdle;
        return true;
      case ModelProcess::kConfirms:
        if (reply == ModelProcess::kNoReply) return false;
        apply(self, E::kConfirmed);
        self.thread = ModelProcess::kDone;
        return true;
      case ModelProcess::kDone:
        break;
    }
    return false;
  }

  // The broker of `rank` handles the other process's request.
  bool answer_request(Model& model, size_t rank) {
    ModelProcess& self = model[rank];
    ModelProcess& other = model[1 - rank];
    const auto request = std::exchange(other.request, ModelProcess::kNoRequest);
    if (request == ModelProcess::kNoRequest) return false;
    if (request == ModelProcess::kReady) {
      EXPECT_EQ(apply(self, E::kReady), A::kSendDeathNotices);
      other.reply = ModelProcess::kReadyReceived;
      return true;
    }
    const A action = apply(self, rank == 1 ? E::kOfferFromLower : E::kOfferFromHigher);
    if (action == A::kRefuseOffer) {
      other.reply = ModelProcess::kRefusal;
      return true;
    }
    EXPECT_EQ(action, A::kConnectQueuePairs);
    EXPECT_EQ(self.adopted, -1) << "queue pairs are created twice";
    self.adopted = static_cast<int>(1 - rank);
    apply(self, E::kOfferAccepted);
    other.reply = ModelProcess::kAnswer;
    return true;
  }

  // The offer does not reach the other process, and the thread tries again.
  bool fail_offer(Model& model, size_t rank) {
    ModelProcess& self = model[rank];
    if (self.failures_left == 0 || self.request != ModelProcess::kOffer) return false;
    --self.failures_left;
    self.request = ModelProcess::kNoRequest;
    apply(self, E::kOfferFailed);
    self.thread = ModelProcess::kIdle;
    return true;
  }

  void end(const Model& model) {
    ++ends_;
    EXPECT_EQ(model[0].adopted, model[1].adopted) << "queue pairs of different offers";
    for (const ModelProcess& process : model) {
      EXPECT_EQ(process.state, S::kConnected);
      EXPECT_EQ(process.thread, ModelProcess::kDone);
      EXPECT_EQ(process.notices, 1);
    }
  }

  std::set<Model> seen_;
  size_t ends_ = 0;
};

TEST(PeerState, BothConnectInEveryOrder) {
  Explorer explorer;
  explorer.explore(Model{});
  EXPECT_GT(explorer.models(), 20u);
  EXPECT_GE(explorer.ends(), 2u);  // either offer may count
}

TEST(PeerState, OneConnectsInEveryOrder) {
  for (const size_t rank : {0, 1}) {
    Model model;
    model[1 - rank].thread = ModelProcess::kDone;
    Explorer explorer;
    explorer.explore(model);
    EXPECT_EQ(explorer.ends(), 1u);
  }
}

TEST(PeerState, OffersThatFailAreRepeated) {
  Model model;
  for (ModelProcess& process : model) process.failures_left = 2;
  Explorer explorer;
  explorer.explore(model);
  EXPECT_GT(explorer.models(), 100u);
}

}  // namespace
}  // namespace cariama::internal
