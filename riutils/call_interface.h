// The calls of Seriema's Table 1 in their one-sided form, the same for messengers and aggregators.
// Names, arguments and options are those of the send-based calls (send_call.h), without fabric and
// destination.
//
// Each returns when the call has been accepted: OK, or the reason why it was not. Errors:
// INVALID_ARGUMENT (longer than a chunk takes), RESOURCE_EXHAUSTED (no room, as the options say),
// UNAVAILABLE (the destination's process is dead, or the fabric was finalized), those of setup() at
// the first call.
//
// A Synchronizer is counted down when the call has left (LocalNotify: published; what it was made
// from may be reused even before, when the function has returned) or has been run (RemoteNotify).
// Once its call was accepted it is always counted down, by the event or by the failure that
// prevents it.
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

// What a channel does besides sending. Made by the runtime of this layer.
class CARIAMA_RIUTILS_EXPORT OutgoingChannel {
 public:
  virtual ~OutgoingChannel() = default;
  [[nodiscard]] virtual ChannelSender& sender() = 0;
  [[nodiscard]] virtual Fabric& fabric() = 0;
  [[nodiscard]] virtual uint32_t rank() const = 0;  // of the destination's process
  // Has `done` counted down when the call that carries the target has been run; `receiver` gets its
  // result.
  [[nodiscard]] virtual NotifyTarget expect(Synchronizer& done,
                                            std::unique_ptr<internal::ResultReceiver> receiver) = 0;
  // Takes that back, of a call that was not accepted. False: it has failed meanwhile.
  virtual bool forget(const NotifyTarget& target) = 0;
  // Writes local memory into memory of the destination's process, so that a call that is sent
  // afterwards finds it there. Waits at most for the transport.
  [[nodiscard]] virtual absl::Status write_ahead(RDMAMemory& source, uint64_t offset,
                                                 uint64_t bytes,
                                                 const RemoteMemoryLocator& target) = 0;
  // The name of local memory for the destination's process.
  [[nodiscard]] virtual absl::StatusOr<RemoteMemoryLocator> locate(const RDMAMemory& memory,
                                                                   uint64_t offset,
                                                                   uint64_t bytes) = 0;
};

template <typename Derived>
class CallInterface {
 public:
  // The destination calls function(arguments...).
  template <auto... Options, typename F, typename... Args>
  requires(sizeof...(Args) == 0 || !(internal::kIsSynchronizer<Args> || ...)) CallResult
      call(F&& function, Args&&... arguments) {
    return send<CallOptions<Options...>>(make_call(function, std::forward<Args>(arguments)...),
                                         nullptr);
  }
  template <auto... Options, typename F>
  CallResult call(F&& function, Synchronizer& done) {
    return send<CallOptions<Options...>>(make_call(function), &done);
  }
  // The same with a Synchronizer in registered memory: its end is one RDMA WRITE, and no call. With
  // LocalNotify it is counted down when the call is accepted: what it was made from may be reused.
  template <auto... Options, typename F>
  CallResult call(F&& function, RemoteObject<Synchronizer>& done) {
    return send_written<CallOptions<Options...>>(make_call(std::forward<F>(function)), done);
  }

  // As call_return(), with the result as a Future: get() it, or co_await it (future.h). A call that
  // is not accepted is a future that is ready.
  template <auto... Options, typename F, typename... Args>
  [[nodiscard]] auto async_call(F&& function, Args&&... arguments) {
    const auto call = make_call(std::forward<F>(function), std::forward<Args>(arguments)...);
    auto state = std::make_shared<internal::FutureValue<typename decltype(call)::Result>>(
        self().channel().fabric());
    const uint64_t handle =
        internal::expect_future(self().channel().fabric(), self().channel().rank(), state);
    CallResult sent = send_expecting<CallOptions<Options...>>(call, kCallReturn, handle, nullptr);
    if (!sent.ok()) state->finish(sent.status(), {});
    return Future(std::move(state));
  }

  // The destination calls function(buffer, size), the buffer side by side with the call. With Sync
  // or Async among the options it is not sent along but READ, as below; it is any memory of the
  // caller's (user_buffer.h), and must not change before the call has ended.
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

  // The same with a part of registered memory, as the paper spells it. With Sync or Async among the
  // options only its name travels: the destination READs it, Sync before it goes on to its next
  // call, Async beside them, and calls function(buffer, size) then; the memory must not change
  // before: RemoteNotify tells.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Synchronizer& done) {
    return call_memory<Options...>(std::forward<F>(function), source, offset, size, &done);
  }
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size) {
    return call_memory<Options...>(std::forward<F>(function), source, offset, size, nullptr);
  }

  // Both with a Synchronizer in registered memory: their end is one RDMA WRITE, and no call. A
  // buffer that nobody registered is sent along: one that is READ has to be released by an answer,
  // which can count a plain Synchronizer down as well.
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, std::span<const std::byte> buffer,
                         RemoteObject<Synchronizer>& done) {
    static_assert(!internal::kPulls<Options...>,
                  "cariama: a buffer of your own that is READ (Sync, Async) is released by an "
                  "answer: give a plain Synchronizer, or registered memory");
    return send_written<CallOptions<Options...>>(make_buffer_call(function, buffer), done);
  }
  template <auto... Options, typename F>
  CallResult call_buffer(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         RemoteObject<Synchronizer>& done) {
    return with_memory<Options...>(
        std::forward<F>(function), source, offset, size,
        [&](const auto& call) { return send_written<CallOptions<Options...>>(call, done); });
  }

  // `size` bytes of `source` are written to the start of `target`, memory of the destination's
  // process; then it calls function(where that is, size). The memory may be reused when
  // source->is_free().
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
  // The same with any memory of the caller's (user_buffer.h), which may be reused when this
  // returns: it waits for the transfer.
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

  // The destination calls function(arguments...); what it returns is copied into `result`, then
  // `done` is counted down. An exception there becomes done.status(): INTERNAL, with its type and
  // text. Both must live until then.
  template <auto... Options, typename F, typename T, typename... Args>
  CallResult call_return(F&& function, T& result, Synchronizer& done, Args&&... arguments) {
    auto encoded = make_call(function, std::forward<Args>(arguments)...);
    static_assert(
        std::is_same_v<typename decltype(encoded)::Result, T>,
        "cariama: the result of this call has another type than the object it is to go to");
    return send<CallOptions<Options...>>(encoded, &done,
                                         std::make_unique<internal::ResultInto<T>>(result));
  }

 private:
  friend Derived;
  CallInterface() = default;
  [[nodiscard]] Derived& self() { return static_cast<Derived&>(*this); }

  template <typename Options, typename Call>
  [[nodiscard]] __attribute__((always_inline)) CallResult send(
      const Call& call, Synchronizer* done,
      std::unique_ptr<internal::ResultReceiver> receiver = nullptr) {
    constexpr WhenNoRoom kWhen = WhenNoRoom::of(Options::kWhenFull, Derived::kKeep);
    if (done == nullptr) [[likely]] {
      return self().sender().template send<Derived::kHold>(call, kWhen);
    }
    const bool awaited = Options::kNotification == Notification::kConsumed || receiver != nullptr;
    return send_notified(OutgoingCallView::of(call), kWhen, *done, std::move(receiver), awaited);
  }

  // A call whose end is told to `handle` of this process. If it is not accepted and the handle is
  // not there any more, the peer's failure has told it: that is its end.
  template <typename Options, typename Call>
  CallResult send_expecting(const Call& call, uint8_t flags, uint64_t handle,
                            Synchronizer* transmitted) {
    Fabric& fabric = self().channel().fabric();
    OutgoingCallView view = OutgoingCallView::of(call);
    view.flags = flags;
    view.notify = {.handle = handle, .rank = fabric.rank()};
    CallResult sent = self().sender().send_slowly(
        view, WhenNoRoom::of(Options::kWhenFull, Derived::kKeep), Derived::kHold, transmitted);
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
        view, WhenNoRoom::of(Options::kWhenFull, Derived::kKeep), Derived::kHold, nullptr);
    if (!sent.ok()) return done.forget() ? sent : CallResult();
    if (!kConsumed) done.transmitted();
    return sent;
  }

  CallResult send_notified(OutgoingCallView call, WhenNoRoom when, Synchronizer& done,
                           std::unique_ptr<internal::ResultReceiver> receiver, bool awaited) {
    if (!awaited) return self().sender().send_slowly(call, when, Derived::kHold, &done);
    call.flags = receiver != nullptr ? kCallReturn : kCallNotify;
    call.notify = self().channel().expect(done, std::move(receiver));
    CallResult sent = self().sender().send_slowly(call, when, Derived::kHold, nullptr);
    // If it is not there any more, the peer's failure has counted it down: that is its end.
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

  // send(call), of the call that carries this part of registered memory, or its name.
  template <auto... Options, typename F, typename Send>
  CallResult with_memory(F&& function, RDMAMemory* source, uint64_t offset, uint64_t size,
                         Send&& send) {
    using Chosen = CallOptions<Options...>;
    if (source == nullptr || offset > source->size() || size > source->size() - offset) {
      return absl::InvalidArgumentError(
          "call_buffer: the range leaves the memory that it is a part of");
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
