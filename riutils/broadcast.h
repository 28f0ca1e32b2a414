// Broadcasts: every thread of every process runs a call once (Seriema Table 1).
//
//   Synchronizer run;
//   broadcast<RemoteNotify>(fabric, [x] { ... }, run);  // counted down when all threads ran it
//   broadcast(fabric, [](std::string s) { ... }, on_consumed(run), text);  // with an argument
//   broadcast_buffer<RemoteNotify>(fabric, [](void* buffer, uint64_t size) { ... }, memory, 0,
//                                  size, run);
//
// A broadcast travels down a binomial tree of the processes by service calls: log2 P steps, and at
// most log2 P children per process. Each process forwards the call to its children before its own
// threads run it. Each thread runs the call at the place where its other calls run (CallConsumer).
// Answers travel up the same tree, one per process, so that each process waits for one answer per
// child.
//
// Completions (completions.h), all objects but RemoteObject:
//   transmitted  the parts for all children of the caller were accepted; they may still be
//                deferred;
//   consumed     every thread has run the call, or at least one thread cannot run it: INTERNAL with
//                the text of the first exception, or UNAVAILABLE with the name of the failed
//                process at any place in the tree. Processes below a failed process in the tree
//                may not have run the call.
// Without a completion for `consumed`, a broadcast that could not be sent to a child of the caller
// returns that error; other threads may have run the call. The caller's process prints a later
// failure, since no object receives it. No options but LocalNotify and RemoteNotify apply.
//
// One-sided form: RDMAMessengerGlobal::broadcast (messenger_global.h) has the same arguments.
//
// Cost: one service call and one answer per process. If the closure and the targets for a child's
// subtree exceed a receive unit (receive_unit_bytes) less about 200 bytes, the child READs them
// instead, which adds a round trip per step. A buffer
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
#include <variant>

#include "dsfabric/call_encoding.h"
#include "dsfabric/call_forms.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dsfabric/fabric.h"
#include "dtutils/memory.h"
#include "riutils/export.h"

namespace cariama {

namespace internal {

// The broadcast function without its type: the id of its stub, and its bytes.
struct BroadcastFunction {
  FunctionId id;
  std::string bytes;
};
struct BroadcastBuffer {
  // A range of registered memory, or the user's bytes, which the broadcast copies into such memory.
  std::variant<MemoryRange, std::span<const std::byte>> source{};
  // Target memory in each process, indexed by rank: the parent in the tree writes the buffer there.
  // If empty, each process READs the buffer into memory of this layer, which it frees when its
  // threads have run the call.
  std::span<const RemoteMemoryLocator> targets{};
};

struct BroadcastPart;  // internal/broadcast_wire.h

// The one-sided path by which a process sends a broadcast to its children in the tree. Used by one
// thread.
class CARIAMA_RIUTILS_EXPORT BroadcastRoute {
 public:
  // `kind`: a worker forwards a broadcast that arrived by a route through its own route of the same
  // kind.
  explicit BroadcastRoute(uint32_t kind) : kind_(kind) {}
  virtual ~BroadcastRoute() = default;
  BroadcastRoute(const BroadcastRoute&) = delete;
  BroadcastRoute& operator=(const BroadcastRoute&) = delete;

  [[nodiscard]] uint32_t kind() const { return kind_; }
  // Sends the part to process `rank`. Returns the reason if the call was not accepted;
  // INVALID_ARGUMENT if it is too long.
  [[nodiscard]] absl::Status forward(Rank rank, const BroadcastPart& part,
                                     const std::string& payload);

 protected:
  // Sends a call to a worker of process `rank`, and publishes it. Never waits for room.
  [[nodiscard]] virtual CallResult send(Rank rank, const OutgoingCall& call) = 0;

 private:
  const uint32_t kind_;
};

// Registers `route` for a worker: the worker forwards the broadcasts of the route's kind that it
// receives through `route`, until the returned object is destroyed. That object may outlive the
// fabric. A worker may have several routes of a kind; the newest one is used. Thread-safe.
[[nodiscard]] CARIAMA_RIUTILS_EXPORT std::shared_ptr<void> add_broadcast_route(
    ThreadContext& thread, BroadcastRoute& route);

// Starts a broadcast in the caller's process. `buffer`: nullptr for a call without a buffer.
// Errors: those of broadcast() and broadcast_buffer().
[[nodiscard]] CARIAMA_RIUTILS_EXPORT absl::Status start_broadcast(
    Fabric& fabric, BroadcastRoute* route, const BroadcastFunction& function,
    const BroadcastBuffer* buffer, const EventReceiver& transmitted, const EventReceiver& consumed);

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
    // For any other F, issue_broadcast_buffer() gives the compiler error.
    if constexpr (std::is_invocable_v<F&, void*, uint64_t>) {
      try {
        static_cast<void>((*function)(reinterpret_cast<void*>(words[0]), words[1]));
      } catch (...) {
        note_exception(call);
      }
    }
  }
};

// Starts a broadcast. `given`: the completions that the user passed, nothing or one argument.
template <typename Options, typename... Given>
[[nodiscard]] CallResult start_broadcast_given(Fabric& fabric, BroadcastRoute* route,
                                               const BroadcastFunction& function,
                                               const BroadcastBuffer* buffer, Given&&... given) {
  require_only_notification<Options>();
  if constexpr (sizeof...(Given) == 0) {
    require_no_notification<Options>();
    return start_broadcast(fabric, route, function, buffer, {}, {});
  } else {
    auto completions = completions_of<Options>(std::forward<Given>(given)...);
    constexpr bool kWritten =
        std::is_same_v<decltype(completions.consumed), RemoteObject<Synchronizer>*>;
    static_assert(!kWritten,
                  "cariama: the end of a broadcast comes in answers, which can count a plain "
                  "Synchronizer down; a RemoteObject is for calls to one thread");
    if constexpr (kWritten) {
      return {};
    } else {
      CallEnd end;
      return send_completing(fabric, kNoRank, kNoThread, end, std::move(completions),
                             [&](const CallEnd& connected) -> CallResult {
                               return start_broadcast(fabric, route, function, buffer,
                                                      connected.transmitted, connected.consumed);
                             });
    }
  }
}

template <typename Call>
[[nodiscard]] BroadcastFunction broadcast_function(const Call& call) {
  BroadcastFunction function{Call::id(), std::string(call.bytes(), '\0')};
  call.write(reinterpret_cast<std::byte*>(function.bytes.data()));
  return function;
}

template <typename Options, typename F, typename Given, typename... Args>
[[nodiscard]] CallResult issue_broadcast_completed(Fabric& fabric, BroadcastRoute* route,
                                                   const F& function, Given&& given,
                                                   Args&&... arguments) {
  return start_broadcast_given<Options>(
      fabric, route, broadcast_function(make_call(function, std::forward<Args>(arguments)...)),
      nullptr, std::forward<Given>(given));
}

// broadcast(function, [completions,] arguments...)
template <typename Options, typename F, typename... Given>
[[nodiscard]] CallResult issue_broadcast(Fabric& fabric, BroadcastRoute* route, const F& function,
                                         Given&&... given) {
  if constexpr (!require_function<F>()) {
    return {};
  } else if constexpr (kCompletionFirst<Given...>) {
    return issue_broadcast_completed<Options>(fabric, route, function,
                                              std::forward<Given>(given)...);
  } else if constexpr ((kIsCompletion<Given> || ...)) {
    static_assert(!sizeof(F),
                  "cariama: the completion of a broadcast stands right behind its function");
    return {};
  } else {
    return start_broadcast_given<Options>(
        fabric, route, broadcast_function(make_call(function, std::forward<Given>(given)...)),
        nullptr);
  }
}

template <typename... Given>
inline constexpr bool kTargetsFirst = false;
template <typename First, typename... Rest>
inline constexpr bool kTargetsFirst<First, Rest...> =
    std::is_convertible_v<First, std::span<const RemoteMemoryLocator>>;

// broadcast_buffer(function, source, [completions])
template <typename Options, typename F, typename... Given>
[[nodiscard]] CallResult issue_broadcast_buffer(Fabric& fabric, BroadcastRoute* route,
                                                const F& function, const BroadcastBuffer& buffer,
                                                Given&&... given) {
  constexpr bool kEnds =
      sizeof...(Given) == 0 || (sizeof...(Given) == 1 && (kIsCompletion<Given> && ...));
  static_assert(kEnds,
                "cariama: behind the buffer of broadcast_buffer stand its targets (a span of "
                "RemoteMemoryLocator), if any, and its completion, if any");
  using Function = std::decay_t<F>;
  if constexpr (require_buffer_function<Function>() && kEnds) {
    std::string bytes(kClosureBytes<Function>, '\0');
    if constexpr (!std::is_empty_v<Function>) {
      std::memcpy(bytes.data(), &function, sizeof(Function));
    }
    return start_broadcast_given<Options>(
        fabric, route, {FunctionTable::id_of<&PlacedBufferCall<Function>::run>(), std::move(bytes)},
        &buffer, std::forward<Given>(given)...);
  } else {
    return {};
  }
}
// broadcast_buffer(function, source, [targets,] [completions]); Source: std::span or MemoryRange.
template <typename Options, typename F, typename Source, typename... Given>
requires(!std::is_same_v<Source, BroadcastBuffer>) [[nodiscard]] CallResult
    issue_broadcast_buffer(Fabric& fabric, BroadcastRoute* route, const F& function,
                           const Source& source, Given&&... given) {
  if constexpr (kTargetsFirst<Given...>) {
    return [&](std::span<const RemoteMemoryLocator> targets, auto&&... rest) {
      return issue_broadcast_buffer<Options>(fabric, route, function,
                                             BroadcastBuffer{source, targets},
                                             std::forward<decltype(rest)>(rest)...);
    }(std::forward<Given>(given)...);
  } else {
    return issue_broadcast_buffer<Options>(fabric, route, function, BroadcastBuffer{source, {}},
                                           std::forward<Given>(given)...);
  }
}

}  // namespace internal

// Every thread of the job calls function(arguments...):
//   broadcast(fabric, function, arguments...)
//   broadcast(fabric, function, completions, arguments...)
// Thread-safe. Blocks while the connection to a child of the caller has no room, and runs incoming
// calls meanwhile, as a call with Retry. Errors of the caller's own part: those of service calls
// (send_call.h).
template <auto... Options, typename F, typename... Given>
CallResult broadcast(Fabric& fabric, F&& function, Given&&... given) {
  return internal::issue_broadcast<CallOptions<Options...>>(fabric, nullptr, function,
                                                            std::forward<Given>(given)...);
}

// Every thread calls function(buffer, size):
//   broadcast_buffer(fabric, function, source, [targets,] [completions])
//   broadcast_buffer(fabric, function, source, offset, size, [targets,] [completions])
// The source is a std::span, which may be reused at once, or the bytes [offset, offset + size) of
// registered memory. The children of the caller READ or are written from registered memory, each
// through its own device, and the broadcast may outlive the call: so the bytes of a span are copied
// into memory of the fabric, which the broadcast frees when it is consumed.
// Without `targets`, each process READs the buffer from its parent in the tree. The threads of one
// process share one copy, which is valid while the function runs. A range must not change until the
// broadcast is consumed.
// With `targets`, a std::span<const RemoteMemoryLocator> by rank, the parent in the tree writes the
// buffer into `targets[rank]` of each process, and the function gets that address. Each process
// must have created its locator for use by other processes, since any process may become its
// parent. The caller's threads get the range of `source` itself, or the copy; the entry of the
// caller's rank may be empty. Errors: those of broadcast(), INVALID_ARGUMENT (`source` is nullptr,
// the range exceeds it, or there is not one target per process), RESOURCE_EXHAUSTED (no registered
// memory for a copy).
template <auto... Options, typename F, typename... Given>
CallResult broadcast_buffer(Fabric& fabric, F&& function, std::span<const std::byte> source,
                            Given&&... given) {
  return internal::issue_broadcast_buffer<CallOptions<Options...>>(
      fabric, nullptr, function, source, std::forward<Given>(given)...);
}
template <auto... Options, typename F, typename... Given>
CallResult broadcast_buffer(Fabric& fabric, F&& function, RDMAMemory* source, uint64_t offset,
                            uint64_t size, Given&&... given) {
  return internal::issue_broadcast_buffer<CallOptions<Options...>>(
      fabric, nullptr, function, internal::MemoryRange{source, offset, size},
      std::forward<Given>(given)...);
}

// This overload matches broadcasts that lack a part, and does not compile: see send_call.h.
template <auto... Options, typename... Given>
requires(!internal::kIsWhole<internal::CallForm::kBuffer, Given...>) CallResult
    broadcast_buffer(Fabric&, Given&&...) {
  return internal::refuse<internal::CallForm::kBuffer, Given...>();
}

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_BROADCAST_H_
