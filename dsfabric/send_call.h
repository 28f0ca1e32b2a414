// Send-based calls: any thread may call any thread, or the service of a process (Seriema §3.1,
// §4.3). There is no set-up but the connection, which the first call to a process makes.
//
//   call(fabric, thread, [x] { ... });                      // run it there
//   call(fabric, thread, [](std::string s) { ... }, text);  // arguments are serialized
//   Synchronizer run;
//   call<RemoteNotify>(fabric, thread, [] { ... }, run);    // counted down once it has run
//   Synchronizer answered;
//   int sum = 0;
//   call_return(fabric, thread, [] { return 42; }, sum, answered);
//   absl::Status waited = fabric.wait(answered, deadline);
//
// One order for all forms: options, destination, function, then (call_return) the result or
// (call_buffer) the buffer, the completions, and the function's arguments. completions.h defines
// completions and their place. An option that a form would ignore does not compile.
//
// All functions but async_call return a CallResult: OK if the call was accepted, that is, handed to
// the transport or deferred; else the reason why it was not. Errors: OUT_OF_RANGE (no such thread
// or process), FAILED_PRECONDITION (the function is in a library that was loaded after the fabric
// was created; the peer is another build; a RemoteObject has no operation left), INVALID_ARGUMENT
// (longer than a receive unit; within the process longer than CallHeader::kMaxBytes, which is
// 128 MiB less 8 bytes), UNAVAILABLE (the destination's process is dead, or the fabric was
// finalized), DEADLINE_EXCEEDED (not connected in time), RESOURCE_EXHAUSTED (no room with Fail;
// deferred_bytes are deferred, with RetryAsync or inside a call; within the process, with any
// policy but Retry or inside a call: buffered_bytes are buffered).
//
// The first call to a process connects to it, which blocks at most FabricOptions::timeout, under
// every policy and also inside a call.
//
// Deadlock: a call that waits, inside of itself, for a call to its own thread waits forever (or
// until its deadline), because the calls to a thread run one after the other. A Future detects this
// and returns an error immediately. A Synchronizer cannot detect this, because it does not contain
// the call that it waits for.
//
// Validation of RemoteMemoryLocators. A target that is too short, that wraps around, or that
// belongs to another process than the destination (`owner`) makes its call fail with
// INVALID_ARGUMENT. If the locator of a buffer to be READ does not belong to the sender, the
// receiver treats the call as malformed. It does not run the call, and answers with the same error.
// Only the owner's device can check whether a key is valid and covers the range, and it reports an
// invalid access by failing it. By the rules of reliable connections this ends the connection: both
// queue pairs enter the error state, and all work requests posted behind are flushed, whether they
// were executed or not. The fabric does not repair the connection, because it could not guarantee
// then that a call runs at most once. So a locator with an invalid key (of freed memory, for
// example) ends the connection between the two processes.
#ifndef CARIAMA_DSFABRIC_SEND_CALL_H_
#define CARIAMA_DSFABRIC_SEND_CALL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_forms.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dtutils/memory.h"

namespace cariama {

namespace internal {

// Returns OUT_OF_RANGE if the destination of a call does not exist.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status check_destination(const Fabric& fabric,
                                                                     Rank rank, ThreadId thread);

// Sends one encoded call to `thread`; with kService, to the service of process `rank`. `rank` is
// used with kService only.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT CallResult send_call(Fabric& fabric, Rank rank,
                                                           ThreadId thread,
                                                           const OutgoingCall& call,
                                                           WhenFull when_full);
// Sends one encoded call to `thread` (kService: to the service of process `rank`), and notifies the
// objects of `end` (CallEnd in call_forms.h) when the call is transmitted and when it has ended.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT CallResult send_call(Fabric& fabric, Rank rank,
                                                           ThreadId thread, OutgoingCall call,
                                                           WhenFull when_full, CallEnd& end);

// Writes memory of this process into memory of `rank`. Calls that are sent afterwards find the
// bytes in place. With `complete`, blocks until the WRITE has completed; runs no calls.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_ahead(Fabric& fabric, Rank rank,
                                                               RDMAMemory& source, uint64_t offset,
                                                               uint64_t size,
                                                               const RemoteMemoryLocator& target,
                                                               bool complete);

// The send-based path (call_forms.h).
class SendPath {
 public:
  static constexpr bool kWritesOutcome = true;
  // The path to `thread`; with kService, to the service of process `rank`.
  SendPath(Fabric& fabric, ThreadId thread, Rank rank = kNoRank)
      : fabric_(fabric), thread_(thread), rank_(rank) {}

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] ThreadId thread() const { return thread_; }
  [[nodiscard]] Rank rank() const {
    return thread_ == kService ? Rank(rank_) : fabric_.rank_of(thread_);
  }
  template <typename Options, typename Call>
  [[nodiscard]] CallResult send(const Call& call) const {
    const auto& owning = owned(call);
    return send_call(fabric_, rank_, thread_, OutgoingCall::of(owning), Options::kWhenFull);
  }
  template <typename Options>
  [[nodiscard]] CallResult send(const OutgoingCall& call, CallEnd& end) const {
    return send_call(fabric_, rank_, thread_, call, Options::kWhenFull, end);
  }
  [[nodiscard]] absl::Status prepare() const { return check_destination(fabric_, rank_, thread_); }
  [[nodiscard]] absl::Status write_ahead(RDMAMemory& source, uint64_t offset, uint64_t size,
                                         const RemoteMemoryLocator& target, bool complete) const {
    return internal::write_ahead(fabric_, rank(), source, offset, size, target, complete);
  }

 private:
  Fabric& fabric_;
  // Integers instead of ids: g++ 12 would pack two adjacent ids into one word and unpack it again
  // for each call.
  const uint32_t thread_;
  const uint32_t rank_;
};

}  // namespace internal

// Makes thread `destination` call function(arguments...) (Table 1: call):
//   call(fabric, destination, function, arguments...)
//   call(fabric, destination, function, completions, arguments...)
template <auto... Options, typename F, typename... Given>
CallResult call(Fabric& fabric, ThreadId destination, F&& function, Given&&... given) {
  return internal::issue_call<CallOptions<Options...>>(internal::SendPath(fabric, destination),
                                                       function, std::forward<Given>(given)...);
}

// Makes thread `destination` call function(buffer, size), where `size` is the buffer's (Table 1:
// call_buffer):
//   call_buffer(fabric, destination, function, source, [target,] [completions])
// The source is any memory of the caller's (user_buffer.h), as a span, or a range of registered
// memory. How its bytes reach the destination:
//   default          They travel in the message (the paper: side by side).
//   `target` given   They are written to its start, memory of the destination's process; then the
//                    function gets the target's address. call_buffer() blocks until the WRITE of a
//                    span has completed, so the span may be reused when call_buffer() returns.
//                    Registered memory may be reused when source->is_free(), at the latest when the
//                    call is consumed. With an object for the event "transmitted", call_buffer()
//                    blocks until the WRITE of registered memory has completed, too.
//   Sync, Async      Only a locator travels, and the destination READs the source, which must not
//                    change before the call is consumed. Sync: the destination's consumer waits for
//                    the READ before it runs its next call. Async: the READ proceeds while later
//                    calls run; a thread of the fabric then calls the function.
// `buffer` is valid while the function runs, which must not free it. With `target` it is the target
// itself. With Sync and Async the destination allocates `size` bytes for it; if it cannot, or if
// the READ fails, the call is consumed with INTERNAL. The function of an Async call runs
// concurrently with the calls to its destination, in the same thread as those of all other Async
// calls. Further error: INVALID_ARGUMENT (the range exceeds its memory; the target is not that
// long, or not memory of the destination's process).
template <auto... Options, typename F, typename... Given>
CallResult call_buffer(Fabric& fabric, ThreadId destination, F&& function,
                       std::span<const std::byte> source, Given&&... given) {
  return internal::issue_call_buffer<CallOptions<Options...>>(
      internal::SendPath(fabric, destination), function, source, std::forward<Given>(given)...);
}
template <auto... Options, typename F, typename... Given>
CallResult call_buffer(Fabric& fabric, ThreadId destination, F&& function, RDMAMemory* source,
                       uint64_t offset, uint64_t size, Given&&... given) {
  return internal::issue_call_buffer<CallOptions<Options...>>(
      internal::SendPath(fabric, destination), function,
      internal::MemoryRange{source, offset, size}, std::forward<Given>(given)...);
}

// Makes thread `destination` call function(arguments...), and stores what it returns into `result`
// (Table 1: call_return):
//   call_return(fabric, destination, function, result, completions, arguments...)
// The completion reports that the result is stored. An exception makes its status INTERNAL, with
// the exception's type and text. `result` must live until then.
template <auto... Options, typename F, typename T, typename Given, typename... Args>
CallResult call_return(Fabric& fabric, ThreadId destination, F&& function, T& result,
                       Given&& completions, Args&&... arguments) {
  return internal::issue_call_return<CallOptions<Options...>>(
      internal::SendPath(fabric, destination), function, result, std::forward<Given>(completions),
      std::forward<Args>(arguments)...);
}

// As call_return(), but returns the result as a Future. If the call cannot be sent, the Future is
// ready and holds the error.
template <auto... Options, typename F, typename... Args>
[[nodiscard]] auto async_call(Fabric& fabric, ThreadId destination, F&& function,
                              Args&&... arguments) {
  return internal::issue_async_call<CallOptions<Options...>>(
      internal::SendPath(fabric, destination), function, std::forward<Args>(arguments)...);
}

// These overloads match calls that lack a part, or have a completion in its place. They do not
// compile, with one error that names the mistake.
template <auto... Options, typename... Given>
requires(!internal::kIsAddressed<internal::CallForm::kCall, Given...>) CallResult
    call(Fabric&, Given&&...) {
  return internal::refuse_addressed<internal::CallForm::kCall, Given...>();
}
template <auto... Options, typename... Given>
requires(!internal::kIsAddressed<internal::CallForm::kBuffer, Given...>) CallResult
    call_buffer(Fabric&, Given&&...) {
  return internal::refuse_addressed<internal::CallForm::kBuffer, Given...>();
}
template <auto... Options, typename... Given>
requires(!internal::kIsAddressed<internal::CallForm::kReturn, Given...>) CallResult
    call_return(Fabric&, Given&&...) {
  return internal::refuse_addressed<internal::CallForm::kReturn, Given...>();
}

template <auto... Options, typename... Given>
requires(!internal::kIsAddressed<internal::CallForm::kCall, Given...>) Future<void> async_call(
    Fabric&, Given&&...) {
  static_cast<void>(internal::refuse_addressed<internal::CallForm::kCall, Given...>());
  return {};
}

// As call(), to the service of process `rank`: a service call (Seriema §4.3). The function runs
// immediately, in a service thread, and must not block.
template <auto... Options, typename F, typename... Given>
CallResult service_call(Fabric& fabric, Rank rank, F&& function, Given&&... given) {
  return internal::issue_call<CallOptions<Options...>>(
      internal::SendPath(fabric, internal::kService, rank), function,
      std::forward<Given>(given)...);
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_SEND_CALL_H_
