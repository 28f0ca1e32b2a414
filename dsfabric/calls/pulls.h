// READs the buffers of other processes on which calls run: see buffer_pull.h.
#ifndef CARIAMA_DSFABRIC_CALLS_PULLS_H_
#define CARIAMA_DSFABRIC_CALLS_PULLS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/buffer_pull.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/awaited_transfers.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"

namespace cariama::internal {

// Thread-safe.
class Pulls {
 public:
  // All arguments must outlive this object.
  Pulls(const FabricJob& job, FabricMemory& memory, Workers& workers, CallCounts& counts,
        CallSender& sender, Answers& answers)
      : job_(job),
        memory_(memory),
        counts_(counts),
        sender_(sender),
        answers_(answers),
        reads_(job, workers) {}
  Pulls(const Pulls&) = delete;
  Pulls& operator=(const Pulls&) = delete;

  // READs `source` of process `rank`, and runs `function` on the buffer. Blocks until `function`
  // has returned. Throws if the buffer does not arrive; exceptions of `function` pass through.
  void run(uint32_t rank, const RemoteMemoryLocator& source, PulledFunction& function);
  // As run(), but returns when the READ has begun. When the buffer has arrived, another thread runs
  // `function` and answers the call.
  void run_later(IncomingCall& call, uint32_t rank, const RemoteMemoryLocator& source,
                 std::unique_ptr<PulledFunction> function);

  // See AwaitedTransfers::run_ended() and stop().
  size_t run_arrived() { return reads_.run_ended(); }
  void stop() { reads_.stop(); }

 private:
  // A READ of a buffer in progress, and the function to run on the buffer. Both belong to a call
  // that another process sent.
  struct Pull final : AwaitedTransfer {
    explicit Pull(Pulls& owner) : pulls(owner) {}
    ~Pull() override;
    [[nodiscard]] bool ended() override;
    void finish() override;
    void drop(const absl::Status&) override {}  // the caller learns that this process has left
    void run_function();

    Pulls& pulls;
    uint32_t rank = 0;
    RDMAMemory buffer;
    uint64_t size = 0;
    Synchronizer done;
    Connection* connection = nullptr;  // nullptr: the buffer is of this process
    std::unique_ptr<PulledFunction> function;
    std::optional<NotifyTarget> notify;
    std::optional<IncomingCall> outcome;  // set when the function has run
  };

  // Starts the READ. Blocks only while it makes the connection or while the send queue is full.
  // Throws if it cannot be started.
  [[nodiscard]] std::unique_ptr<Pull> begin(uint32_t rank, const RemoteMemoryLocator& source);

  const FabricJob& job_;
  FabricMemory& memory_;
  CallCounts& counts_;
  CallSender& sender_;
  Answers& answers_;
  // Apart from the fabric's other transfers: functions of calls run in the thread of these, and may
  // wait for the others.
  AwaitedTransfers reads_;
  std::atomic<bool> running_{false};  // a function of run_later() runs: one at a time does
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_PULLS_H_
