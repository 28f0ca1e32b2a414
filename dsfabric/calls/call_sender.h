// Sends calls and transfers of this process.
#ifndef CARIAMA_DSFABRIC_CALLS_CALL_SENDER_H_
#define CARIAMA_DSFABRIC_CALLS_CALL_SENDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/call_options.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/fabric_statistics.h"
#include "dsfabric/peers/connection.h"
#include "dsfabric/peers/peer_table.h"
#include "dsfabric/peers/ports.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// The interface by which the sender uses the part above it, which runs calls.
class CallRunner {
 public:
  // Takes a message that this process sends to itself. A call to the process runs immediately, in
  // the calling thread.
  virtual void deliver(ArrivedMessage* message) = 0;
  // Runs calls to worker `index`, the calling thread, unless helper threads run them.
  virtual size_t process_own_calls(uint32_t index, size_t most) = 0;
  // Does the work of the service threads once.
  virtual size_t progress() = 0;

 protected:
  ~CallRunner() = default;
};

// Thread-safe. Holds no lock.
class CallSender {
 public:
  // All arguments must outlive this object.
  CallSender(const FabricJob& job, Ports& ports, PeerTable& peers, Workers& workers,
             CallCounts& counts, CallRunner& runner)
      : job_(job),
        ports_(ports),
        peers_(peers),
        workers_(workers),
        counts_(counts),
        runner_(runner) {}
  CallSender(const CallSender&) = delete;
  CallSender& operator=(const CallSender&) = delete;

  // Sends a call to worker `destination` (a global id), or, with kService, to the service of
  // `rank`. Never blocks inside of a call. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT
  // (too long), UNAVAILABLE (the peer is dead, or the fabric was finalized), RESOURCE_EXHAUSTED
  // (kFail; or deferred_bytes is used up, unless the call is_unlimited).
  [[nodiscard]] absl::Status send(uint32_t rank, uint32_t destination, const OutgoingCall& call,
                                  WhenFull when_full = WhenFull::kRetry);

  [[nodiscard]] bool is_connected(uint32_t rank) const { return peers_.connected(rank) != nullptr; }
  [[nodiscard]] absl::StatusOr<Connection*> connection_of_this_thread(uint32_t rank) {
    return peers_.connection(rank, workers_.this_worker());
  }
  // Posts a transfer by `post` (Connection::write or read). Blocks while the send queue is full.
  template <typename Post>
  [[nodiscard]] absl::Status transfer(Connection& connection, Post&& post) {
    Connection::Sent sent = Connection::Sent::kNoCredit;
    static_cast<void>(wait_until(
        [&] {
          sent = post(connection);
          if (sent == Connection::Sent::kNoCredit) connection.poll_sends();
          return sent != Connection::Sent::kNoCredit || peers_.is_failed(connection.rank());
        },
        kForever));
    if (sent == Connection::Sent::kPosted) return absl::OkStatus();
    return transfer_failed(connection);
  }
  // Polls until a transfer to `rank` has counted `done` down, or the process is considered failed.
  // Runs no calls, so it may be used inside of calls.
  [[nodiscard]] absl::Status await_transfer(Connection& connection, Synchronizer& done);

  // Sends an event on the connection of worker `index`: that worker's index, or kCallSourceEvent |
  // 31 bits. Returns false if there is no credit now.
  static constexpr uint32_t kCallSourceEvent = uint32_t{1} << 31;
  [[nodiscard]] absl::StatusOr<bool> post_event(uint32_t rank, uint32_t index, uint32_t immediate);

  void add_to(FabricStatistics& sum) const;

 private:
  [[nodiscard]] absl::Status send_remote(uint32_t rank, const MessageHeader& header,
                                         const OutgoingCall& call, WhenFull when_full);
  // Makes the message of a call to this process, which is to be delivered.
  [[nodiscard]] absl::Status buffer_own(const MessageHeader& header, const OutgoingCall& call,
                                        WhenFull when_full, std::unique_ptr<OwnMessage>& message);
  // Waits until the connection has credit for the message, and runs calls meanwhile.
  [[nodiscard]] absl::StatusOr<Connection::Sent> send_after_wait(Connection& connection,
                                                                 const MessageHeader& header,
                                                                 const OutgoingCall& call);
  // Reserves bytes for a call of this process to itself.
  [[nodiscard]] bool reserve_buffer(const OutgoingCall& call);
  // Returns the error of a transfer that could not be posted, or that has failed.
  [[nodiscard]] absl::Status transfer_failed(Connection& connection);

  const FabricJob& job_;
  Ports& ports_;
  PeerTable& peers_;
  Workers& workers_;
  CallCounts& counts_;
  CallRunner& runner_;

  std::atomic<uint64_t> calls_sent_{0};
  std::atomic<uint64_t> sends_{0};
  std::atomic<uint64_t> credit_waits_{0};
  std::atomic<uint64_t> deferred_{0};
  std::atomic<uint64_t> wakes_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_CALL_SENDER_H_
