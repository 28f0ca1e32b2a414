// The state machine of the connection to a peer, without its sockets and queue pairs. Peer
// (peer_table.h) carries out the actions.
//
// The protocol. One process offers: it creates its queue pairs and sends their addresses to the
// peer's broker. The peer creates its own queue pairs, connects them to the offered ones, and
// answers with their addresses. The offering process connects, and confirms by "ready". Only then
// may the peer send. If both processes offer at the same time, the offer of the lower rank counts:
// the lower rank refuses the other offer with an empty answer, and the higher rank answers. The
// offer of the lower rank may fail before it arrives. So a process whose offer was refused waits
// for the peer's offer for a short time, and then repeats its own.
//
// Attempts. An offer may end at its deadline while the peer is stopped. The peer then answers the
// offer when it continues, and no thread waits for that answer. So each process numbers its offers,
// and "ready" names the number of its offer. A process that has answered an attempt, and gets a
// newer offer of the peer or the peer's answer to its own offer, abandons the answered attempt: the
// peer has ended it. A process that has answered, and needs the connection itself, asks the peer
// from time to time whether the attempt still counts.
//
//   state        event             next state   action
//   Unconnected  Connect           Offering     Offer
//   Unconnected  OfferFromLower    Unconnected  ConnectQueuePairs
//   Unconnected  OfferFromHigher   Unconnected  ConnectQueuePairs
//   Unconnected  OfferAccepted     Answered     -
//   Offering     Connect           Offering     Wait
//   Offering     OfferFailed       Unconnected  -
//   Offering     Answer            Offering     ConnectQueuePairs
//   Offering     AnswerAccepted    Confirming   Confirm
//   Offering     OfferFromLower    Offering     ConnectQueuePairs
//   Offering     OfferFromHigher   Offering     RefuseOffer
//   Offering     OfferAccepted     Answered     -
//   Confirming   Connect           Confirming   Wait
//   Confirming   OfferFromLower    Confirming   RefuseOffer
//   Confirming   OfferFromHigher   Confirming   RefuseOffer
//   Confirming   Confirmed         Connected    SendDeathNotices
//   Answered     Connect           Answered     Wait
//   Answered     Answer            Answered     ConnectQueuePairs
//   Answered     AnswerAccepted    Confirming   Confirm
//   Answered     OfferFailed       Answered     -
//   Answered     OfferFromLower    Answered     RefuseOffer
//   Answered     OfferFromHigher   Answered     RefuseOffer
//   Answered     NewerOffer        Answered     ConnectQueuePairs
//   Answered     OfferAccepted     Answered     -
//   Answered     AttemptEnded      Unconnected  -
//   Answered     Ready             Connected    SendDeathNotices
//   Connected    Connect           Connected    -
//   Connected    OfferFailed       Connected    -
//   Connected    OfferFromLower    Connected    RefuseOffer
//   Connected    OfferFromHigher   Connected    RefuseOffer
//   Failed       Failure           Failed       -
//   Failed       OfferFailed       Failed       -
//   Failed       any other         Failed       ReportFailure
//   not Failed   Failure           Failed       SpreadFailure
//   all other pairs                unchanged    Reject
//
// OfferFailed in Answered or Connected: the offer of this process failed, or was refused, after
// this process had answered the peer's offer. The peer's offer then counts.
//
// Answer in Answered: the peer was not offering when it answered. So the offer of the peer that
// this process has answered had ended.
#ifndef CARIAMA_DSFABRIC_PEERS_PEER_STATE_H_
#define CARIAMA_DSFABRIC_PEERS_PEER_STATE_H_

#include <cstdint>

namespace cariama::internal {

enum class PeerState : uint8_t {
  kUnconnected,
  kOffering,    // a thread of this process offers queue pairs, and waits for the peer's answer
  kConfirming,  // the queue pairs are connected; this process waits for the end of its confirmation
  kAnswered,    // the queue pairs are connected; this process waits for the peer's confirmation
  kConnected,
  kFailed,  // final
};

enum class PeerEvent : uint8_t {
  kConnect,          // a thread of this process needs the connection
  kOfferFailed,      // this process's offer was not made, did not arrive or was refused: repeatable
  kAnswer,           // the peer has answered this process's offer with its queue pairs
  kAnswerAccepted,   // this process's queue pairs are connected to those of the answer
  kConfirmed,        // the peer has received the confirmation
  kOfferFromLower,   // a peer of a lower rank offers
  kOfferFromHigher,  // a peer of a higher rank offers
  kNewerOffer,       // the peer offers again; its attempt that this process has answered has ended
  kAttemptEnded,     // the peer says that its attempt that this process has answered has ended
  kOfferAccepted,    // this process's queue pairs are connected to those of the peer's offer
  kReady,            // the peer has confirmed
  kFailure,          // the peer has died, or cannot be reached any more
};

enum class PeerAction : uint8_t {
  kNone,
  kOffer,              // create queue pairs and offer them
  kWait,               // wait until the state has left the connecting states, then repeat the event
  kConnectQueuePairs,  // connect queue pairs to those of the peer
  kConfirm,            // send "ready"
  kSendDeathNotices,   // send the peer a notice about each failed process
  kRefuseOffer,        // answer without queue pairs: another offer counts
  kReportFailure,      // return the reason of the peer's failure
  kSpreadFailure,      // end all operations to the peer, and notify all connected processes
  kReject,             // return an error: the peer has violated the protocol
};

struct PeerStep {
  PeerState next;
  PeerAction action;
  friend constexpr bool operator==(const PeerStep&, const PeerStep&) = default;
};

// Returns true between the first offer and its success or failure.
[[nodiscard]] constexpr bool is_connecting(PeerState state) {
  return state == PeerState::kOffering || state == PeerState::kConfirming ||
         state == PeerState::kAnswered;
}

// Returns the next state and the action of the table at the head of this file.
[[nodiscard]] constexpr PeerStep peer_step(PeerState state, PeerEvent event) {
  using enum PeerEvent;
  using enum PeerAction;
  using S = PeerState;
  if (state == S::kFailed) {
    return {state, event == kFailure || event == kOfferFailed ? kNone : kReportFailure};
  }
  switch (event) {
    case kConnect:
      if (state == S::kUnconnected) return {S::kOffering, kOffer};
      return {state, is_connecting(state) ? kWait : kNone};
    case kOfferFailed:
      if (state == S::kOffering) return {S::kUnconnected, kNone};
      if (state == S::kAnswered || state == S::kConnected) return {state, kNone};
      break;
    case kAnswer:
      if (state == S::kOffering || state == S::kAnswered) return {state, kConnectQueuePairs};
      break;
    case kAnswerAccepted:
      if (state == S::kOffering || state == S::kAnswered) return {S::kConfirming, kConfirm};
      break;
    case kConfirmed:
      if (state == S::kConfirming) return {S::kConnected, kSendDeathNotices};
      break;
    case kOfferFromHigher:
      return {state, state == S::kUnconnected ? kConnectQueuePairs : kRefuseOffer};
    case kOfferFromLower:
      if (state == S::kUnconnected || state == S::kOffering) return {state, kConnectQueuePairs};
      return {state, kRefuseOffer};
    case kNewerOffer:
      if (state == S::kAnswered) return {state, kConnectQueuePairs};
      break;
    case kAttemptEnded:
      if (state == S::kAnswered) return {S::kUnconnected, kNone};
      break;
    case kOfferAccepted:
      if (state == S::kUnconnected || state == S::kOffering || state == S::kAnswered) {
        return {S::kAnswered, kNone};
      }
      break;
    case kReady:
      if (state == S::kAnswered) return {S::kConnected, kSendDeathNotices};
      break;
    case kFailure:
      return {S::kFailed, kSpreadFailure};
  }
  return {state, kReject};
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_PEER_STATE_H_
