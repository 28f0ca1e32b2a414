// The calls of Seriema's Table 1 in their one-sided form. Messengers and aggregators share this
// interface. Names, arguments, options and completions are those of the send-based calls
// (send_call.h, completions.h), without the fabric and destination arguments.
//
// Each function returns OK when the call has been accepted, else the reason why it was not
// accepted. Errors: INVALID_ARGUMENT (the call is longer than a chunk can hold), RESOURCE_EXHAUSTED
// (no room, subject to the Fail, Retry or RetryAsync option), DEADLINE_EXCEEDED (a request for
// further chunks was not answered within MessengerOptions::timeout; a later call may succeed),
// UNAVAILABLE (the destination's process is dead, or the fabric was finalized; or transfers of this
// process did not complete within MessengerOptions::timeout: the channel has then failed, and its
// deferred calls are lost), FAILED_PRECONDITION (after shutdown(); the function is in a library
// that was loaded after the fabric was created; a RemoteObject has no operation left), INTERNAL
// (the receiver has found malformed data in the channel). The first call may also return the errors
// of setup().
//
// A call is transmitted when it is published: immediately, with its batch, or, if the call was
// deferred, when a later call or a drain thread sends it. The arguments and buffers that were
// copied into the call may be reused as soon as the function has returned.
#ifndef CARIAMA_RIUTILS_CALL_INTERFACE_H_
#define CARIAMA_RIUTILS_CALL_INTERFACE_H_

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
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dtutils/memory.h"
#include "riutils/channel_sender.h"
#include "riutils/export.h"

namespace cariama {

namespace internal {

// Operations of an outgoing channel besides sending. Implemented by FabricChannel.
class CARIAMA_RIUTILS_EXPORT OutgoingChannel {
 public:
  virtual ~OutgoingChannel() = default;
  [[nodiscard]] virtual ChannelSender& sender() = 0;
  [[nodiscard]] virtual Fabric& fabric() = 0;
  [[nodiscard]] virtual ThreadId destination() const = 0;
  [[nodiscard]] virtual Rank rank() const = 0;  // of the destination's process
  // Writes local memory into memory of the destination's process. A call that is sent afterwards on
  // this channel finds the data in place when it runs. May block until the transport has completed
  // the write, and does so with `complete`; never waits for the destination thread.
  [[nodiscard]] virtual absl::Status write_ahead(RDMAMemory& source, uint64_t offset,
                                                 uint64_t bytes, const RemoteMemoryLocator& target,
                                                 bool complete) = 0;
};

// Gives this layer the channel of a messenger or an aggregator, and its policy for calls.
template <typename Calls>
class ChannelAccess {
 public:
  static constexpr bool kBatch = Calls::kBatch;  // a call joins the batch
  static constexpr bool kDefer = Calls::kDefer;  // a call that does not fit is deferred
  [[nodiscard]] static ChannelSender& sender(Calls& calls) { return calls.sender(); }
  [[nodiscard]] static OutgoingChannel& channel(Calls& calls) { return calls.channel(); }
};

// Sends a call and notifies the objects of `end` (call_forms.h).
[[nodiscard]] CARIAMA_RIUTILS_EXPORT CallResult send_on_channel(OutgoingChannel& channel,
                                                                OutgoingCall call, WhenNoRoom when,
                                                                bool batch, CallEnd& end);

// The one-sided path (call_forms.h). Sender: a messenger or an aggregator.
template <typename Sender>
class ChannelPath {
 public:
  static constexpr bool kWritesOutcome = true;
  explicit ChannelPath(Sender& sender) : sender_(sender) {}

  [[nodiscard]] Fabric& fabric() const { return channel().fabric(); }
  [[nodiscard]] ThreadId thread() const { return channel().destination(); }
  [[nodiscard]] Rank rank() const { return channel().rank(); }
  template <typename Options, typename Call>
  [[nodiscard]] __attribute__((always_inline)) CallResult send(const Call& call) const {
    return Access::sender(sender_).template send<Access::kBatch>(call, when<Options>());
  }
  template <typename Options>
  [[nodiscard]] CallResult send(const OutgoingCall& call, CallEnd& end) const {
    return send_on_channel(channel(), call, when<Options>(), Access::kBatch, end);
  }
  [[nodiscard]] absl::Status prepare() const { return sender_.setup(); }
  [[nodiscard]] absl::Status write_ahead(RDMAMemory& source, uint64_t offset, uint64_t size,
                                         const RemoteMemoryLocator& target, bool complete) const {
    return channel().write_ahead(source, offset, size, target, complete);
  }

 private:
  using Access = ChannelAccess<Sender>;
  template <typename Options>
  static constexpr WhenNoRoom when() {
    return WhenNoRoom::of(Options::kWhenFull, Access::kDefer);
  }
  [[nodiscard]] OutgoingChannel& channel() const { return Access::channel(sender_); }

  Sender& sender_;
};

}  // namespace internal

template <typename Derived>
class CallInterface {
 public:
  // The destination calls function(arguments...):
  //   call(function, arguments...)
  //   call(function, completions, arguments...)
  template <auto... Options, typename F, typename... Given>
  __attribute__((always_inline)) CallResult call(F&& function, Given&&... given) {
    return internal::issue_call<CallOptions<Options...>>(path(), function,
                                                         std::forward<Given>(given)...);
  }

  // The destination calls function(buffer, size):
  //   call_buffer(function, source, [target,] [completions])
  // The source is any memory of the caller's, as a span, or a range of registered memory. By
  // default its bytes are copied into the call. With a `target`, memory of the destination's
  // process, they are written there first, and the function gets the target's address. With Sync
  // or Async only a locator travels, and the destination READs the source. send_call.h says when
  // the source may be reused, and how long the function may use its buffer.
  template <auto... Options, typename F, typename... Given>
  __attribute__((always_inline)) CallResult call_buffer(F&& function,
                                                        std::span<const std::byte> source,
                                                        Given&&... given) {
    return internal::issue_call_buffer<CallOptions<Options...>>(path(), function, source,
                                                                std::forward<Given>(given)...);
  }
  template <auto... Options, typename F, typename... Given>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Given&&... given) {
    return internal::issue_call_buffer<CallOptions<Options...>>(
        path(), function, internal::MemoryRange{source, offset, size},
        std::forward<Given>(given)...);
  }

  // The destination calls function(arguments...), and what it returns is stored into `result`:
  //   call_return(function, result, completions, arguments...)
  // The completion reports that the result is stored. If the function throws, its status is
  // INTERNAL, with the exception's type and text. `result` must live until then.
  template <auto... Options, typename F, typename T, typename Given, typename... Args>
  CallResult call_return(F&& function, T& result, Given&& completions, Args&&... arguments) {
    return internal::issue_call_return<CallOptions<Options...>>(path(), function, result,
                                                                std::forward<Given>(completions),
                                                                std::forward<Args>(arguments)...);
  }

  // These overloads match calls that lack a part, and do not compile: see send_call.h.
  template <auto... Options, typename... Given>
  requires(!internal::kIsWhole<internal::CallForm::kBuffer, Given...>) CallResult
      call_buffer(Given&&...) {
    return internal::refuse<internal::CallForm::kBuffer, Given...>();
  }
  template <auto... Options, typename... Given>
  requires(!internal::kIsWhole<internal::CallForm::kReturn, Given...>) CallResult
      call_return(Given&&...) {
    return internal::refuse<internal::CallForm::kReturn, Given...>();
  }

  // Calls function(arguments...) at the destination and returns its result as a Future, which
  // supports get() and co_await (future.h). If the call is not accepted, the returned Future is
  // ready and carries the error.
  template <auto... Options, typename F, typename... Args>
  [[nodiscard]] auto async_call(F&& function, Args&&... arguments) {
    return internal::issue_async_call<CallOptions<Options...>>(path(), function,
                                                               std::forward<Args>(arguments)...);
  }

 private:
  friend Derived;
  CallInterface() = default;
  [[nodiscard]] internal::ChannelPath<Derived> path() {
    return internal::ChannelPath<Derived>(static_cast<Derived&>(*this));
  }
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_CALL_INTERFACE_H_
