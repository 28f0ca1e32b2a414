// Send-based calls: no set-up, from any thread, to any thread or to the service of a process
// (Seriema §3.1, §4.3).
//
//   call(fabric, thread, [x] { ... });                      // run it there
//   call(fabric, thread, [](std::string s) { ... }, text);  // arguments are serialized
//   Synchronizer run;
//   call<RemoteNotify>(fabric, thread, [] { ... }, run);       // counted down once it has been run
//   Synchronizer answered;
//   int sum = 0;
//   call_return(fabric, thread, [] { return 42; }, sum, answered);
//   fabric.wait([&] { return answered.done(); });
//
// All of them return when the call has been handed to the transport: OK, or the reason why it was
// not. Errors: OUT_OF_RANGE (no such thread), INVALID_ARGUMENT (longer than a receive unit),
// UNAVAILABLE (the destination's process is dead, or the fabric was finalized), RESOURCE_EXHAUSTED
// (Fail, or inside a call: see fabric.h). A Synchronizer, once its call was accepted, is always
// counted down: by the event, or by the failure that prevents it.
//
// A call that waits inside of itself for a call to its own thread waits for ever (or until its
// deadline): the calls to a thread are run one after the other. A Future says so at once; a
// Synchronizer cannot know what it waits for.
//
// Names of memory (RemoteMemoryLocator) are checked as far as they show: a place that is too short,
// that wraps around, or of another process (`owner`), is INVALID_ARGUMENT of its call; a name
// of a buffer to be READ that is not its sender's makes a malformed call, which is not run and is
// answered with the same. Whether a key is one of the owner's, and covers the range, nobody but its
// device knows, and that finds out by failing the access, which by the rules of reliable
// connections ends the connection: both queue pairs go into the error state, and what was posted
// behind is flushed, done or not. A connection that went on could not promise that calls run once.
// So a name with a false key (of memory that was freed, say) ends the connection of the two.
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

// Where the result of a call goes.
class ResultReceiver {
 public:
  virtual ~ResultReceiver() = default;
  // In the thread that the answer reached. Throws what loading the result throws.
  virtual void receive(std::span<const std::byte> result) = 0;
};

// Sends one encoded call; `destination` is a global thread id, or kNoThread for the service of
// `rank`. `consumed`, if given, is counted down when the call has been run, with `receiver` filled
// before.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_call(
    Fabric& fabric, uint32_t rank, uint32_t destination, FunctionId id, size_t bytes,
    const void* call, void (*write)(const void* call, std::byte* at), WhenFull when_full,
    Synchronizer* transmitted, Synchronizer* consumed, std::unique_ptr<ResultReceiver> receiver);

template <typename Options, typename Call>
[[nodiscard]] absl::Status send_call(Fabric& fabric, uint32_t destination, const Call& call,
                                     Synchronizer* done,
                                     std::unique_ptr<ResultReceiver> receiver = nullptr,
                                     uint32_t rank = 0) {
  constexpr bool kConsumed = Options::kNotification == Notification::kConsumed;
  const bool consumed = kConsumed || receiver != nullptr;
  return send_call(
      fabric, rank, destination, Call::id(), call.bytes(), &call,
      [](const void* self, std::byte* at) { static_cast<const Call*>(self)->write(at); },
      Options::kWhenFull, consumed ? nullptr : done, consumed ? done : nullptr,
      std::move(receiver));
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

template <auto... Options>
inline constexpr bool kPulls = (std::is_same_v<decltype(Options), Pulling> || ...);

// Sends a call whose end is written into `done`.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_call_written(
    Fabric& fabric, uint32_t destination, FunctionId id, size_t bytes, const void* call,
    void (*write)(const void* call, std::byte* at), WhenFull when_full, bool consumed,
    RemoteObject<Synchronizer>& done);

template <typename Options, typename Call>
[[nodiscard]] absl::Status send_call_written(Fabric& fabric, uint32_t destination, const Call& call,
                                             RemoteObject<Synchronizer>& done) {
  return send_call_written(
      fabric, destination, Call::id(), call.bytes(), &call,
      [](const void* self, std::byte* at) { static_cast<const Call*>(self)->write(at); },
      Options::kWhenFull, Options::kNotification == Notification::kConsumed, done);
}

// Whether `target` can be `size` bytes of memory of `rank`: OK, or INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status check_target(uint32_t rank,
                                                                const RemoteMemoryLocator& target,
                                                                uint64_t size);

// Writes memory of this process into memory of `rank`'s; calls that are sent afterwards find it
// there.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_ahead(Fabric& fabric, uint32_t rank,
                                                               RDMAMemory& source, uint64_t offset,
                                                               uint64_t size,
                                                               const RemoteMemoryLocator& target);
// The name that `rank` has for memory of this process.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<RemoteMemoryLocator> locate_for(
    Fabric& fabric, uint32_t rank, const RDMAMemory& memory, uint64_t offset, uint64_t size);

// function(buffer, size), of a buffer that is there already.
template <typename F>
[[nodiscard]] auto placed_call(const F& function, uint64_t address, uint64_t size) {
  return make_call([function, address, size]() mutable {
    return function(reinterpret_cast<void*>(address), size);
  });
}

// Sends a call whose end releases `lent`, which it READs, and counts `consumed` down.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_lending(
    Fabric& fabric, uint32_t destination, FunctionId id, size_t bytes, const void* call,
    void (*write)(const void* call, std::byte* at), WhenFull when_full,
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
  using Call = PulledCall<F, Options::kPulling>;
  const Call call(function, *named);
  return send_lending(
      fabric, destination, Call::id(), call.bytes(), &call,
      [](const void* self, std::byte* at) { static_cast<const Call*>(self)->write(at); },
      Options::kWhenFull, *std::move(lent), kConsumed ? nullptr : done, kConsumed ? done : nullptr);
}

}  // namespace internal

// Thread `destination` calls function(arguments...).
template <auto... Options, typename F, typename... Args>
requires(sizeof...(Args) == 0 || !(internal::kIsSynchronizer<Args> || ...))
    [[nodiscard]] absl::Status
    call(Fabric& fabric, uint32_t destination, F&& function, Args&&... arguments) {
  return internal::send_call<CallOptions<Options...>>(
      fabric, destination, make_call(function, std::forward<Args>(arguments)...), nullptr);
}

// The same without arguments; `done` is counted down as Options say (Table 1: call).
template <auto... Options, typename F>
[[nodiscard]] absl::Status call(Fabric& fabric, uint32_t destination, F&& function,
                                Synchronizer& done) {
  return internal::send_call<CallOptions<Options...>>(fabric, destination, make_call(function),
                                                      &done);
}

// The same with a Synchronizer in registered memory: its end is one RDMA WRITE, and no call.
template <auto... Options, typename F>
[[nodiscard]] absl::Status call(Fabric& fabric, uint32_t destination, F&& function,
                                RemoteObject<Synchronizer>& done) {
  return internal::send_call_written<CallOptions<Options...>>(fabric, destination,
                                                              make_call(function), done);
}

// Thread `destination` calls function(buffer, size) with `buffer` sent along (Table 1: call_buffer,
// side by side). With Sync or Async among the options it is not sent along but READ, as below;
// then, too, it is any memory of the caller's (user_buffer.h), and must not change before the call
// has ended.
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

// The same with a part of registered memory, as the paper spells it. With Sync or Async among the
// options only its name travels: the destination READs it, Sync before it goes on to its next call,
// Async beside them (in a thread of the fabric), and calls function(buffer, size) then. The memory
// must not change until that has ended: RemoteNotify tells. Errors, besides: INVALID_ARGUMENT (the
// range leaves the memory).
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

// Both with a Synchronizer in registered memory: their end is one RDMA WRITE, and no call. A buffer
// that nobody registered is sent along: one that is READ has to be released by an answer, which can
// count a plain Synchronizer down as well.
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

// `size` bytes of `source` are written to the start of `target`, memory of the destination's
// process that it has named; then the destination calls function(where that is, size). The memory
// may be reused when source->is_free(), at the latest with RemoteNotify (Table 1: call_buffer into
// a given buffer).
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

// The same with any memory of the caller's (user_buffer.h), which may be reused when this returns:
// it waits for the transfer.
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

// Thread `destination` calls function(arguments...); what it returns is copied into `result`, then
// `done` is counted down. An exception there becomes done.status(): INTERNAL, with its type and
// text. Both must live until then (Table 1: call_return).
template <auto... Options, typename F, typename T, typename... Args>
[[nodiscard]] absl::Status call_return(Fabric& fabric, uint32_t destination, F&& function,
                                       T& result, Synchronizer& done, Args&&... arguments) {
  auto encoded = make_call(function, std::forward<Args>(arguments)...);
  static_assert(std::is_same_v<typename decltype(encoded)::Result, T>,
                "cariama: the result of this call has another type than the object it is to go to");
  return internal::send_call<CallOptions<Options...>>(
      fabric, destination, encoded, &done, std::make_unique<internal::ResultInto<T>>(result));
}

// The service of process `rank` calls function(arguments...): a service call (Seriema §4.3). It
// runs in a service thread, and must not block.
template <auto... Options, typename F, typename... Args>
[[nodiscard]] absl::Status service_call(Fabric& fabric, uint32_t rank, F&& function,
                                        Synchronizer* done, Args&&... arguments) {
  return internal::send_call<CallOptions<Options...>>(
      fabric, kNoThread, make_call(function, std::forward<Args>(arguments)...), done, nullptr,
      rank);
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_SEND_CALL_H_
