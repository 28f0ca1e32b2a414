// The calls of Seriema's Table 1 in their one-sided form. Messengers and aggregators share this
// interface. Names, arguments and options are those of the send-based calls (send_call.h), without
// the fabric and destination arguments.
//
// Each function returns OK when the call has been accepted, else the reason why it was not
// accepted. Errors: INVALID_ARGUMENT (the call is longer than a chunk can hold), RESOURCE_EXHAUSTED
// (no room, subject to the Fail, Retry or RetryAsync option), UNAVAILABLE (the destination's
// process is dead, or the fabric was finalized). The first call may also return the errors of
// setup().
//
// Synchronizers. With LocalNotify the Synchronizer is counted down when the call has been
// published; the arguments and buffers that were copied into the call may be reused as soon as the
// function has returned. With RemoteNotify it is counted down when the destination has run the
// call. The Synchronizer of an accepted call is always counted down: either by that event, or with
// an error status by the failure that prevents the event.
#ifndef CARIAMA_RIUTILS_CALL_INTERFACE_H_
#define CARIAMA_RIUTILS_CALL_INTERFACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/buffer_pull.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/call_source.h"
#include "dsfabric/future.h"
#include "dsfabric/remote_object.h"
#include "dsfabric/send_call.h"
#include "dsfabric/user_buffer.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "riutils/channel_sender.h"
#include "riutils/export.h"

namespace cariama {

// Operations of an outgoing channel besides sending. Implemented by internal::FabricChannel.
class CARIAMA_RIUTILS_EXPORT OutgoingChannel {
 public:
  virtual ~OutgoingChannel() = default;
  [[nodiscard]] virtual ChannelSender& sender() = 0;
  [[nodiscard]] virtual Fabric& fabric() = 0;
  [[nodiscard]] virtual uint32_t destination() const = 0;  // global thread id
  [[nodiscard]] virtual uint32_t rank() const = 0;         // of the destination's process
  // Registers `done` to be counted down when the call that carries the returned target has been
  // run. `receiver`, if not null, receives the call's result before that.
  [[nodiscard]] virtual NotifyTarget expect(Synchronizer& done,
                                            std::unique_ptr<internal::ResultReceiver> receiver) = 0;
  // Withdraws the registration made by expect(), for a call that was not accepted. Returns false if
  // the registration has already ended because the peer failed: `done` then carries that error.
  virtual bool forget(const NotifyTarget& target) = 0;
  // Writes local memory into memory of the destination's process. A call that is sent afterwards on
  // this channel finds the data in place when it runs. May block until the transport has completed
  // the write; never waits for the destination thread.
  [[nodiscard]] virtual absl::Status write_ahead(RDMAMemory& source, uint64_t offset,
                                                 uint64_t bytes,
                                                 const RemoteMemoryLocator& target) = 0;
  // Returns a locator of local memory that the destination's process can READ.
  [[nodiscard]] virtual absl::StatusOr<RemoteMemoryLocator> locate(const RDMAMemory& memory,
                                                                   uint64_t offset,
                                                                   uint64_t bytes) = 0;
};

template <typename Derived>
class CallInterface {
 public:
  // The destination calls function(arguments...):
  //   call(function, arguments...)
  //   call(function, done, arguments...)
  // `done`, a Synchronizer, is counted down as the notification option says. If it is a
  // RemoteObject<Synchronizer>, in registered memory, the destination signals the end of the call
  // by one RDMA WRITE instead of an answering call.
  template <auto... Options, typename F, typename... Given>
  CallResult call(F&& function, Given&&... given) {
    using Chosen = CallOptions<Options...>;
    internal::require_no_pulling<Chosen>();
    if constexpr (internal::kSynchronizerFirst<Given...>) {
      return call_notified<Chosen>(function, std::forward<Given>(given)...);
    } else if constexpr ((internal::kIsSynchronizer<Given> || ...)) {
      static_assert(!sizeof(F),
                    "cariama: the Synchronizer of a call stands right behind its function");
      return CallResult();
    } else {
      internal::require_no_notification<Chosen>();
      return send<Chosen>(make_call(function, std::forward<Given>(given)...), nullptr);
    }
  }

  // Calls function(arguments...) at the destination and returns its result as a Future, which
  // supports get() and co_await (future.h). If the call is not accepted, the returned Future is
  // ready and carries the error.
  template <auto... Options, typename F, typename... Args>
  [[nodiscard]] auto async_call(F&& function, Args&&... arguments) {
    internal::require_no_notification<CallOptions<Options...>>();
    internal::require_no_pulling<CallOptions<Options...>>();
    const auto call = make_call(std::forward<F>(function), std::forward<Args>(arguments)...);
    auto state = std::make_shared<internal::FutureValue<typename decltype(call)::Result>>(
        self().channel().fabric());
    state->calls(self().channel().destination());
    const uint64_t handle =
        internal::expect_future(self().channel().fabric(), self().channel().rank(), state);
    CallResult sent = send_expecting<CallOptions<Options...>>(call, kCallReturn, handle, nullptr);
    if (!sent.ok()) state->finish(sent.status(), {});
    return Future(std::move(state));
  }

  // The destination calls function(buffer, size). `buffer` may be any memory of the caller
  // (user_buffer.h). By default its bytes are copied into the call. With the option Sync or Async
  // the destination READs the buffer instead (see the overload for RDMAMemory below); the buffer
  // must then not change before the call has ended.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, std::span<const std::byte> buffer,
                         Synchronizer* done = nullptr) {
    using Chosen = CallOptions<Options...>;
    if constexpr (internal::kPulls<Options...>) {
      return send_lending<Chosen>(function, buffer, done);
    } else {
      return send<Chosen>(make_buffer_call(function, buffer), done);
    }
  }

  // The destination calls function(buffer, size) with the bytes [offset, offset + size) of `source`
  // (the paper's signature). By default the bytes are copied into the call. With the option Sync or
  // Async only a locator travels: the destination READs the range and then calls the function.
  // Sync: the destination waits for the READ before it runs its next call. Async: the destination
  // runs other calls meanwhile. With Sync and Async the range must not change before the call has
  // run, which RemoteNotify reports.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Synchronizer& done) {
    return call_memory<Options...>(std::forward<F>(function), source, offset, size, &done);
  }
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size) {
    return call_memory<Options...>(std::forward<F>(function), source, offset, size, nullptr);
  }

  // call_buffer() with a Synchronizer in registered memory: the destination signals the end of the
  // call by one RDMA WRITE instead of an answering call. The overload for an unregistered buffer
  // (std::span) always copies the buffer into the call. Sync and Async are rejected there: an
  // unregistered buffer that is READ is released by an answering call, and that answer can count
  // down a plain Synchronizer as well.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, std::span<const std::byte> buffer,
                         RemoteObject<Synchronizer>& done) {
    static_assert(!internal::kPulls<Options...>,
                  "cariama: an unregistered buffer that is READ (Sync, Async) is released by an "
                  "answer: pass a plain Synchronizer, or registered memory");
    return send_written<CallOptions<Options...>>(make_buffer_call(function, buffer), done);
  }
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         RemoteObject<Synchronizer>& done) {
    return with_memory<Options...>(
        std::forward<F>(function), source, offset, size,
        [&](const auto& call) { return send_written<CallOptions<Options...>>(call, done); });
  }

  // Writes `size` bytes of `source`, starting at `offset`, to the start of `target`, which is
  // memory of the destination's process. The destination then calls function(address, size), where
  // `address` is the target's address in its process. The source range may be reused when
  // source->is_free() returns true.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         const RemoteMemoryLocator& target, Synchronizer* done = nullptr) {
    if (absl::Status ready = self().sender().setup(); !ready.ok()) return ready;
    if (absl::Status written = self().channel().write_ahead(*source, offset, size, target);
        !written.ok()) {
      return written;
    }
    return send<CallOptions<Options...>>(internal::placed_call(function, target.address, size),
                                         done);
  }
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         const RemoteMemoryLocator& target, RemoteObject<Synchronizer>& done) {
    require_travelling_function<std::decay_t<F>>();
    if (absl::Status ready = self().sender().setup(); !ready.ok()) return ready;
    if (absl::Status written = self().channel().write_ahead(*source, offset, size, target);
        !written.ok()) {
      return written;
    }
    return send_written<CallOptions<Options...>>(
        internal::placed_call(function, target.address, size), done);
  }
  // Writes `buffer`, which may be any memory of the caller (user_buffer.h), to the start of
  // `target`; the destination then calls function(address, size). Blocks until the transfer has
  // completed: `buffer` may be reused when the function returns.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, std::span<const std::byte> buffer,
                         const RemoteMemoryLocator& target, Synchronizer* done = nullptr) {
    require_travelling_function<std::decay_t<F>>();
    if (absl::Status ready = self().sender().setup(); !ready.ok()) return ready;
    if (absl::Status written = internal::write_user_buffer(self().channel().fabric(),
                                                           self().channel().rank(), buffer, target);
        !written.ok()) {
      return written;
    }
    return send<CallOptions<Options...>>(
        internal::placed_call(function, target.address, buffer.size()), done);
  }

  // The destination calls function(arguments...). Its return value is copied into `result`, then
  // `done` is counted down. If the function throws, done.status() becomes INTERNAL, with the
  // exception's type and text. `result` and `done` must live until `done` has been counted down.
  template <auto... Options, typename F, typename T, typename... Args>
  CallResult call_return(F&& function, T& result, Synchronizer& done, Args&&... arguments) {
    internal::require_no_pulling<CallOptions<Options...>>();
    auto encoded = make_call(function, std::forward<Args>(arguments)...);
    static_assert(std::is_same_v<typename decltype(encoded)::Result, T>,
                  "cariama: the called function's return type differs from the type of `result`");
    return send<CallOptions<Options...>>(encoded, &done,
                                         std::make_unique<internal::ResultInto<T>>(result));
  }

 private:
  friend Derived;
  CallInterface() = default;
  [[nodiscard]] Derived& self() { return static_cast<Derived&>(*this); }

  template <typename Options, typename F, typename Done, typename... Args>
  CallResult call_notified(const F& function, Done& done, Args&&... arguments) {
    if constexpr (std::is_same_v<Done, Synchronizer>) {
      return send<Options>(make_call(function, std::forward<Args>(arguments)...), &done);
    } else {
      return send_written<Options>(make_call(function, std::forward<Args>(arguments)...), done);
    }
  }

  template <typename Options, typename Call>
  [[nodiscard]] __attribute__((always_inline)) CallResult send(
      const Call& call, Synchronizer* done,
      std::unique_ptr<internal::ResultReceiver> receiver = nullptr) {
    constexpr WhenNoRoom kWhen = WhenNoRoom::of(Options::kWhenFull, Derived::kDefer);
    if (done == nullptr) [[likely]] {
      return self().sender().template send<Derived::kBatch>(call, kWhen);
    }
    const bool awaited = Options::kNotification == Notification::kConsumed || receiver != nullptr;
    return send_notified(OutgoingCallView::of(call), kWhen, *done, std::move(receiver), awaited);
  }

  // Sends a call whose end is reported to `handle` of this process. If the call is not accepted and
  // `handle` no longer exists, the peer's failure has already been reported through the handle. The
  // function then returns OK, unless `transmitted` is given: `transmitted` was not counted down, so
  // the error is returned.
  template <typename Options, typename Call>
  CallResult send_expecting(const Call& call, uint8_t flags, uint64_t handle,
                            Synchronizer* transmitted) {
    Fabric& fabric = self().channel().fabric();
    OutgoingCallView view = OutgoingCallView::of(call);
    view.flags = flags;
    view.notify = {.handle = handle, .rank = fabric.rank()};
    CallResult sent = self().sender().send_slowly(
        view, WhenNoRoom::of(Options::kWhenFull, Derived::kDefer), Derived::kBatch, transmitted);
    if (sent.ok() || internal::forget_answer(fabric, self().channel().rank(), handle)) return sent;
    return transmitted == nullptr ? CallResult() : sent;
  }

  template <typename Options, typename F>
  CallResult send_lending(const F& function, std::span<const std::byte> buffer,
                          Synchronizer* done) {
    constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
    if (absl::Status ready = self().sender().setup(); !ready.ok()) return ready;
    Fabric& fabric = self().channel().fabric();
    const uint32_t rank = self().channel().rank();
    auto lent = internal::LentBuffer::make(fabric, rank, buffer);
    if (!lent.ok()) return lent.status();
    auto named = internal::locate_for(fabric, rank, (*lent)->memory(), 0, buffer.size());
    if (!named.ok()) return named.status();
    const uint64_t handle =
        internal::lend_until_answered(fabric, rank, *std::move(lent), kConsumed ? done : nullptr);
    return send_expecting<Options>(internal::PulledCall<F, Options::kPulling>(function, *named),
                                   kCallNotify, handle, kConsumed ? nullptr : done);
  }

  template <typename Options, typename Call>
  CallResult send_written(const Call& call, RemoteObject<Synchronizer>& done) {
    constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
    auto target = done.expect(self().channel().rank());
    if (!target.ok()) return target.status();
    OutgoingCallView view = OutgoingCallView::of(call);
    if (kConsumed) {
      view.flags = kCallNotify;
      view.notify = *target;
    }
    CallResult sent = self().sender().send_slowly(
        view, WhenNoRoom::of(Options::kWhenFull, Derived::kDefer), Derived::kBatch, nullptr);
    if (!sent.ok()) return done.forget() ? sent : CallResult();
    if (!kConsumed) done.transmitted();
    return sent;
  }

  CallResult send_notified(OutgoingCallView call, WhenNoRoom when, Synchronizer& done,
                           std::unique_ptr<internal::ResultReceiver> receiver, bool awaited) {
    if (!awaited) return self().sender().send_slowly(call, when, Derived::kBatch, &done);
    call.flags = receiver != nullptr ? kCallReturn : kCallNotify;
    call.notify = self().channel().expect(done, std::move(receiver));
    CallResult sent = self().sender().send_slowly(call, when, Derived::kBatch, nullptr);
    // If the registration no longer exists, the peer's failure has already counted `done` down with
    // its error: the call counts as accepted.
    if (!sent.ok() && !self().channel().forget(call.notify)) return {};
    return sent;
  }

  template <auto... Options, typename F>
  CallResult call_memory(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Synchronizer* done) {
    return with_memory<Options...>(
        std::forward<F>(function), source, offset, size,
        [&](const auto& call) { return send<CallOptions<Options...>>(call, done); });
  }

  // Builds the call that carries the bytes [offset, offset + size) of `source`, or with Sync and
  // Async a locator of them, and passes it to send(call). Returns INVALID_ARGUMENT if the range
  // exceeds `source`.
  template <auto... Options, typename F, typename Send>
  CallResult with_memory(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Send&& send) {
    using Chosen = CallOptions<Options...>;
    if (source == nullptr || offset > source->size() || size > source->size() - offset) {
      return absl::InvalidArgumentError(
          "call_buffer: the range exceeds the memory that it is a part of");
    }
    if constexpr (internal::kPulls<Options...>) {
      auto named = self().channel().locate(*source, offset, size);
      if (!named.ok()) return named.status();
      return send(internal::PulledCall<std::decay_t<F>, Chosen::kPulling>(function, *named));
    } else {
      return send(make_buffer_call(function, {source->get_buffer() + offset, size}));
    }
  }
};

}  // namespace cariama

#endif  // CARIAMA_RIUTILS_CALL_INTERFACE_H_
