#include "dsfabric/calls/call_sender.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "dsfabric/calls/running_call.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dtutils/error.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

constexpr size_t kSendBatch = 32;

// Begins the arrow of a call of this process to itself, and returns its id.
uint64_t begin_own_arrow(uint32_t rank) {
  static std::atomic<uint64_t> calls{0};
  const uint64_t id = trace_arrow_id(~uint64_t{rank}, calls.fetch_add(1));
  trace_arrow_begin("dsfabric", "call", id);
  return id;
}

// Returns the end of the wait of a call with Retry that begins now.
Deadline retry_deadline(const FabricOptions& options) {
  const std::chrono::milliseconds time = options.retry_timeout;
  return ScopedConnectDeadline::earlier_of(time.count() == 0 ? kForever : deadline_after(time));
}

}  // namespace

absl::Status CallSender::send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                              WhenFull when_full) {
  const uint32_t threads = job_.threads();
  if (destination == kService) {
    if (rank >= job_.size()) return no_such_rank(rank, job_.size());
  } else {
    if (destination >= job_.size() * threads) {
      return no_such_thread(destination, job_.size() * threads);
    }
    rank = destination / threads;
  }
  if (job_.lifecycle().is_closed()) return job_.lifecycle().closed_error();
  if (call.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this call is in a library that was loaded after the fabric "
                      "was created",
                      "load the library first");
  }
  if (call.total() - sizeof(CallHeader) > CallHeader::kMaxBytes) [[unlikely]] {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a call of " + std::to_string(call.total() - sizeof(CallHeader)) +
                          " bytes to " + job_.label(rank) + " is longer than any call may be (" +
                          std::to_string(CallHeader::kMaxBytes) + " bytes)",
                      "pass the data by call_buffer with Sync, Async or a target");
  }
  const MessageHeader header{destination == kService ? kService.value() : destination % threads,
                             workers_.this_thread_id()};
  const TraceScope trace("dsfabric", "send", "bytes", call.total());
  counts_.begin(rank);
  absl::Status sent;
  std::unique_ptr<OwnMessage> own;  // of a call to this process
  try {
    sent = rank == job_.rank() ? buffer_own(header, call, when_full, own)
                               : send_remote(rank, header, call, when_full);
  } catch (...) {  // no memory: the call is not accepted
    counts_.end(rank);
    throw;
  }
  if (sent.ok()) {
    calls_sent_.fetch_add(1, std::memory_order_relaxed);
    if (own != nullptr) runner_.deliver(own.release());
  } else {
    counts_.end(rank);
  }
  return sent;
}

absl::Status CallSender::send_remote(uint32_t rank, const MessageHeader& header,
                                     const OutgoingCall& call, WhenFull when_full) {
  auto connected = connection_of_this_thread(rank);
  if (!connected.ok()) return connected.status();
  Connection& connection = **connected;
  if (call.total() > connection.max_call()) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
        "a call of " + std::to_string(call.total()) + " bytes to " + job_.label(rank) +
            " is longer than a receive unit (" + std::to_string(connection.max_call()) + " bytes)",
        "raise receive_unit_bytes, or pass the data by call_buffer with Sync, Async or "
        "a target");
  }
  Connection::Sent sent = connection.send(header, call);
  if (sent == Connection::Sent::kNoCredit) [[unlikely]] {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (when_full == WhenFull::kFail) {
      trace_instant("dsfabric", "refuse: no credit", "rank", rank);
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                        job_.label(rank) + " has no receive unit for a call",
                        "let it run its calls, or use Retry or RetryAsync");
    }
    // Inside a call, do not wait: this call occupies a receive unit that another process may be
    // waiting for, so waiting could deadlock.
    if (when_full == WhenFull::kRetryAsync || this_running_call.fabric != nullptr) {
      if (!ports_.defer(connection, header, call)) {
        return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                          job_.label(rank) + " has no receive unit, and " +
                              std::to_string(job_.options().deferred_bytes) +
                              " bytes of calls are deferred already",
                          "raise deferred_bytes, or send less from inside calls");
      }
      trace_instant("dsfabric", "defer: no credit", "rank", rank);
      deferred_.fetch_add(1, std::memory_order_relaxed);
      sent = Connection::Sent::kPosted;
    } else {
      auto waited = send_after_wait(connection, header, call);
      if (!waited.ok()) return waited.status();
      sent = *waited;
    }
  }
  if (sent == Connection::Sent::kFailed) return transfer_failed(connection);
  sends_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<Connection::Sent> CallSender::send_after_wait(Connection& connection,
                                                             const MessageHeader& header,
                                                             const OutgoingCall& call) {
  const TraceScope trace("dsfabric", "stall: no credit", "rank", connection.rank());
  const uint32_t index = workers_.this_worker();
  Connection::Sent sent = Connection::Sent::kNoCredit;
  const bool in_time = wait_until(
      [&] {
        {
          const ScopedConnectDeadline of_other_calls{ScopedConnectDeadline::Lift()};
          if (job_.options().service_threads == 0) runner_.progress();
          if (index != kNoThread) runner_.process_own_calls(index, kSendBatch);
        }
        sent = connection.send(header, call);
        return sent != Connection::Sent::kNoCredit || peers_.is_failed(connection.rank()) ||
               job_.lifecycle().is_closed();
      },
      retry_deadline(job_.options()));
  if (sent != Connection::Sent::kNoCredit) return sent;
  if (!in_time) return no_room_in_time(job_.label(connection.rank()));
  absl::Status failed = peers_.status(connection.rank());
  return failed.ok() ? job_.lifecycle().closed_error() : failed;
}

absl::Status CallSender::transfer_failed(Connection& connection) {
  const absl::Status status = connection.status();
  if (status.ok()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a transfer to " + job_.label(connection.rank()) +
                          " exceeds its registered memory, or uses memory that is not "
                          "registered with the fabric");
  }
  peers_.fail(connection.rank(), status);
  absl::Status failed = peers_.status(connection.rank());
  return failed.ok() ? status : failed;
}

absl::Status CallSender::await_transfer(Connection& connection, Synchronizer& done) {
  static_cast<void>(wait_until(
      [&] {
        if (done.done()) return true;
        connection.poll_sends();
        // Once the queue pair has failed, polling completes everything in flight with an error.
        // Until then the device may access the memory of the transfer, and the thread that polls
        // its completion `done`.
        if (!connection.status().ok() || peers_.is_failed(connection.rank())) {
          return done.done() || !connection.queue().has_outstanding();
        }
        return done.done();
      },
      kForever));
  return done.done() ? done.status() : transfer_failed(connection);
}

bool CallSender::reserve_buffer(const OutgoingCall& call) {
  const uint64_t bytes = sizeof(MessageHeader) + call.total();
  if (!call.is_unlimited) return workers_.buffered().reserve(bytes);
  workers_.buffered().add(bytes);
  return true;
}

absl::Status CallSender::buffer_own(const MessageHeader& header, const OutgoingCall& call,
                                    WhenFull when_full, std::unique_ptr<OwnMessage>& message) {
  if (!reserve_buffer(call)) [[unlikely]] {
    credit_waits_.fetch_add(1, std::memory_order_relaxed);
    if (when_full != WhenFull::kRetry || this_running_call.fabric != nullptr) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                        "buffered calls of this process take " +
                            std::to_string(job_.options().buffered_bytes) + " bytes already",
                        "raise buffered_bytes, or run the calls in their threads");
    }
    const TraceScope trace("dsfabric", "stall: buffered calls of this process");
    const uint32_t index = workers_.this_worker();
    const bool in_time = wait_until(
        [&] {
          if (index != kNoThread) {
            const ScopedConnectDeadline of_other_calls{ScopedConnectDeadline::Lift()};
            runner_.process_own_calls(index, kSendBatch);
          }
          return reserve_buffer(call);
        },
        retry_deadline(job_.options()));
    if (!in_time) return no_room_in_time(job_.label(job_.rank()));
  }
  try {
    message = std::make_unique<OwnMessage>(sizeof header + call.total(), job_.rank());
  } catch (const std::bad_alloc&) {
    workers_.buffered().release(sizeof header + call.total());
    throw;
  }
  std::memcpy(message->bytes, &header, sizeof header);
  call.write(message->bytes + sizeof header);
  if (trace_enabled()) [[unlikely]]
    message->arrow = begin_own_arrow(job_.rank());
  return absl::OkStatus();
}

absl::StatusOr<bool> CallSender::post_event(uint32_t rank, uint32_t index, uint32_t immediate) {
  auto connected = peers_.connection(rank, index);
  if (!connected.ok()) return connected.status();
  const Connection::Sent sent = (*connected)->wake(immediate);
  if (sent == Connection::Sent::kFailed) return transfer_failed(**connected);
  if (sent == Connection::Sent::kPosted && immediate == index) {
    trace_instant("dsfabric", "wake", "rank", rank);
    wakes_.fetch_add(1, std::memory_order_relaxed);
  }
  return sent == Connection::Sent::kPosted;
}

void CallSender::add_to(FabricStatistics& sum) const {
  sum.calls_sent += calls_sent_.load(std::memory_order_relaxed);
  sum.sends += sends_.load(std::memory_order_relaxed);
  sum.credit_waits += credit_waits_.load(std::memory_order_relaxed);
  sum.deferred += deferred_.load(std::memory_order_relaxed);
  sum.wakes += wakes_.load(std::memory_order_relaxed);
}

}  // namespace cariama::internal
