// The forms of calls of Seriema's Table 1, defined once for all paths: the arguments, options and
// completions of each form, the checks at compile time, and the encoded call. send_call.h and
// riutils supply the paths. Not for users: they include those headers.
//
// A path P to one destination has
//   fabric(), rank(), thread()   the destination; thread() is kService for a service
//   send<Options>(call)          sends a call without completions
//   send<Options>(view, end)     sends a call and notifies the objects of `end` (CallEnd)
//   prepare()                    sets the path up: called before memory is prepared for a transfer
//   kWritesOutcome               the destination can write the outcome into a RemoteObject
//   write_ahead(...)             writes memory of this process into memory of the destination's
//                                process; calls that are sent afterwards find the bytes in place
// A path without prepare() and write_ahead() has only calls whose buffers are copied.
#ifndef CARIAMA_DSFABRIC_CALL_FORMS_H_
#define CARIAMA_DSFABRIC_CALL_FORMS_H_

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
#include "dsfabric/completions.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/remote_object.h"
#include "dsfabric/user_buffer.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"

namespace cariama::internal {

// Receives the result of a call.
class ResultReceiver {
 public:
  virtual ~ResultReceiver() = default;
  // Stores the result. Called in the thread that receives the answer. Throws what loading the
  // result throws.
  virtual void receive(std::span<const std::byte> result) = 0;
};

template <typename T>
class ResultInto final : public ResultReceiver {
 public:
  explicit ResultInto(T& result) : result_(result) {}
  void receive(std::span<const std::byte> bytes) override { result_ = load_value<T>(bytes); }

 private:
  T& result_;
};

// The objects that are notified of the events of one call. Without any, the destination sends no
// answer.
class CARIAMA_DSFABRIC_EXPORT CallEnd {
 public:
  EventReceiver transmitted;
  // When the call has run or failed, in this order: `receiver` gets the result, `lent` is
  // destroyed, `consumed` is completed.
  std::unique_ptr<ResultReceiver> receiver;
  std::unique_ptr<LentBuffer> lent;
  EventReceiver consumed;
  bool result_to_consumed = false;  // `consumed` is the Future of the call's result
  // In place of `receiver`, `lent` and `consumed`: the destination writes the outcome here.
  RemoteObject<Synchronizer>* written = nullptr;

  // Registers the objects that wait for process `rank` to end the call, and makes `call` request a
  // report of its end. `router`: a process that forwards the call; its failure ends the call, too.
  // Error: RESOURCE_EXHAUSTED (`written` has no operation left). Requires: there is such a rank;
  // with a router, `written` is nullptr.
  [[nodiscard]] absl::Status expect(Fabric& fabric, Rank rank, OutgoingCall& call,
                                    Rank router = kNoRank);
  // Called if the call of the last expect() was not accepted because of `why`. Withdraws the
  // registration, and returns `why`. If a failure of the process has reported the end of the call
  // meanwhile, the call counts as accepted: completes `transmitted` with `why`, and returns OK.
  [[nodiscard]] CallResult refused(Fabric& fabric, Rank rank, const OutgoingCall& call,
                                   const absl::Status& why);

 private:
  bool reported_ = false;  // the caller learns of the end by `consumed` or `written`
};

// Returns OK if `memory` contains `size` bytes at `offset`. Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status check_range(const RDMAMemory* memory,
                                                               uint64_t offset, uint64_t size);
// Returns the locator by which `rank` can access memory of this process.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<RemoteMemoryLocator> locate_for(
    Fabric& fabric, Rank rank, const RDMAMemory& memory, uint64_t offset, uint64_t size);

// Checks that no completion stands in the place of the function, for all forms.
template <typename F = void, typename... Rest>
constexpr bool require_function() {
  static_assert(!kIsCompletion<F>,
                "cariama: a completion stands in the place of the function; the function of a call "
                "comes first, and its completions stand behind it");
  return !kIsCompletion<F>;
}

// ---- Calls that lack a part ---------------------------------------------------------------------

// What each form of call requires before completions and arguments. A call without it matches an
// overload that prints one error, by refuse().
enum class CallForm : uint8_t {
  kCall,    // a function
  kBuffer,  // a function and a buffer: a span, or RDMAMemory*, offset and size
  kReturn,  // a function, a variable for its result, and a completion
};
template <CallForm kForm, typename... Given>
inline constexpr bool kIsWhole = false;
template <typename F, typename... Rest>
inline constexpr bool kIsWhole<CallForm::kCall, F, Rest...> = true;
template <typename F, typename Source, typename... Rest>
inline constexpr bool kIsWhole<CallForm::kBuffer, F, Source, Rest...> =
    !kIsCompletion<F> && (std::is_convertible_v<Source, std::span<const std::byte>> ||
                          (sizeof...(Rest) >= 2 && std::is_convertible_v<Source, RDMAMemory*>));
template <typename F, typename T, typename Completion, typename... Rest>
inline constexpr bool kIsWhole<CallForm::kReturn, F, T, Completion, Rest...> =
    !kIsCompletion<F> && std::is_lvalue_reference_v<T>;
// As kIsWhole, with a destination before the function.
template <CallForm kForm, typename... Given>
inline constexpr bool kIsAddressed = false;
template <CallForm kForm, typename To, typename... Rest>
inline constexpr bool kIsAddressed<kForm, To, Rest...> =
    std::is_convertible_v<To, ThreadId>&& kIsWhole<kForm, Rest...>;

template <CallForm kForm, typename... Given>
CallResult refuse() {
  constexpr bool kWhole = kIsWhole<kForm, Given...>;
  if constexpr (!require_function<Given...>()) {
    return {};
  } else if constexpr (kForm == CallForm::kBuffer) {
    static_assert(kWhole,
                  "cariama: behind the function of a call with a buffer stands the buffer: a "
                  "std::span<const std::byte>, such as std::as_bytes(std::span(values)), or an "
                  "RDMAMemory*, an offset and a size");
  } else if constexpr (kForm == CallForm::kReturn) {
    static_assert(kWhole,
                  "cariama: behind the function of call_return stand a variable for its result and "
                  "a completion: a Synchronizer, a Future<void> or on_consumed(...)");
  } else {
    static_assert(kWhole, "cariama: a function stands behind the destination of a call");
  }
  return {};
}
template <CallForm kForm, typename To = void, typename... Rest>
CallResult refuse_addressed() {
  constexpr bool kNamed = std::is_convertible_v<To, ThreadId>;
  static_assert(kNamed,
                "cariama: the destination of a call, a ThreadId such as fabric.thread_of(rank), "
                "stands before its function");
  if constexpr (kNamed) return refuse<kForm, Rest...>();
  return {};
}

// The base of classes whose calls name a destination.
class AddressedCalls {
 public:
  template <auto... Options, typename... Given>
  requires(!kIsAddressed<CallForm::kCall, Given...>) CallResult call(Given&&...) {
    return refuse_addressed<CallForm::kCall, Given...>();
  }
  template <auto... Options, typename... Given>
  requires(!kIsAddressed<CallForm::kBuffer, Given...>) CallResult call_buffer(Given&&...) {
    return refuse_addressed<CallForm::kBuffer, Given...>();
  }
  template <auto... Options, typename... Given>
  requires(!kIsAddressed<CallForm::kReturn, Given...>) CallResult call_return(Given&&...) {
    return refuse_addressed<CallForm::kReturn, Given...>();
  }
  template <auto... Options, typename... Given>
  requires(!kIsAddressed<CallForm::kCall, Given...>) Future<void> async_call(Given&&...) {
    static_cast<void>(refuse_addressed<CallForm::kCall, Given...>());
    return {};
  }
};

// ---- Completions --------------------------------------------------------------------------------

// Returns the completions that a user gave, in long or in short form.
template <typename Options, typename Given>
[[nodiscard]] constexpr auto completions_of(Given&& given) {
  if constexpr (kIsCompletions<std::remove_cvref_t<Given>>) {
    static_assert(!Options::template kGives<Notification>,
                  "cariama: on_transmitted() and on_consumed() name the events; LocalNotify and "
                  "RemoteNotify are for a single Synchronizer");
    return std::forward<Given>(given);
  } else if constexpr (Options::kNotification == Notification::kConsumed) {
    return on_consumed(std::forward<Given>(given));
  } else {
    return on_transmitted(std::forward<Given>(given));
  }
}

// Sends a call to `thread` of `rank` by send(end), where `end` notifies the completions. The event
// "transmitted" does not depend on that thread.
template <typename T, typename C, typename Send>
[[nodiscard]] CallResult send_completing(Fabric& fabric, Rank rank, ThreadId thread, CallEnd& end,
                                         Completions<T, C> completions, Send&& send) {
  EventObject<T> transmitted(fabric, rank, kNoThread, std::move(completions.transmitted),
                             end.transmitted);
  if constexpr (std::is_same_v<C, RemoteObject<Synchronizer>*>) {
    end.written = completions.consumed;
    CallResult result = send(end);
    transmitted.sent(result.status());
    return result;
  } else {
    EventObject<C> consumed(fabric, rank, thread, std::move(completions.consumed), end.consumed);
    CallResult result = send(end);
    transmitted.sent(result.status());
    consumed.sent(result.status());
    return result;
  }
}

template <typename Options, typename P, typename Call, typename T, typename C>
[[nodiscard]] CallResult send_with(const P& path, const Call& call, CallEnd& end,
                                   Completions<T, C> completions) {
  static_assert(P::kWritesOutcome || !std::is_same_v<C, RemoteObject<Synchronizer>*>,
                "cariama: a routed call ends with an answer, which can count a plain Synchronizer "
                "down; a RemoteObject is for the calls of a messenger");
  return send_completing(path.fabric(), path.rank(), path.thread(), end, std::move(completions),
                         [&](CallEnd& connected) {
                           const auto& owning = owned(call);
                           return path.template send<Options>(OutgoingCall::of(owning), connected);
                         });
}

// Sends a call. `given`: the completions that the user passed, nothing or one argument.
template <typename Options, typename P, typename Call>
[[nodiscard]] __attribute__((always_inline)) inline CallResult send_given(const P& path,
                                                                          const Call& call) {
  require_no_notification<Options>();
  return path.template send<Options>(call);
}
template <typename Options, typename P, typename Call, typename Given>
[[nodiscard]] CallResult send_given(const P& path, const Call& call, Given&& given) {
  CallEnd end;
  return send_with<Options>(path, call, end, completions_of<Options>(std::forward<Given>(given)));
}

// ---- call ---------------------------------------------------------------------------------------

template <typename... Given>
inline constexpr bool kCompletionFirst = false;
template <typename First, typename... Rest>
inline constexpr bool kCompletionFirst<First, Rest...> = kIsCompletion<First>;

template <typename Options, typename P, typename F, typename Given, typename... Args>
[[nodiscard]] CallResult issue_completed(const P& path, const F& function, Given&& given,
                                         Args&&... arguments) {
  return send_given<Options>(path, make_call(function, std::forward<Args>(arguments)...),
                             std::forward<Given>(given));
}

// call(function, [completions,] arguments...)
template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] __attribute__((always_inline)) inline CallResult issue_call(const P& path,
                                                                          const F& function,
                                                                          Given&&... given) {
  require_no_pulling<Options>();
  if constexpr (!require_function<F>()) {
    return {};
  } else if constexpr (kCompletionFirst<Given...>) {
    return issue_completed<Options>(path, function, std::forward<Given>(given)...);
  } else if constexpr ((kIsCompletion<Given> || ...)) {
    static_assert(!sizeof(F), "cariama: the completion of a call stands right behind its function");
    return {};
  } else {
    return send_given<Options>(path, make_call(function, std::forward<Given>(given)...));
  }
}

// call_return(function, result, completions, arguments...)
template <typename Options, typename P, typename F, typename T, typename Given, typename... Args>
[[nodiscard]] CallResult issue_call_return(const P& path, const F& function, T& result,
                                           Given&& given, Args&&... arguments) {
  require_no_pulling<Options>();
  const auto call = make_call(function, std::forward<Args>(arguments)...);
  using Call = std::remove_const_t<decltype(call)>;
  constexpr bool kLong = kIsCompletions<std::remove_cvref_t<Given>>;
  static_assert(!kIsCompletion<T>,
                "cariama: a completion stands in the place of the result; the result of "
                "call_return stands right behind its function");
  static_assert(!Call::kWellFormed || kIsCompletion<T> || std::is_same_v<typename Call::Result, T>,
                "cariama: the function of this call_return has another result type than the object "
                "that the result is stored into");
  static_assert(
      kIsCompletion<Given> || kIsCompletion<T>,
      "cariama: behind the result of call_return stands its completion: a Synchronizer, a "
      "Future<void> or on_consumed(...)");
  static_assert(!Options::template kGives<Notification> ||
                    (!kLong && Options::kNotification == Notification::kConsumed),
                "cariama: the completion of call_return is notified when the result has arrived; "
                "for another event give on_transmitted(...) | on_consumed(...)");
  if constexpr (kIsCompletion<Given> && std::is_same_v<typename Call::Result, T>) {
    using Consumed = CallOptions<RemoteNotify>;
    auto completions = [&] {
      if constexpr (kLong) {
        return std::forward<Given>(given);
      } else {
        return completions_of<Consumed>(std::forward<Given>(given));
      }
    }();
    using Object = decltype(completions.consumed);
    static_assert(!std::is_same_v<Object, NoCompletion>,
                  "cariama: call_return needs on_consumed(...), which reports that the result has "
                  "arrived");
    static_assert(!std::is_same_v<Object, RemoteObject<Synchronizer>*>,
                  "cariama: the result of call_return comes in an answer, which can count a plain "
                  "Synchronizer down; a RemoteObject is for calls without a result");
    CallEnd end;
    end.receiver = std::make_unique<ResultInto<T>>(result);
    return send_with<Options>(path, call, end, std::move(completions));
  } else {
    return {};
  }
}

// async_call(function, arguments...)
template <typename Options, typename P, typename F, typename... Args>
[[nodiscard]] auto issue_async_call(const P& path, const F& function, Args&&... arguments) {
  require_only_when_full<Options>();
  constexpr bool kCompleted = !kIsCompletion<F> && (kIsCompletion<Args> || ...);
  static_assert(!kCompleted, "cariama: async_call takes no completion: its Future is one");
  if constexpr (!require_function<F>() || kCompleted) {
    return Future<void>();
  } else {
    const auto made = make_call(function, std::forward<Args>(arguments)...);
    const auto& call = owned(made);
    using T = typename std::remove_cvref_t<decltype(call)>::Result;
    auto state = std::make_shared<FutureValue<T>>(path.fabric());
    state->calls(path.rank(), path.thread());
    CallEnd end;
    end.consumed = EventReceiver(state);
    end.result_to_consumed = true;
    const CallResult sent = path.template send<Options>(OutgoingCall::of(call), end);
    if (!sent.ok()) state->finish(sent.status(), {});
    return FutureAccess::of(std::move(state));
  }
}

// ---- call_buffer --------------------------------------------------------------------------------

// A part of registered memory, as the source of a call_buffer.
struct MemoryRange {
  RDMAMemory* memory;
  uint64_t offset;
  uint64_t size;
};

// A call of function(buffer, size) for a buffer that is already in the receiver's memory.
template <typename F>
[[nodiscard]] auto placed_call(const F& function, uint64_t address, uint64_t size) {
  require_buffer_function<F>();
  return make_call(
      [function, address, size]() mutable { function(reinterpret_cast<void*>(address), size); });
}

template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] __attribute__((always_inline)) inline CallResult issue_copied(
    const P& path, const F& function, std::span<const std::byte> buffer, Given&&... given) {
  return send_given<Options>(path, make_buffer_call(function, buffer),
                             std::forward<Given>(given)...);
}
template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] CallResult issue_copied(const P& path, const F& function, MemoryRange source,
                                      Given&&... given) {
  if (absl::Status range = check_range(source.memory, source.offset, source.size); !range.ok()) {
    return range;
  }
  return issue_copied<Options>(
      path, function,
      std::span<const std::byte>(source.memory->get_buffer() + source.offset, source.size),
      std::forward<Given>(given)...);
}

template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] CallResult issue_pulled(const P& path, const F& function, MemoryRange source,
                                      Given&&... given) {
  if (absl::Status range = check_range(source.memory, source.offset, source.size); !range.ok()) {
    return range;
  }
  if (absl::Status ready = path.prepare(); !ready.ok()) return ready;
  auto named = locate_for(path.fabric(), path.rank(), *source.memory, source.offset, source.size);
  if (!named.ok()) return named.status();
  return send_given<Options>(path, PulledCall<std::decay_t<F>, Options::kPulling>(function, *named),
                             std::forward<Given>(given)...);
}
template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] CallResult issue_pulled(const P& path, const F& function,
                                      std::span<const std::byte> buffer, Given&&... given) {
  if (absl::Status ready = path.prepare(); !ready.ok()) return ready;
  CallEnd end;
  auto lent = LentBuffer::make(path.fabric(), path.rank(), buffer);
  if (!lent.ok()) return lent.status();
  end.lent = *std::move(lent);
  auto named = locate_for(path.fabric(), path.rank(), end.lent->memory(), 0, buffer.size());
  if (!named.ok()) return named.status();
  const PulledCall<std::decay_t<F>, Options::kPulling> call(function, *named);
  if constexpr (sizeof...(Given) == 0) {
    require_no_notification<Options>();
    return path.template send<Options>(OutgoingCall::of(call), end);
  } else {
    auto completions = completions_of<Options>(std::forward<Given>(given)...);
    static_assert(!std::is_same_v<decltype(completions.consumed), RemoteObject<Synchronizer>*>,
                  "cariama: an unregistered buffer that is READ (Sync, Async) is released by an "
                  "answer, which can count a plain Synchronizer down; a RemoteObject is for "
                  "registered memory");
    return send_with<Options>(path, call, end, std::move(completions));
  }
}

template <typename Options, typename Given>
inline constexpr bool kReportsTransmitted =
    !std::is_same_v<decltype(completions_of<Options>(std::declval<Given>()).transmitted),
                    NoCompletion>;

template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] CallResult issue_placed(const P& path, const F& function, MemoryRange source,
                                      const RemoteMemoryLocator& target, Given&&... given) {
  if (absl::Status range = check_range(source.memory, source.offset, source.size); !range.ok()) {
    return range;
  }
  if (absl::Status ready = path.prepare(); !ready.ok()) return ready;
  // on_transmitted() promises that the source may be reused.
  constexpr bool kComplete = (kReportsTransmitted<Options, Given> || ...);
  if (absl::Status written =
          path.write_ahead(*source.memory, source.offset, source.size, target, kComplete);
      !written.ok()) {
    return written;
  }
  return send_given<Options>(path, placed_call(function, target.address, source.size),
                             std::forward<Given>(given)...);
}
template <typename Options, typename P, typename F, typename... Given>
[[nodiscard]] CallResult issue_placed(const P& path, const F& function,
                                      std::span<const std::byte> buffer,
                                      const RemoteMemoryLocator& target, Given&&... given) {
  if (absl::Status ready = path.prepare(); !ready.ok()) return ready;
  if (absl::Status written = write_user_buffer(path.fabric(), path.rank(), buffer, target);
      !written.ok()) {
    return written;
  }
  return send_given<Options>(path, placed_call(function, target.address, buffer.size()),
                             std::forward<Given>(given)...);
}

template <typename... Given>
inline constexpr bool kTargetFirst = false;
template <typename First, typename... Rest>
inline constexpr bool kTargetFirst<First, Rest...> =
    std::is_same_v<std::remove_cvref_t<First>, RemoteMemoryLocator>;

// True for the arguments that may stand behind the source of a call_buffer, and behind its target.
template <typename... Given>
inline constexpr bool kEndsBufferCall = sizeof...(Given) == 0 ||
                                        (sizeof...(Given) == 1 && (kIsCompletion<Given> && ...));
template <typename First, typename... Rest>
requires kTargetFirst<First>
inline constexpr bool kEndsBufferCall<First, Rest...> =
    sizeof...(Rest) == 0 || (sizeof...(Rest) == 1 && (kIsCompletion<Rest> && ...));

// call_buffer(function, source, [target,] [completions]); Source: std::span or MemoryRange.
template <typename Options, typename P, typename F, typename Source, typename... Given>
[[nodiscard]] __attribute__((always_inline)) inline CallResult issue_call_buffer(const P& path,
                                                                                 const F& function,
                                                                                 Source source,
                                                                                 Given&&... given) {
  static_assert(
      kEndsBufferCall<Given...>,
      "cariama: behind the buffer of call_buffer stand its target (a RemoteMemoryLocator), "
      "if any, and its completion, if any: a Synchronizer, a Future<void>, or "
      "on_transmitted(...) | on_consumed(...)");
  constexpr bool kPulled = Options::template kGives<Pulling>;
  if constexpr (!kEndsBufferCall<Given...>) {
    return {};
  } else if constexpr (kTargetFirst<Given...>) {
    static_assert(!kPulled,
                  "cariama: this call_buffer WRITEs its buffer to a target; Sync and Async say how "
                  "the destination READs a buffer");
    return issue_placed<Options>(path, function, source, std::forward<Given>(given)...);
  } else if constexpr (kPulled) {
    return issue_pulled<Options>(path, function, source, std::forward<Given>(given)...);
  } else {
    return issue_copied<Options>(path, function, source, std::forward<Given>(given)...);
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALL_FORMS_H_
