// For layers above that bring calls to threads by a way of their own (riutils): how these calls are
// run by whoever runs a thread's calls, how their threads sleep, and how their ends are told.
//
// A layer has one CallBringer per fabric, made on first use in whichever process comes to it first,
// by a call of its own or by a peer's. The fabric asks it for a CallSource per worker.
#ifndef CARIAMA_DSFABRIC_CALL_SOURCE_H_
#define CARIAMA_DSFABRIC_CALL_SOURCE_H_

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
#include "dsfabric/send_call.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

// Calls to one worker. All functions by one thread at a time: whoever runs that worker's calls.
class CARIAMA_DSFABRIC_EXPORT CallSource {
 public:
  virtual ~CallSource() = default;
  // Runs calls that have arrived, `most` at most. Never waits. Returns how many.
  virtual size_t run(size_t most) = 0;
  // The worker's calls are about to be waited for asleep: tells all who may bring some that they
  // have to wake it. run() is called once more afterwards.
  virtual void announce_sleep() = 0;
  // Whether, run() having found nothing since, nobody failed to hear of it.
  [[nodiscard]] virtual bool may_sleep() = 0;
};

// Thread-safe.
class CARIAMA_DSFABRIC_EXPORT CallBringer {
 public:
  virtual ~CallBringer() = default;
  // Of worker `index` of this process. Lives as long as this object.
  [[nodiscard]] virtual CallSource& source(uint32_t index) = 0;
  // An event that post_call_event() sent in process `rank`. In a thread that must not block.
  virtual void event(uint32_t rank, uint32_t value) = 0;
  // That process is dead, and all that was under way to it has failed.
  virtual void peer_died(uint32_t rank) = 0;
  // For the detection of termination, in any unit: what was accepted for `rank` and what came from
  // it and is over. Grow only; never more over than begun, all processes taken together.
  [[nodiscard]] virtual uint64_t begun(uint32_t rank) = 0;
  [[nodiscard]] virtual uint64_t over(uint32_t rank) = 0;
  // Fabric::finalize() has seen everything end: no call is accepted any more. Threads may still
  // look for calls.
  virtual void finalized() = 0;
  // The fabric closes: ends threads, returns what belongs to connections.
  virtual void stop() = 0;
};

namespace internal {

// The fabric's bringer, made by `make` if there is none.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT CallBringer& call_bringer(
    Fabric& fabric, std::unique_ptr<CallBringer> (*make)(Fabric& fabric));

// While it lives, the calling thread runs calls of process `rank` (running_fabric(),
// running_source()).
class CARIAMA_DSFABRIC_EXPORT RunningCalls {
 public:
  RunningCalls(Fabric& fabric, uint32_t rank);
  ~RunningCalls();
  RunningCalls(const RunningCalls&) = delete;
  RunningCalls& operator=(const RunningCalls&) = delete;

 private:
  FabricCore* core_;
  uint32_t rank_;
};

// The handle for a call's NotifyTarget: `done` is counted down when process `rank` answers, with
// `receiver` filled before; or fails with the process.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t expect_answer(
    Fabric& fabric, uint32_t rank, Synchronizer& done, std::unique_ptr<ResultReceiver> receiver);
// The same with a function, called once, in the thread that the answer or the failure reaches.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t
expect_answer(Fabric& fabric, uint32_t rank, std::function<void(const absl::Status&)> ended);
// Takes that back. False: it was ended meanwhile.
CARIAMA_DSFABRIC_EXPORT bool forget_answer(Fabric& fabric, uint32_t rank, uint64_t handle);
// Tells process `to` how a call that came from it has ended, if it wants to know.
CARIAMA_DSFABRIC_EXPORT void answer_call(Fabric& fabric, uint32_t to, const NotifyTarget* wanted,
                                         const IncomingCall& call, const std::string& result);
// Counts and reports what process `rank` should not have sent.
CARIAMA_DSFABRIC_EXPORT void reject_call(Fabric& fabric, uint32_t rank, std::string_view why);

// Sends an event of 31 bits to the bringer of process `rank`, behind all that worker `index` has
// posted on its connection to it. Never waits. False: there is no credit now. Error: the
// connection's.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<bool> post_call_event(Fabric& fabric,
                                                                           uint32_t rank,
                                                                           uint32_t index,
                                                                           uint32_t value);
// Makes worker `index` of process `rank` (perhaps our own), or who runs its calls, look again. As
// post_call_event().
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<bool> wake_worker(Fabric& fabric,
                                                                       uint32_t rank,
                                                                       uint32_t index);
// What those of this process sleep on who run calls, in registered memory, kWakeWordStride bytes
// apart: a WakeWord for each worker, then one for all helper threads. A process that maps them
// (QueuePair::direct_access) wakes who sleeps by one system call and no thread in between.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const RDMAMemory& wake_words(Fabric& fabric);
inline constexpr size_t kWakeWordStride = 64;
// Does so: as wake_worker(), for worker `index` of a process of `threads` workers whose wake words
// are at `words`.
CARIAMA_DSFABRIC_EXPORT void wake_mapped_worker(std::byte* words, uint32_t threads, uint32_t index);
// Makes every thread of this process that waits look again: a Synchronizer was counted down.
CARIAMA_DSFABRIC_EXPORT void tell_waiters(Fabric& fabric);
// As Fabric::wait, for a condition that plain WRITEs make true: does not sleep.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT bool wait_polling(Fabric& fabric,
                                                        const std::function<bool()>& condition,
                                                        Deadline deadline);
// Memory of the NUMA node of worker `index`, if it is known yet.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::shared_ptr<RDMAAllocator>> worker_memory(
    Fabric& fabric, uint32_t index);

}  // namespace internal
}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_SOURCE_H_
