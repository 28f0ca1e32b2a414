// Completions: the objects that get the two events of a call (Seriema §3.1). One-sided transfers
// notify the same objects of their end: transfer_completion.h, GlobalTransfer::notify().
//
//   Synchronizer sent;
//   Future<void> run;
//   call(fabric, thread, [] { ... }, on_transmitted(sent) | on_consumed(run));
//   messenger.call_buffer(function, buffer, on_consumed([](const absl::Status& status) { ... }));
//   call<RemoteNotify>(fabric, thread, [] { ... }, synchronizer, 5);   // the paper's short form
//
// Events.
//   transmitted  A one-sided call was published. A send-based call was accepted: handed to the
//                transport, or deferred. (The closure, the arguments and a buffer that travels
//                with the call were copied, and may be reused, when the calling function
//                returned. Registered memory that call_buffer WRITEs to a target may be reused when
//                the call was transmitted.) A broadcast was transmitted when the parts for all
//                children were accepted.
//   consumed     The destination has run the call: a buffer that it READ may be reused. For
//                call_return: the result is in place.
//
// Objects. Each event may have one:
//   Synchronizer&                is counted down, or fails
//   Future<void>&                becomes the future of the event
//   a callback                   of type void(const absl::Status&); it is copied or moved into the
//                                call. It runs where a coroutine of the calling thread would resume
//                                (future.h): like a call to that thread, or before the call
//                                returns if the event has happened by then. An exception that
//                                leaves it terminates the process.
//   RemoteObject<Synchronizer>&  for consumed only: the destination counts it down by one RDMA
//                                WRITE instead of an answering call
//
// Place. The completions of a call, if any, are one argument:
//   call, service_call, broadcast    behind the function, before the function's arguments
//   call_return                      behind the result, before the function's arguments
//   call_buffer, broadcast_buffer    at the end
// Short form: a Synchronizer, Future<void> or RemoteObject alone. The option LocalNotify (the
// default) or RemoteNotify then says which event it gets; with call_return it is always consumed.
//
// Promise. If the call is accepted (its CallResult is OK), each object gets its event once:
// success, or the failure that prevents it. If the call is not accepted, Synchronizers and
// callbacks get nothing, and a Future is ready with the error. Synchronizers, RemoteObjects and the
// result of call_return must live until their event. An event without an object costs nothing, with
// one exception: a span passed with Sync or Async needs one answer, which ends the loan of its
// memory.
//
// Failures of `consumed`: INTERNAL (the function threw; the buffer could not be read),
// INVALID_ARGUMENT (the destination found the arguments malformed), UNIMPLEMENTED (it does not know
// the function), UNAVAILABLE (its process is dead); if a channel has failed while the call was
// deferred, the error of the channel.
#ifndef CARIAMA_DSFABRIC_COMPLETIONS_H_
#define CARIAMA_DSFABRIC_COMPLETIONS_H_

#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/call_options.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/ids.h"
#include "dsfabric/remote_object.h"
#include "dtutils/synchronizer.h"

namespace cariama {

// The return type of on_transmitted() and on_consumed(), and of their combination by |. Use it
// within one expression.
template <typename Transmitted, typename Consumed>
struct [[nodiscard]] Completions {
  [[no_unique_address]] Transmitted transmitted;
  [[no_unique_address]] Consumed consumed;
};

namespace internal {

struct NoCompletion {};
using NoCompletions = Completions<NoCompletion, NoCompletion>;

// An object that gets an event, without its type: nothing, a Synchronizer, or the state of a
// Future.
class CARIAMA_DSFABRIC_EXPORT EventReceiver {
 public:
  EventReceiver() = default;
  explicit EventReceiver(Synchronizer& synchronizer) : synchronizer_(&synchronizer) {}
  explicit EventReceiver(std::shared_ptr<FutureState> state) : state_(std::move(state)) {}

  explicit operator bool() const { return synchronizer_ != nullptr || state_ != nullptr; }
  // Called once, when the event has happened or has become impossible (`status` is then the
  // reason). A Future of a result loads the result from `result`.
  void complete(const absl::Status& status, std::span<const std::byte> result = {}) const;

 private:
  Synchronizer* synchronizer_ = nullptr;
  std::shared_ptr<FutureState> state_;
};

// True if T is a Synchronizer, a Future<void>, a RemoteObject<Synchronizer>, or a reference to one.
// These are passed by reference.
template <typename T>
inline constexpr bool kIsCompletionObject =
    std::is_same_v<std::remove_cvref_t<T>, Synchronizer> ||
    std::is_same_v<std::remove_cvref_t<T>, RemoteObject<Synchronizer>> ||
    std::is_same_v<std::remove_cvref_t<T>, Future<void>>;

template <typename T>
inline constexpr bool kIsCompletions = false;
template <typename Transmitted, typename Consumed>
inline constexpr bool kIsCompletions<Completions<Transmitted, Consumed>> = true;

// True for the types that may stand in the place of the completions of a call.
template <typename T>
inline constexpr bool kIsCompletion =
    kIsCompletionObject<T> || kIsCompletions<std::remove_cvref_t<T>>;

// How Completions stores an object, given as T&&: by address if it is passed by reference, else a
// callback by value.
template <typename T>
using StoredCompletion =
    std::conditional_t<kIsCompletionObject<T>, std::remove_reference_t<T>*, std::decay_t<T>>;

template <typename T>
inline constexpr bool kCanComplete =
    kIsCompletionObject<T>
        ? std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>
        : std::is_invocable_v<std::decay_t<T>&, const absl::Status&>;

template <typename T>
[[nodiscard]] constexpr StoredCompletion<T> store_completion(T&& object) {
  if constexpr (kIsCompletionObject<T>) {
    return &object;
  } else {
    return std::forward<T>(object);
  }
}

template <typename T>
constexpr bool require_completion() {
  static_assert(kCanComplete<T>,
                "cariama: an event of a call takes a Synchronizer or a Future<void> by reference, "
                "or a callback that takes a const absl::Status&");
  return kCanComplete<T>;
}

// A coroutine that has not begun. It destroys itself at its end, or is destroyed with this object
// unless start() was called. An exception that leaves it terminates the process.
class Prepared {
 public:
  struct promise_type {
    Prepared get_return_object() {
      return Prepared(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  Prepared(Prepared&& other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
  Prepared& operator=(Prepared&&) = delete;
  ~Prepared() {
    if (coroutine_) coroutine_.destroy();
  }
  void start() { std::exchange(coroutine_, {}).resume(); }

 private:
  explicit Prepared(std::coroutine_handle<> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<> coroutine_;
};

// Runs `callback` when `event` is ready: immediately, or where the calling thread's coroutines
// resume.
template <typename Callback>
Prepared run_after(Future<void> event, Callback callback) {
  const absl::Status status = co_await event;
  callback(status);
}

// Connects one object, here a callback, with an event. Construct it before the call is sent or the
// transfer is handed over; then call sent() with OK, or with the reason why that was refused. The
// constructor allocates all that the event needs: sent() comes too late for std::bad_alloc.
template <typename Object>
class EventObject {
 public:
  EventObject(Fabric& fabric, Rank rank, ThreadId thread, Object callback, EventReceiver& event)
      : EventObject(std::make_shared<FutureValue<void>>(fabric), std::move(callback)) {
    state_->calls(rank, thread);
    state_->prepare();
    event = EventReceiver(state_);
  }
  void sent(const absl::Status& accepted) {
    if (accepted.ok()) run_.start();
  }

 private:
  EventObject(std::shared_ptr<FutureValue<void>> state, Object callback)
      : state_(std::move(state)), run_(run_after(FutureAccess::of(state_), std::move(callback))) {}

  std::shared_ptr<FutureValue<void>> state_;
  Prepared run_;
};
template <>
class EventObject<NoCompletion> {
 public:
  EventObject(Fabric&, Rank, ThreadId, NoCompletion, EventReceiver&) {}
  void sent(const absl::Status&) {}
};
template <>
class EventObject<Synchronizer*> {
 public:
  EventObject(Fabric&, Rank, ThreadId, Synchronizer* done, EventReceiver& event) {
    event = EventReceiver(*done);
  }
  void sent(const absl::Status&) {}
};
template <>
class EventObject<Future<void>*> {
 public:
  EventObject(Fabric& fabric, Rank rank, ThreadId thread, Future<void>* future,
              EventReceiver& event)
      : state_(std::make_shared<FutureValue<void>>(fabric)) {
    state_->calls(rank, thread);
    event = EventReceiver(state_);
    *future = FutureAccess::of(state_);
  }
  void sent(const absl::Status& accepted) {
    if (!accepted.ok()) state_->finish(accepted, {});
  }

 private:
  std::shared_ptr<FutureValue<void>> state_;
};

}  // namespace internal

// Makes `object` the completion for the event "transmitted" of a call.
template <typename Object>
[[nodiscard]] constexpr auto on_transmitted(Object&& object) {
  constexpr bool kWritten = std::is_same_v<std::remove_cvref_t<Object>, RemoteObject<Synchronizer>>;
  static_assert(!kWritten,
                "cariama: the destination counts a RemoteObject down, when it has run the call: "
                "give RemoteNotify or on_consumed()");
  if constexpr (kWritten) {
    return internal::NoCompletions{};
  } else if constexpr (internal::require_completion<Object>()) {
    return Completions<internal::StoredCompletion<Object>, internal::NoCompletion>{
        internal::store_completion<Object>(std::forward<Object>(object)), {}};
  } else {
    return internal::NoCompletions{};
  }
}

// Makes `object` the completion for the event "consumed" of a call.
template <typename Object>
[[nodiscard]] constexpr auto on_consumed(Object&& object) {
  if constexpr (internal::require_completion<Object>()) {
    return Completions<internal::NoCompletion, internal::StoredCompletion<Object>>{
        {}, internal::store_completion<Object>(std::forward<Object>(object))};
  } else {
    return internal::NoCompletions{};
  }
}

template <typename T1, typename C1, typename T2, typename C2>
[[nodiscard]] constexpr auto operator|(Completions<T1, C1> one, Completions<T2, C2> other) {
  using internal::NoCompletion;
  constexpr bool kOneTransmitted = !std::is_same_v<T1, NoCompletion>;
  constexpr bool kOneConsumed = !std::is_same_v<C1, NoCompletion>;
  constexpr bool kTwice = (kOneTransmitted && !std::is_same_v<T2, NoCompletion>) ||
                          (kOneConsumed && !std::is_same_v<C2, NoCompletion>);
  static_assert(!kTwice, "cariama: each event of a call has at most one completion");
  if constexpr (kTwice) {
    return one;
  } else if constexpr (kOneTransmitted) {
    return Completions<T1, C2>{std::move(one.transmitted), std::move(other.consumed)};
  } else {
    return Completions<T2, C1>{std::move(other.transmitted), std::move(one.consumed)};
  }
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_COMPLETIONS_H_
