// Calls to every thread of every process, once each (Seriema Table 1).
//
//   Synchronizer run;
//   broadcast<RemoteNotify>(fabric, [x] { ... }, run);    // counted down when all have run it
//   broadcast_buffer(fabric, [](void* buffer, uint64_t size) { ... }, memory, 0, size, run);
//
// A call goes down a tree of the processes (binomial: log2 P steps; each process sends to at most
// as many), by service calls; every process forwards it before its own threads run it, each where
// the thread's calls run. Answers come back up the same tree, one per process, so the caller waits
// for one per child.
//
// LocalNotify: the call has left the caller's process. RemoteNotify: every thread has run it, or
// that cannot happen any more: then the Synchronizer fails, with the first exception's text, or
// UNAVAILABLE with the process that has died; those behind it in the tree may not have been
// reached.
//
// Cost: one service call per process, and one answer; a closure per process on the way
// (receive_unit_bytes limits it). Buffers that are pulled or pushed travel once into each process,
// and from there on to its children.
#ifndef CARIAMA_RIUTILS_BROADCAST_H_
#define CARIAMA_RIUTILS_BROADCAST_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
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

// What is run, without its type: a stub's id, and the function's bytes.
struct BroadcastFunction {
  FunctionId id;
  std::string bytes;
};
struct BroadcastBuffer {
  RDMAMemory* memory = nullptr;  // nullptr: none
  uint64_t offset = 0;
  uint64_t size = 0;
  // Memory of each process, by rank, that it is written into; empty: every process fetches it into
  // memory of this layer, which it has until its threads have run.
  std::span<const RemoteMemoryLocator> targets{};
};
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::Status start_broadcast(Fabric& fabric,
                                                                  const BroadcastFunction& function,
                                                                  const BroadcastBuffer& buffer,
                                                                  Synchronizer* transmitted,
                                                                  Synchronizer* consumed);

// function(buffer, size) where the buffer is in this process: built there, never sent.
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
[[nodiscard]] CallResult broadcast_placed(Fabric& fabric, const F& function,
                                          const BroadcastBuffer& buffer, Synchronizer* done) {
  require_travelling_function<F>();
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  return start_broadcast(
      fabric, {FunctionTable::id_of<&PlacedBufferCall<F>::run>(), function_bytes(function)}, buffer,
      kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}

}  // namespace internal

// Every thread of the job calls function(). Errors, when the caller's own part fails at once: those
// of service calls (send_call.h). From any thread.
template <auto... Options, typename F>
CallResult broadcast(Fabric& fabric, F&& function, Synchronizer* done = nullptr) {
  using Function = std::decay_t<F>;
  using Call = FunctionCall<Function>;
  constexpr bool kConsumed = CallOptions<Options...>::kNotification == Notification::kConsumed;
  static_cast<void>(Call(function));  // says what cannot travel
  return internal::start_broadcast(fabric,
                                   {Call::id(), internal::function_bytes<Function>(function)}, {},
                                   kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}
template <auto... Options, typename F>
CallResult broadcast(Fabric& fabric, F&& function, Synchronizer& done) {
  return broadcast<Options...>(fabric, std::forward<F>(function), &done);
}

// Every thread calls function(buffer, size), with a copy of that part of `source` that its process
// has READ from its parent in the tree; threads of one process share it, and have it while they
// run. `source` must not change until all have run: RemoteNotify tells. Error, besides:
// INVALID_ARGUMENT (the range).
template <auto... Options, typename F>
CallResult broadcast_buffer(Fabric& fabric, F&& function, RDMAMemory* source, uint64_t offset,
                            uint64_t size, Synchronizer& done) {
  return internal::broadcast_placed<CallOptions<Options...>, std::decay_t<F>>(
      fabric, function, {source, offset, size, {}}, &done);
}

// The same with the buffer written into `targets[rank]` of every process, memory that each has
// named for the process that it is written by: any other than itself. (The entry of the caller's
// rank is its own copy's place, and may be empty: then its threads see `source` itself.)
template <auto... Options, typename F>
CallResult broadcast_buffer(Fabric& fabric, F&& function, RDMAMemory* source, uint64_t offset,
                            uint64_t size, std::span<const RemoteMemoryLocator> targets,
                            Synchronizer& done) {
  return internal::broadcast_placed<CallOptions<Options...>, std::decay_t<F>>(
      fabric, function, {source, offset, size, targets}, &done);
}

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_BROADCAST_H_
