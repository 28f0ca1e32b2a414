// Broadcasts: every thread of every process runs a call once (Seriema Table 1).
//
//   Synchronizer run;
//   broadcast<RemoteNotify>(fabric, [x] { ... }, run);  // counted down when all threads ran it
//   broadcast_buffer(fabric, [](void* buffer, uint64_t size) { ... }, memory, 0, size, run);
//
// A broadcast travels down a binomial tree of the processes by service calls: log2 P steps, and at
// most log2 P children per process. Each process forwards the call to its children before its own
// threads run it. Each thread runs it at the place where the thread's other calls run
// (CallConsumer). Answers travel up the same tree, one per process, so that each process waits for
// one answer per child.
//
// The Synchronizer is counted down
//   LocalNotify   when the call has left the caller's process;
//   RemoteNotify  when every thread has run the call, or with an error when that has become
//                 impossible: INTERNAL with the text of the first exception, or UNAVAILABLE and the
//                 name of the failed process, wherever in the tree it is. Processes below a failed
//                 process in the tree may not have run it.
// With LocalNotify or without a Synchronizer, a broadcast that could not be sent to a child of the
// caller returns that error; other threads may have run the call. A later failure has no receiver:
// the caller's process prints it.
//
// One-sided form: RDMAMessengerGlobal::broadcast (messenger_global.h) has the same arguments.
//
// Cost: one service call and one answer per process. A closure that exceeds a receive unit
// (receive_unit_bytes) is READ by each child instead, which adds a round trip per step. A buffer
// that is pulled or written travels once into each process, which then serves its children. Target
// locators travel along the tree: a process receives those of its subtree only.
#ifndef CARIAMA_RIUTILS_BROADCAST_H_
#define CARIAMA_RIUTILS_BROADCAST_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/fabric.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "riutils/export.h"

namespace cariama {

namespace internal {

// The broadcast function without its type: the id of its stub, and its bytes.
struct BroadcastFunction {
  FunctionId id;
  std::string bytes;
};
struct BroadcastBuffer {
  RDMAMemory* memory = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;
  // Target memory in each process, indexed by rank: the parent in the tree writes the buffer there.
  // If empty, each process READs the buffer into memory of this layer, which it frees when its
  // threads have run the call.
  std::span<const RemoteMemoryLocator> targets{};
};

// The part of a broadcast that a process receives from its parent in the tree, beside the payload:
// the function's bytes, then the targets of the process's subtree.
struct BroadcastPart {
  uint32_t root = 0;
  FunctionId id;
  uint64_t handle = 0;  // the parent's handle for this process's answer
  uint64_t size = 0;    // of the buffer
  uint64_t function_bytes = 0;
  enum class Buffer : uint8_t { kNone, kPull, kPlaced } buffer = Buffer::kNone;
  RemoteMemoryLocator source;   // kPull: the parent's copy
  RemoteMemoryLocator payload;  // where the payload is READ; length 0: it came with the part
};
static_assert(std::is_trivially_copyable_v<BroadcastPart>);

// The one-sided path by which a broadcast goes from a process to its children. Used by one thread.
class CARIAMA_RIUTILS_EXPORT BroadcastRoute {
 public:
  // Routes of one kind continue one another's broadcasts.
  explicit BroadcastRoute(uint32_t kind) : kind_(kind) {}
  virtual ~BroadcastRoute() = default;
  BroadcastRoute(const BroadcastRoute&) = delete;
  BroadcastRoute& operator=(const BroadcastRoute&) = delete;

  [[nodiscard]] uint32_t kind() const { return kind_; }
  // Sends the part to process `rank`. Returns the reason if the call was not accepted;
  // INVALID_ARGUMENT if it is too long.
  [[nodiscard]] absl::Status forward(uint32_t rank, const BroadcastPart& part,
                                     const std::string& payload);

 protected:
  // Sends a call to a worker of process `rank`, and publishes it. Never waits for room.
  [[nodiscard]] virtual CallResult send(uint32_t rank, const OutgoingCallView& call) = 0;

 private:
  const uint32_t kind_;
};

// Makes a worker forward the broadcasts of the route's kind that arrive at it through `route`,
// until the returned object is destroyed; that may be after the fabric. A worker may have several
// routes of a kind; the newest one is used. Thread-safe.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT std::shared_ptr<void> add_broadcast_route(
    ThreadContext& thread, BroadcastRoute& route);

// `buffer`: nullptr for a call without a buffer.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::Status start_broadcast(
    Fabric& fabric, BroadcastRoute* route, const BroadcastFunction& function,
    const BroadcastBuffer* buffer, Synchronizer* transmitted, Synchronizer* consumed);

// The call function(buffer, size), for a buffer that is in this process. Built and run in the same
// process; never sent.
template <typename F>
struct PlacedBufferCall {
  static void run(IncomingCall& call) {
    constexpr size_t kFront = 2 * sizeof(uint64_t);
    if (call.closure.size() < kFront + kClosureBytes<F>) {
      call.outcome = CallOutcome::kMalformed;
      return;
    }
    uint64_t words[2];
    std::memcpy(words, call.closure.data(), sizeof words);
    const ArrivedFunction<F> function(call.closure.data() + kFront);
    try {
      static_cast<void>((*function)(reinterpret_cast<void*>(words[0]), words[1]));
    } catch (...) {
      note_exception(call);
    }
  }
};

template <typename F>
[[nodiscard]] std::string function_bytes(const F& function) {
  std::string bytes(kClosureBytes<F>, '\0');
  if constexpr (!std::is_empty_v<F>) std::memcpy(bytes.data(), &function, sizeof(F));
  return bytes;
}

template <typename Options, typename F>
[[nodiscard]] CallResult broadcast_by(Fabric& fabric, BroadcastRoute* route, const F& function,
                                      Synchronizer* done) {
  using Call = FunctionCall<F>;
  require_only_notification<Options>();
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  static_cast<void>(Call(function));  // fails to compile if the function cannot travel
  return start_broadcast(fabric, route, {Call::id(), function_bytes(function)}, nullptr,
                         kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}

template <typename Options, typename F>
[[nodiscard]] CallResult broadcast_placed(Fabric& fabric, BroadcastRoute* route, const F& function,
                                          const BroadcastBuffer& buffer, Synchronizer* done) {
  require_travelling_function<F>();
  require_only_notification<Options>();
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  return start_broadcast(
      fabric, route, {FunctionTable::id_of<&PlacedBufferCall<F>::run>(), function_bytes(function)},
      &buffer, kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}

}  // namespace internal

// Every thread of the job calls function(). Thread-safe. Errors of the caller's own part: those of
// service calls (send_call.h).
template <auto... Options, typename F>
CallResult broadcast(Fabric& fabric, F&& function, Synchronizer* done = nullptr) {
  return internal::broadcast_by<CallOptions<Options...>, std::decay_t<F>>(fabric, nullptr, function,
                                                                          done);
}
template <auto... Options, typename F>
CallResult broadcast(Fabric& fabric, F&& function, Synchronizer& done) {
  return broadcast<Options...>(fabric, std::forward<F>(function), &done);
}

// Every thread calls function(buffer, size). `buffer` is a copy of the bytes [offset, offset +
// size) of `source`; each process READs it from its parent in the tree. The threads of one process
// share one copy, which is valid while the function runs. The range must not change until all
// threads have run the function, which RemoteNotify reports. Errors: those of broadcast(), and
// INVALID_ARGUMENT (`source` is nullptr, or the range exceeds it).
template <auto... Options, typename F>
CallResult broadcast_buffer(Fabric& fabric, F&& function, RDMAMemory* source, uint64_t offset,
                            uint64_t size, Synchronizer& done) {
  return internal::broadcast_placed<CallOptions<Options...>, std::decay_t<F>>(
      fabric, nullptr, function, {source, offset, size, {}}, &done);
}

// Every thread calls function(buffer, size). The parent in the tree writes the buffer into
// `targets[rank]` of each process, and `buffer` points there. Each process must have created its
// locator for use by other processes, since any process may become its parent. The caller's threads
// get the range of `source` itself; the entry of the caller's rank may be empty. Errors: those of
// broadcast(), and INVALID_ARGUMENT (`source` is nullptr, the range exceeds it, or there is not one
// target per process).
template <auto... Options, typename F>
CallResult broadcast_buffer(Fabric& fabric, F&& function, RDMAMemory* source, uint64_t offset,
                            uint64_t size, std::span<const RemoteMemoryLocator> targets,
                            Synchronizer& done) {
  return internal::broadcast_placed<CallOptions<Options...>, std::decay_t<F>>(
      fabric, nullptr, function, {source, offset, size, targets}, &done);
}

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_BROADCAST_H_
