#include <cstring>
#include <memory>

#include "dsfabric/internal/fabric_core.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr size_t kSendBatch = 32;

}  // namespace

absl::Status FabricCore::send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                              WhenFull when_full) {
  if (destination != kNoThread) {
    if (destination >= size_ * threads_) return no_such_thread(destination, size_ * threads_);
    rank = destination / threads_;
  } else if (rank >= size_) {
    return make_error(
        absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
        "there is no rank " + std::to_string(rank) + ": the job has " + std::to_string(size_));
  }
  if (finalized_.load(std::memory_order_acquire)) {
    return closed_error();
  }
  if (call.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this call is in a library that was loaded after the fabric "
                      "was created",
                      "load the library first");
  }
  if (call.total() - sizeof(CallHeader) > CallHeader::kMaxBytes) [[unlikely]] {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(call.total() - sizeof(CallHeader)) +
                          " bytes to " + label(rank) + " is longer than any call may be (" +
                          std::to_string(CallHeader::kMaxBytes) + " bytes)",
                      "pass the data by call_buffer with Sync, Async or a target");
  }
  const MessageHeader header{destination == kNoThread ? kNoThread : destination % threads_,
                             this_thread_id()};
  Peer& peer = *peers_[rank];
  // Count the call as begun before it can run anywhere: ended never exceeds begun (see finalize()).
  peer.begun.fetch_add(1, std::memory_order_seq_cst);
  absl::Status sent = rank == rank_ ? send_local(header, call, when_full)
                                    : send_remote(peer, header, call, when_full);
  if (sent.ok()) {
    calls_sent_.fetch_add(1, std::memory_order_relaxed);
  } else {
    peer.ended.fetch_add(1, std::memory_order_seq_cst);
  }
  return sent;
}

bool FabricCore::reserve(std::atomic<uint64_t>& used, uint64_t bytes) {
  uint64_t before = used.load(std::memory_order_relaxed);
  do {
    // At least one message is accepted, whatever the limit.
    if (before != 0 && before + bytes > options_.deferred_bytes) return false;
  } while (!used.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return true;
}

bool FabricCore::reserve(std::atomic<uint64_t>& used, const OutgoingCall& call) {
  const uint64_t bytes = sizeof(MessageHeader) + call.total();
  if (!call.is_answer) return reserve(used, bytes);
  used.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

absl::Status FabricCore::send_remote(Peer& peer, const MessageHeader& header,
                                     const OutgoingCall& call, WhenFull when_full) {
  const uint32_t index = this_worker();
  auto connected = connection(peer.rank, index);
  if (!connected.ok()) return connected.status();
  Connection& connection = **connected;
  if (call.total() > connection.max_call()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(call.total()) + " bytes to " + peer.label +
                          " is longer than a receive unit (" +
                          std::to_string(connection.max_call()) + " bytes)",
                      "raise receive_unit_bytes, or pass the data by call_buffer");
  }
  Connection::Sent sent = connection.send(header, call);
  if (sent == Connection::Sent::kNoCredit) [[unlikely]] {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (when_full == WhenFull::kFail) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                        peer.label + " has no receive unit for a call",
                        "let it run its calls, or use Retry or RetryAsync");
    }
    // Inside a call, do not wait: this call occupies a receive unit that another process may be
    // waiting for, so waiting could deadlock.
    if (when_full == WhenFull::kRetryAsync || running() != nullptr) {
      if (!reserve(deferred_bytes_, call)) {
        return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                          peer.label + " has no receive unit, and " +
                              std::to_string(options_.deferred_bytes) +
                              " bytes of calls are deferred already",
                          "raise deferred_bytes, or send less from inside calls");
      }
      connection.defer(header, call);
      deferred_.fetch_add(1, std::memory_order_relaxed);
      peer.port->channel->wake();
      sent = Connection::Sent::kPosted;
    } else {
      static_cast<void>(wait_until([&] {
        if (options_.service_threads == 0) progress();
        if (index != kNoThread) process_own_calls(index, kSendBatch);
        sent = connection.send(header, call);
        return sent != Connection::Sent::kNoCredit ||
               peer.state.load(std::memory_order_acquire) == PeerState::kDead ||
               finalized_.load(std::memory_order_acquire);
      }));
      if (sent == Connection::Sent::kNoCredit) {
        absl::Status dead = peer_status(peer.rank);
        return !dead.ok() ? dead
                          : make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                                       "the fabric was finalized");
      }
    }
  }
  if (sent == Connection::Sent::kFailed) return transfer_failed(connection);
  sends_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status FabricCore::transfer_failed(Connection& connection) {
  const absl::Status status = connection.status();
  if (status.ok()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a transfer to " + label(connection.rank()) +
                          " exceeds its registered memory, or uses memory that is not "
                          "registered with the fabric");
  }
  fail_peer(*peers_[connection.rank()], status);
  absl::Status dead = peer_status(connection.rank());
  return dead.ok() ? status : dead;
}

absl::Status FabricCore::await_transfer(Connection& connection, Synchronizer& done) {
  const Peer& peer = *peers_[connection.rank()];
  static_cast<void>(wait_until([&] {
    if (done.done()) return true;
    connection.poll_sends();
    // Once the queue pair has failed, polling completes everything in flight with an error.
    if (!connection.status().ok() || peer.state.load(std::memory_order_acquire) == PeerState::kDead)
      return done.done() || !connection.awaited();
    return done.done();
  }));
  return done.done() ? done.status() : transfer_failed(connection);
}

absl::Status FabricCore::send_local(const MessageHeader& header, const OutgoingCall& call,
                                    WhenFull when_full) {
  if (!reserve(held_bytes_, call)) [[unlikely]] {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (when_full != WhenFull::kRetry || running() != nullptr) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                        "buffered calls of this process take " +
                            std::to_string(options_.deferred_bytes) + " bytes already",
                        "raise deferred_bytes, or run the calls in their threads");
    }
    const uint32_t index = this_worker();
    static_cast<void>(wait_until([&] {
      if (index != kNoThread) process_own_calls(index, kSendBatch);
      return reserve(held_bytes_, call);
    }));
  }
  auto message = std::make_unique<OwnMessage>(sizeof header + call.total(), rank_);
  std::memcpy(message->bytes, &header, sizeof header);
  call.write(message->bytes + sizeof header);
  deliver(message.release());
  return absl::OkStatus();
}

absl::StatusOr<bool> FabricCore::post_event(uint32_t rank, uint32_t index, uint32_t immediate) {
  auto connected = connection(rank, index);
  if (!connected.ok()) return connected.status();
  const Connection::Sent sent = (*connected)->wake(immediate);
  if (sent == Connection::Sent::kFailed) return transfer_failed(**connected);
  if (sent == Connection::Sent::kPosted && immediate == index) {
    wakes_.fetch_add(1, std::memory_order_relaxed);
  }
  return sent == Connection::Sent::kPosted;
}

}  // namespace cariama::internal
