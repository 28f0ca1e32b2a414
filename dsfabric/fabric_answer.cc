#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "dsfabric/internal/fabric_core.h"
#include "dtutils/error.h"

namespace cariama::internal {

// ---- Where a call was run -----------------------------------------------------------------------

void FabricCore::report_exception(uint32_t from, const IncomingCall& call) {
  std::fprintf(stderr, "cariama: rank %u: a call from %s threw %s: %s\n", rank_,
               label(from).c_str(), call.error_type.c_str(), call.error_text.c_str());
}

// Sends the outcome of a call to its caller. If the result is too long for a message, sends an
// error that says so.
void FabricCore::answer(uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
                        const std::string& result) {
  if (wanted == nullptr) {
    if (call.outcome == CallOutcome::kThrew) report_exception(to, call);
    return;
  }
  const NotifyTarget& target = *wanted;
  if (target.key != 0) {
    const RemoteMemoryLocator word{target.handle, sizeof(uint64_t), {target.key}, to, 0};
    if (to == rank_) {
      std::atomic_ref(*reinterpret_cast<uint64_t*>(word.address))
          .store(1 + static_cast<uint64_t>(call.outcome), std::memory_order_release);
    } else if (auto connected = connection_of_this_thread(to); connected.ok()) {
      static_cast<void>(transfer(**connected, [&](Connection& connection) {
        return connection.write_outcome(call.outcome, word);
      }));
    }
    // An outcome word has no room for the exception's text, so print it here.
    if (call.outcome == CallOutcome::kThrew) report_exception(to, call);
    return;
  }
  const uint64_t handle = target.handle;
  if (call.outcome == CallOutcome::kDone && answer_in_slot(to, handle, result)) return;
  const auto send_answer = [&](CallOutcome outcome, const std::string& type,
                               const std::string& text, const std::string& bytes) {
    const auto complete = make_call(
        [handle, outcome](const std::string& type, const std::string& text,
                          const std::string& bytes) {
          FabricCore::running()->complete(handle, outcome, type, text,
                                          std::as_bytes(std::span(bytes)));
        },
        type, text, bytes);
    OutgoingCall out = OutgoingCall::of(complete);
    out.is_answer = true;
    return send(to, kNoThread, out);
  };
  absl::Status sent = send_answer(call.outcome, call.error_type, call.error_text, result);
  if (absl::IsInvalidArgument(sent)) {
    sent = send_answer(
        CallOutcome::kThrew, "cariama::ResultTooLong",
        "the result takes " + std::to_string(result.size()) +
            (to == rank_ ? " bytes, more than the " + std::to_string(CallHeader::kMaxBytes) +
                               " of the longest call"
                         : " bytes, more than a receive unit: raise "
                           "receive_unit_bytes"),
        "");
  }
  if (!sent.ok() && !leaving_.load(std::memory_order_acquire) && peer_status(to).ok()) {
    std::fprintf(stderr, "cariama: rank %u could not answer %s: %s\n", rank_, label(to).c_str(),
                 std::string(sent.message()).c_str());
  }
}

// An answer in a slot counts as a begun call until the caller has taken it, like the message that
// it replaces. So finalize() does not end while a result has not been taken.
bool FabricCore::answer_in_slot(uint32_t to, uint64_t handle, const std::string& result) {
  const uint32_t slot = PendingCalls::slot_of(handle);
  Peer& peer = *peers_[to];
  if (slot == 0 || slot > AnswerSlots::kCount || to == rank_ ||
      peer.state.load(std::memory_order_acquire) != PeerState::kConnected) {
    return false;
  }
  AnswerSlot* const slots = peer.connections.front()->peer_answers();
  if (slots == nullptr) return false;
  peer.begun.fetch_add(1, std::memory_order_seq_cst);
  if (slots[slot - 1].answer(handle, std::as_bytes(std::span(result)))) return true;
  peer.ended.fetch_add(1, std::memory_order_seq_cst);
  return false;
}

// ---- Where it was called ------------------------------------------------------------------------

void FabricCore::complete(uint64_t handle, CallOutcome outcome, const std::string& type,
                          const std::string& text, std::span<const std::byte> result) {
  const uint32_t from = running_source();
  std::unique_ptr<PendingCall> call = pending_.take(handle, from);
  if (call == nullptr) return;  // the peer was considered failed before
  absl::Status status;
  switch (outcome) {
    case CallOutcome::kDone:
      break;
    case CallOutcome::kThrew:
      status = make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                          "the call threw " + type + " at " + label(from) + ": " + text);
      break;
    case CallOutcome::kMalformed:
      status = make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                          label(from) + " found the arguments of the call malformed");
      break;
    case CallOutcome::kUnknown:
    default:
      status = make_error(absl::StatusCode::kUnimplemented, ErrorScope::kOperation,
                          label(from) + " has no function with the id of the call");
      break;
  }
  call->complete(status, result);
}

// Returns the answer slots for results from `rank`; nullptr if results from there come by messages.
AnswerSlots* FabricCore::answers_from(uint32_t rank) {
  if (rank == rank_ || rank >= size_) return nullptr;
  Peer& peer = *peers_[rank];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kConnected) return nullptr;
  Connection& connection = *peer.connections.front();
  // If this process can store into the peer's memory, the peer can store into this process's
  // memory.
  return connection.peer_answers() != nullptr ? &connection.answers() : nullptr;
}

template <typename Function>
void FabricCore::for_answers(Function&& function) {
  if (!pending_.any_in_slots()) return;
  for (const auto& peer : peers_) {
    if (peer->state.load(std::memory_order_acquire) != PeerState::kConnected ||
        peer->rank == rank_) {
      continue;
    }
    function(*peer, peer->connections.front()->answers());
  }
}

size_t FabricCore::take_answers(PollerId poller) {
  size_t count = 0;
  for_answers([&](Peer& peer, AnswerSlots& answers) {
    count += answers.take(poller, [&](const AnswerSlots::Answer& answer) {
      if (answer.handle == 0) {
        reject(peer.rank, "its answer slot holds the handle of another call");
      } else {
        FabricCore* const outer = running();
        const uint32_t outer_source = running_source();
        set_running(this, peer.rank);
        complete(answer.handle, CallOutcome::kDone, {}, {},
                 std::span(answer.result).first(answer.bytes));
        set_running(outer, outer_source);
      }
      peer.ended.fetch_add(1, std::memory_order_seq_cst);
    });
  });
  if (count != 0) notify_waiters();
  return count;
}

void FabricCore::start_polling_answers() {
  for_answers([](Peer&, AnswerSlots& answers) { answers.start_polling(this_poller()); });
}

// Results that arrive from now on come by messages. Results that arrived before are taken here.
void FabricCore::stop_polling_answers() {
  for_answers([](Peer&, AnswerSlots& answers) { answers.stop_polling(this_poller()); });
  static_cast<void>(take_answers(this_poller()));
}

}  // namespace cariama::internal
