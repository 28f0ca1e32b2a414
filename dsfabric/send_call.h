// Send-based calls: any thread may call any thread, or the service of a process, without set-up
// (Seriema §3.1, §4.3).
//
//   call(fabric, thread, [x] { ... });                      // run it there
//   call(fabric, thread, [](std::string s) { ... }, text);  // arguments are serialized
//   Synchronizer run;
//   call<RemoteNotify>(fabric, thread, [] { ... }, run);    // counted down once it has run
//   Synchronizer answered;
//   int sum = 0;
//   call_return(fabric, thread, [] { return 42; }, sum, answered);
//   fabric.wait([&] { return answered.done(); });
//
// All functions return when the call has been handed to the transport: OK, or the reason why it was
// not. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT (longer than a receive unit; within
// the process longer than CallHeader::kMaxBytes, which is 128 MiB less 8 bytes), UNAVAILABLE (the
// destination's process is dead, or the fabric was finalized), RESOURCE_EXHAUSTED (Fail, or inside
// a call: see fabric.h). Once its call was accepted, a Synchronizer is always counted down: by the
// event that it waits for, or by the failure that prevents that event.
//
// Deadlock: a call that waits, inside of itself, for a call to its own thread waits forever (or
// until its deadline), because the calls to a thread run one after the other. A Future detects this
// and returns an error at once. A Synchronizer cannot: it does not know the call that it waits for.
//
// Validation of RemoteMemoryLocators. A target that is too short, that wraps around, or that
// belongs to another process than the destination (`owner`) makes its call fail with
// INVALID_ARGUMENT. If the locator of a buffer to be READ does not belong to the sender, the
// receiver treats the call as malformed, does not run it, and answers with the same error. Only the
// owner's device can check whether a key is valid and covers the range, and it reports an invalid
// access by failing it. By the rules of reliable connections this ends the connection: both queue
// pairs enter the error state, and all work requests posted behind are flushed, whether they were
// executed or not. The connection is not repaired, because it could then no longer promise that
// calls run exactly once. So a locator with an invalid key (of freed memory, for example) ends the
// connection between the two processes.
#ifndef CARIAMA_DSFABRIC_SEND_CALL_H_
#define CARIAMA_DSFABRIC_SEND_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/buffer_pull.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/remote_object.h"
#include "dsfabric/user_buffer.h"
#include "dtutils/synchronizer.h"

namespace cariama {

namespace internal {

// Receives the result of a call.
class ResultReceiver {
 public:
  virtual ~ResultReceiver() = default;
  // Stores the result. Called in the thread that receives the answer. Throws what loading the
  // result throws.
  virtual void receive(std::span<const std::byte> result) = 0;
};

// Sends one encoded call. `destination` is a global thread id, or kNoThread for the service of
// `rank`. When the call has been run, `receiver` gets the result, then `consumed` is counted down;
// both are optional.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_call(
    Fabric& fabric, uint32_t rank, uint32_t destination, OutgoingCallView call, WhenFull when_full,
    Synchronizer* transmitted, Synchronizer* consumed, std::unique_ptr<ResultReceiver> receiver);

template <typename Options, typename Call>
[[nodiscard]] absl::Status send_call(Fabric& fabric, uint32_t destination, const Call& call,
                                     Synchronizer* done,
                                     std::unique_ptr<ResultReceiver> receiver = nullptr,
                                     uint32_t rank = 0) {
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  const bool consumed = kConsumed || receiver != nullptr;
  return send_call(fabric, rank, destination, OutgoingCallView::of(call), Options::kWhenFull,
                   consumed ? nullptr : done, consumed ? done : nullptr, std::move(receiver));
}

template <typename T>
class ResultInto final : public ResultReceiver {
 public:
  explicit ResultInto(T& result) : result_(result) {}
  void receive(std::span<const std::byte> bytes) override { result_ = load_value<T>(bytes); }

 private:
  T& result_;
};

template <typename T>
inline constexpr bool kIsSynchronizer =
    std::is_same_v<std::remove_cvref_t<T>, Synchronizer> ||
    std::is_same_v<std::remove_cvref_t<T>, RemoteObject<Synchronizer>>;

// True if the first of what follows a call's function is a Synchronizer.
template <typename... Given>
inline constexpr bool kSynchronizerFirst = false;
template <typename First, typename... Rest>
inline constexpr bool kSynchronizerFirst<First, Rest...> = kIsSynchronizer<First>;

template <auto... Options>
inline constexpr bool kPulls = (std::is_same_v<decltype(Options), Pulling> || ...);

// Sends a call. The receiver reports its end by a WRITE into `done`.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_call_written(
    Fabric& fabric, uint32_t destination, OutgoingCallView call, WhenFull when_full, bool consumed,
    RemoteObject<Synchronizer>& done);

template <typename Options, typename Call>
[[nodiscard]] absl::Status send_call_written(Fabric& fabric, uint32_t destination, const Call& call,
                                             RemoteObject<Synchronizer>& done) {
  return send_call_written(fabric, destination, OutgoingCallView::of(call), Options::kWhenFull,
                           Options::kNotification == Notification::kConsumed, done);
}

// Returns INVALID_ARGUMENT if `target` cannot be `size` bytes of memory of `rank`, else OK.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status check_target(uint32_t rank,
                                                                const RemoteMemoryLocator& target,
                                                                uint64_t size);

// Writes memory of this process into memory of `rank`. Calls that are sent afterwards find the
// bytes in place.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_ahead(Fabric& fabric, uint32_t rank,
                                                               RDMAMemory& source, uint64_t offset,
                                                               uint64_t size,
                                                               const RemoteMemoryLocator& target);
// Returns the locator by which `rank` can access memory of this process.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<RemoteMemoryLocator> locate_for(
    Fabric& fabric, uint32_t rank, const RDMAMemory& memory, uint64_t offset, uint64_t size);

template <typename Options, typename F, typename Done, typename... Args>
[[nodiscard]] absl::Status call_notified(Fabric& fabric, uint32_t destination, const F& function,
                                         Done& done, Args&&... arguments) {
  const auto call = make_call(function, std::forward<Args>(arguments)...);
  if constexpr (std::is_same_v<Done, Synchronizer>) {
    return send_call<Options>(fabric, destination, call, &done);
  } else {
    return send_call_written<Options>(fabric, destination, call, done);
  }
}

// A call of function(buffer, size) for a buffer that is already in the receiver's memory.
template <typename F>
[[nodiscard]] auto placed_call(const F& function, uint64_t address, uint64_t size) {
  return make_call([function, address, size]() mutable {
    return function(reinterpret_cast<void*>(address), size);
  });
}

// Sends a call that READs `lent`. The end of the call destroys `lent`, and counts `consumed` down.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_lending(
    Fabric& fabric, uint32_t destination, OutgoingCallView call, WhenFull when_full,
    std::unique_ptr<LentBuffer> lent, Synchronizer* transmitted, Synchronizer* consumed);

template <typename Options, typename F>
[[nodiscard]] absl::Status send_pulled(Fabric& fabric, uint32_t destination, const F& function,
                                       std::span<const std::byte> buffer, Synchronizer* done) {
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  const uint32_t rank = fabric.rank_of(destination);
  auto lent = LentBuffer::make(fabric, rank, buffer);
  if (!lent.ok()) return lent.status();
  auto named = locate_for(fabric, rank, (*lent)->memory(), 0, buffer.size());
  if (!named.ok()) return named.status();
  const PulledCall<F, Options::kPulling> call(function, *named);
  return send_lending(fabric, destination, OutgoingCallView::of(call), Options::kWhenFull,
                      *std::move(lent), kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}

}  // namespace internal

// Makes thread `destination` call function(arguments...):
//   call(fabric, destination, function, arguments...)
//   call(fabric, destination, function, done, arguments...)
// `done`, a Synchronizer, is counted down as the notification option says (Table 1: call). If it is
// a RemoteObject<Synchronizer>, in registered memory, the receiver reports the end by one RDMA
// WRITE instead of a call.
template <auto... Options, typename F, typename... Given>
[[nodiscard]] absl::Status call(Fabric& fabric, uint32_t destination, F&& function,
                                Given&&... given) {
  using Chosen = CallOptions<Options...>;
  internal::require_no_pulling<Chosen>();
  if constexpr (internal::kSynchronizerFirst<Given...>) {
    return internal::call_notified<Chosen>(fabric, destination, function,
                                           std::forward<Given>(given)...);
  } else if constexpr ((internal::kIsSynchronizer<Given> || ...)) {
    static_assert(!sizeof(F),
                  "cariama: the Synchronizer of a call stands right behind its function");
    return absl::OkStatus();
  } else {
    internal::require_no_notification<Chosen>();
    return internal::send_call<Chosen>(fabric, destination,
                                       make_call(function, std::forward<Given>(given)...), nullptr);
  }
}

// Makes thread `destination` call function(buffer, size), with the bytes of `buffer` in the message
// (Table 1: call_buffer, side by side). With Sync or Async among the Options, the destination READs
// the buffer instead, as described below; the buffer is then any memory of the caller's
// (user_buffer.h), and must not change before the call has ended.
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       std::span<const std::byte> buffer,
                                       Synchronizer* done = nullptr) {
  using Chosen = CallOptions<Options...>;
  if constexpr (internal::kPulls<Options...>) {
    return internal::send_pulled<Chosen>(fabric, destination, function, buffer, done);
  } else {
    return internal::send_call<Chosen>(fabric, destination, make_buffer_call(function, buffer),
                                       done);
  }
}

// Makes thread `destination` call function(buffer, size) with a part of registered memory, as the
// paper spells it. With Sync or Async among the Options, only the locator travels, and the
// destination READs the buffer. Sync: its consumer waits for the READ before it goes on to its next
// call. Async: the READ proceeds while later calls run, and a thread of the fabric then calls
// function(buffer, size). The memory must not change until the function has ended: use RemoteNotify
// to wait for that. Further error: INVALID_ARGUMENT (the range exceeds the memory).
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       RDMAMemory* source, uint64_t offset, uint64_t size,
                                       Synchronizer* done = nullptr) {
  using Chosen = CallOptions<Options...>;
  auto named = internal::locate_for(fabric, fabric.rank_of(destination), *source, offset, size);
  if (!named.ok()) return named.status();
  if constexpr (internal::kPulls<Options...>) {
    return internal::send_call<Chosen>(
        fabric, destination,
        internal::PulledCall<std::decay_t<F>, Chosen::kPulling>(function, *named), done);
  } else {
    return internal::send_call<Chosen>(
        fabric, destination, make_buffer_call(function, {source->get_buffer() + offset, size}),
        done);
  }
}
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       RDMAMemory* source, uint64_t offset, uint64_t size,
                                       Synchronizer& done) {
  return call_buffer<Options...>(fabric, destination, std::forward<F>(function), source, offset,
                                 size, &done);
}

// The two functions above with a Synchronizer in registered memory: the receiver reports the end by
// one RDMA WRITE instead of a call. An unregistered buffer can only be sent in the message here. A
// READ of it would need an answer that releases its registration, and that answer can as well count
// a plain Synchronizer down.
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       std::span<const std::byte> buffer,
                                       RemoteObject<Synchronizer>& done) {
  static_assert(
      !internal::kPulls<Options...>,
      "cariama: a buffer of your own that is READ (Sync, Async) is released by an answer: "
      "give a plain Synchronizer, or registered memory");
  return internal::send_call_written<CallOptions<Options...>>(
      fabric, destination, make_buffer_call(function, buffer), done);
}
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       RDMAMemory* source, uint64_t offset, uint64_t size,
                                       RemoteObject<Synchronizer>& done) {
  using Chosen = CallOptions<Options...>;
  auto named = internal::locate_for(fabric, fabric.rank_of(destination), *source, offset, size);
  if (!named.ok()) return named.status();
  if constexpr (internal::kPulls<Options...>) {
    return internal::send_call_written<Chosen>(
        fabric, destination,
        internal::PulledCall<std::decay_t<F>, Chosen::kPulling>(function, *named), done);
  } else {
    return internal::send_call_written<Chosen>(
        fabric, destination, make_buffer_call(function, {source->get_buffer() + offset, size}),
        done);
  }
}

// Writes `size` bytes of `source` to the start of `target`, memory of the destination's process
// that this process has the locator of. Then the destination calls function(address of target,
// size). The source may be reused when source->is_free(), at the latest with RemoteNotify (Table 1:
// call_buffer into a given buffer).
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       RDMAMemory* source, uint64_t offset, uint64_t size,
                                       const RemoteMemoryLocator& target,
                                       Synchronizer* done = nullptr) {
  require_travelling_function<std::decay_t<F>>();
  absl::Status written =
      internal::write_ahead(fabric, fabric.rank_of(destination), *source, offset, size, target);
  if (!written.ok()) return written;
  return internal::send_call<CallOptions<Options...>>(
      fabric, destination, internal::placed_call(function, target.address, size), done);
}
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       RDMAMemory* source, uint64_t offset, uint64_t size,
                                       const RemoteMemoryLocator& target,
                                       RemoteObject<Synchronizer>& done) {
  require_travelling_function<std::decay_t<F>>();
  absl::Status written =
      internal::write_ahead(fabric, fabric.rank_of(destination), *source, offset, size, target);
  if (!written.ok()) return written;
  return internal::send_call_written<CallOptions<Options...>>(
      fabric, destination, internal::placed_call(function, target.address, size), done);
}

// Writes any memory of the caller's (user_buffer.h) to the start of `target`; then the destination
// calls function(address of target, buffer.size()). Blocks until the WRITE has completed: `buffer`
// may be reused when this returns.
template <auto... Options, typename F>
[[nodiscard]] absl::Status call_buffer(Fabric& fabric, uint32_t destination, F&& function,
                                       std::span<const std::byte> buffer,
                                       const RemoteMemoryLocator& target,
                                       Synchronizer* done = nullptr) {
  require_travelling_function<std::decay_t<F>>();
  absl::Status written =
      internal::write_user_buffer(fabric, fabric.rank_of(destination), buffer, target);
  if (!written.ok()) return written;
  return internal::send_call<CallOptions<Options...>>(
      fabric, destination, internal::placed_call(function, target.address, buffer.size()), done);
}

// Makes thread `destination` call function(arguments...). The returned value is copied into
// `result`, then `done` is counted down. An exception makes done.status() INTERNAL, with the
// exception's type and text. `result` and `done` must live until then (Table 1: call_return).
template <auto... Options, typename F, typename T, typename... Args>
[[nodiscard]] absl::Status call_return(Fabric& fabric, uint32_t destination, F&& function,
                                       T& result, Synchronizer& done, Args&&... arguments) {
  internal::require_no_pulling<CallOptions<Options...>>();
  auto encoded = make_call(function, std::forward<Args>(arguments)...);
  static_assert(std::is_same_v<typename decltype(encoded)::Result, T>,
                "cariama: the result of this call has another type than the object it is to go to");
  return internal::send_call<CallOptions<Options...>>(
      fabric, destination, encoded, &done, std::make_unique<internal::ResultInto<T>>(result));
}

// Makes the service of process `rank` call function(arguments...): a service call (Seriema §4.3).
// The function runs in a service thread, and must not block.
template <auto... Options, typename F, typename... Args>
[[nodiscard]] absl::Status service_call(Fabric& fabric, uint32_t rank, F&& function,
                                        Synchronizer* done, Args&&... arguments) {
  return internal::send_call<CallOptions<Options...>>(
      fabric, kNoThread, make_call(function, std::forward<Args>(arguments)...), done, nullptr,
      rank);
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_SEND_CALL_H_
