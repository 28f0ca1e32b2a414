// The interface by which a layer above (riutils) delivers calls to threads over a transport path of
// its own. The interface defines how the fabric runs these calls, how senders wake the threads that
// run them, and how the end of a call is reported.
//
// A layer has one CallSourceRegistry per fabric. Each process creates it on first use: by the
// layer's first call of this process, or by the first request of a peer. The fabric asks it for one
// CallSource per worker.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CALL_SOURCE_H_
#define CARIAMA_DSFABRIC_INTERNAL_CALL_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/internal/call_doorbells.h"
#include "dsfabric/send_call.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/doorbell.h"
#include "dtutils/remote_doorbell.h"
#include "dtutils/synchronizer.h"

namespace cariama {

// The incoming calls to one worker. All functions are called by one thread at a time: the thread
// that currently runs that worker's calls.
class CARIAMA_DSFABRIC_EXPORT CallSource {
 public:
  virtual ~CallSource() = default;
  // Runs at most `most` calls that have arrived. Never blocks. Returns the number of calls that
  // ran.
  virtual size_t run(size_t most) = 0;
  // The doorbells of the senders whose calls arrive by plain WRITEs. The fabric arms them before
  // the thread sleeps; the layer adds and removes them, in run().
  [[nodiscard]] RemoteSleepers& remote_sleepers() { return remote_sleepers_; }

 private:
  RemoteSleepers remote_sleepers_;
};

// A layer's call sources, one for each worker of this process. Thread-safe.
class CARIAMA_DSFABRIC_EXPORT CallSourceRegistry {
 public:
  virtual ~CallSourceRegistry() = default;
  // Returns the source of worker `index` of this process. The source lives as long as this object.
  [[nodiscard]] virtual CallSource& source(ThreadIndex index) = 0;
  // Handles an event that process `rank` sent by post_call_event(). Called in a thread that must
  // not block.
  virtual void event(Rank rank, uint32_t value) = 0;
  // Process `rank` is considered failed, and every operation in flight to it has failed.
  virtual void peer_died(Rank rank) = 0;
  // For termination detection: begun() is the amount of work accepted for `rank`, ended() the
  // amount of work from `rank` that has ended, and of work for `rank` that is lost although that
  // process lives, both in one unit (calls, or bytes). Both only grow.
  // Summed over all processes, ended never exceeds begun.
  [[nodiscard]] virtual uint64_t begun(Rank rank) = 0;
  [[nodiscard]] virtual uint64_t ended(Rank rank) = 0;
  // Called when Fabric::finalize() has detected that all work has ended: from now on no call is
  // accepted. Threads may still poll for calls.
  virtual void finalized() = 0;
  // Called when the fabric closes: ends the layer's threads. Other threads may still run calls.
  virtual void stop() = 0;
  // Called after stop(), when no thread runs calls any more: releases the state of the
  // connections, which are destroyed next. Also called if the registry was created after stop()
  // was.
  virtual void disconnect() = 0;
};

namespace internal {

// Returns the fabric's call source registry. Creates it by `make` if there is none.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT CallSourceRegistry& call_source_registry(
    Fabric& fabric, std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric));

// While an object of this class lives, the thread that created it counts as running a call from
// process `rank`: running_fabric() and running_source() return the fabric and `rank`.
class CARIAMA_DSFABRIC_EXPORT RunningCalls {
 public:
  RunningCalls(Fabric& fabric, Rank rank);
  ~RunningCalls();
  RunningCalls(const RunningCalls&) = delete;
  RunningCalls& operator=(const RunningCalls&) = delete;

 private:
  Fabric* const outer_fabric_;
  const Rank outer_rank_;
};

// Registers a call that waits for an answer from process `rank`, and returns the handle for its
// NotifyTarget. `ended` is called once, in the thread that receives the answer or detects the
// failure. Its argument `result`, the result in the answer, is valid during that call.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t
expect_answer(Fabric& fabric, Rank rank,
              std::function<void(const absl::Status&, std::span<const std::byte> result)> ended);
// Ends the calls to process `rank` that wait for an answer and that `router` was to forward
// (CallEnd::expect).
CARIAMA_DSFABRIC_EXPORT void fail_routed_calls(Fabric& fabric, Rank rank, Rank router,
                                               const absl::Status& status);
// Removes the registration of expect_answer(). Returns false if the answer or the failure came
// before.
CARIAMA_DSFABRIC_EXPORT bool forget_answer(Fabric& fabric, Rank rank, uint64_t handle);
// The layer's channel `channel` (not 0) is about to carry the call that waits for an answer under
// this handle (OutgoingCall::awaited).
CARIAMA_DSFABRIC_EXPORT void assign_to_channel(Fabric& fabric, uint64_t handle, uint64_t channel);
// The channel to process `rank` has failed: ends the calls that were assigned to it, and that wait
// for an answer, with an error. Call it without a lock: a completion may send calls.
CARIAMA_DSFABRIC_EXPORT void fail_calls_of_channel(Fabric& fabric, Rank rank, uint64_t channel,
                                                   const absl::Status& why);
// Sends the outcome of `call` to process `to`, which sent the call. Does nothing if `wanted` is
// nullptr, except to print an exception.
CARIAMA_DSFABRIC_EXPORT void answer_call(Fabric& fabric, Rank to, const NotifyTarget* wanted,
                                         const IncomingCall& call, const std::string& result);
// Counts and reports an invalid message from process `rank`.
CARIAMA_DSFABRIC_EXPORT void reject_call(Fabric& fabric, Rank rank, std::string_view why);

// Sends an event of 31 bits to the call source registry of process `rank`, ordered after everything
// that worker `index` has posted on its connection to that process. Never blocks. Returns false if
// there is no credit now. Error: the connection's status.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<bool> post_call_event(Fabric& fabric,
                                                                           Rank rank,
                                                                           ThreadIndex index,
                                                                           uint32_t value);
// Wakes the thread that runs the calls of worker `index` of process `rank` (which may be this
// process), so that it re-checks for calls. Result and errors as post_call_event().
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<bool> wake_worker(Fabric& fabric, Rank rank,
                                                                       ThreadIndex index);
// Returns the doorbells of the threads that run calls, in registered memory, kDoorbellStride bytes
// apart: one for the calls of each worker, then one for all helper threads. A process that has
// mapped them (QueuePair::direct_access) wakes a sleeping thread by one system call, without an
// intermediate thread.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const RDMAMemory& doorbells(Fabric& fabric);
// Returns the doorbell for the calls of worker `index`, of the process whose doorbells are mapped
// at `mapped`.
[[nodiscard]] inline Doorbell& call_doorbell(std::byte* mapped, ThreadIndex index) {
  return reinterpret_cast<CallDoorbells*>(mapped + index * kDoorbellStride)->doorbell;
}
// Rings for a call to worker `index` of a process of `threads` workers. The thread that runs the
// worker's calls has armed the worker's doorbell. Helper threads sleep on the doorbell of all
// helpers.
inline void ring_for_calls(std::byte* mapped, uint32_t threads, ThreadIndex index) {
  if (call_doorbell(mapped, index).ring()) [[unlikely]]
    call_doorbell(mapped, threads).ring();
}
// Makes every waiting thread of this process re-check its condition. Call it after a Synchronizer
// was counted down.
CARIAMA_DSFABRIC_EXPORT void tell_waiters(Fabric& fabric);
// As Fabric::wait, for a condition that plain WRITEs make true: polls and does not sleep.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT bool wait_polling(Fabric& fabric,
                                                        const std::function<bool()>& condition,
                                                        Deadline deadline);
// Returns the allocator on the NUMA node of worker `index`, or on any node if the worker's node is
// not known yet.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::shared_ptr<RDMAAllocator>> worker_memory(
    Fabric& fabric, ThreadIndex index);

}  // namespace internal
}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_INTERNAL_CALL_SOURCE_H_
