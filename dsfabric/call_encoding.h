// The encoding of a call in memory and on the wire, the same for all paths: send-based, one-sided,
// broadcast.
//
//   CallHeader (8 bytes) | NotifyTarget (24, if kCallNotify) | closure and arguments, padded to 8
//
// What may be called: any callable whose captures are trivially copyable. The captures travel
// bytewise, and the function runs on the received bytes. Arguments of other types (std::string,
// user types) travel beside the function, through the serializer. Anything else does not compile,
// with one error.
//
// A Call (FunctionCall, BufferCall) describes one call on the sending side: its function id, its
// size, and how to write it directly into the buffer that it is sent from. Use it within one
// expression: a function that is not a temporary is stored by reference, not copied. Its static
// run() is the stub that executes the call at the receiver.
#ifndef CARIAMA_DSFABRIC_CALL_ENCODING_H_
#define CARIAMA_DSFABRIC_CALL_ENCODING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/function_table.h"
#include "dsfabric/holds_reference.h"
#include "dsfabric/serializer.h"
#include "dtutils/memory.h"

namespace cariama {

class CallSource;

// ---- The wire form ------------------------------------------------------------------------------

inline constexpr uint8_t kCallNotify = 1;  // a NotifyTarget follows the header
inline constexpr uint8_t kCallReturn = 2;  // the result goes back to the NotifyTarget

// 8 bytes: the smallest call has 8 bytes, and one aligned store publishes it. A header of zeros is
// not a valid call.
struct CallHeader {
  static constexpr uint32_t kMaxWords = (1u << 24) - 1;
  // The largest number of bytes behind the header, notification included: 8 less than 128 MiB.
  static constexpr uint32_t kMaxBytes = kMaxWords * 8;

  uint32_t function = 0;         // a FunctionId
  uint32_t words_and_flags = 0;  // 8-byte words that follow the header | flags << 24

  [[nodiscard]] static constexpr CallHeader make(FunctionId id, size_t bytes, uint8_t flags) {
    return {id.value, static_cast<uint32_t>((bytes + 7) / 8) | uint32_t{flags} << 24};
  }
  [[nodiscard]] constexpr FunctionId id() const { return {function}; }
  [[nodiscard]] constexpr size_t bytes() const { return size_t{words_and_flags & kMaxWords} * 8; }
  [[nodiscard]] constexpr uint8_t flags() const {
    return static_cast<uint8_t>(words_and_flags >> 24);
  }
};
static_assert(sizeof(CallHeader) == 8 && std::is_trivially_copyable_v<CallHeader>);

// Names the place to which the receiver reports the end of a call.
struct NotifyTarget {
  uint64_t handle = 0;  // of the sender's pending call, or the address of a registered status word
  uint64_t key = 0;     // the remote key of that word, or 0: report by a send-based call
  uint32_t rank = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(NotifyTarget) == 24 && std::is_trivially_copyable_v<NotifyTarget>);

// ---- The receiving side -------------------------------------------------------------------------

// The outcome of a call at the process that ran it.
enum class CallOutcome : uint8_t {
  kDone,
  kThrew,      // the function threw; error_type and error_text describe the exception
  kMalformed,  // the bytes are not what the function's stub expects; nothing ran
  kUnknown,    // no function has the id; nothing ran
};

// The maximum number of bytes of an exception's text that is sent back.
inline constexpr size_t kMaxErrorText = 1024;

// The report of a call goes to the process that has sent it.
inline constexpr uint32_t kAnswerSource = UINT32_MAX;

// A call that has arrived, while it is run.
struct IncomingCall {
  std::span<std::byte> closure;  // 8-byte aligned, the padding included; may be changed by the call
  uint32_t source_thread = 0;    // global id of the thread that called, or kNoThread
  std::string* result = nullptr;  // where the result is saved, if the call requests it
  // Where the end of the call is to be reported, or nullptr. A stub that sets `answered_later` has
  // copied the target and answers later; the caller of run_call() then sends no answer.
  const NotifyTarget* notify = nullptr;
  bool answered_later = false;
  // Set by a stub of a call that another process has forwarded: the rank of the process that gets
  // the report. Only call sources read it.
  uint32_t answer_to = kAnswerSource;
  // The call source that runs the call, or nullptr if the call did not come over one.
  CallSource* source = nullptr;
  // Set by a stub that cannot run now, together with the outcome kMalformed: nothing ran, and the
  // source runs the call again later, before all later calls of its channel. Requires: `source` is
  // not nullptr.
  bool postponed = false;
  CallOutcome outcome = CallOutcome::kDone;
  std::string error_type;  // the demangled type name of the exception
  std::string error_text;
};

// Runs the call that `header` and `closure` describe: resolves the id and runs its stub. Never
// throws.
CARIAMA_DSFABRIC_EXPORT void run_call(const CallHeader& header, IncomingCall& call);

// A view of one call within received bytes. parse_call() has checked that all parts lie within
// `bytes`.
struct ParsedCall {
  CallHeader header;
  bool has_notify = false;
  NotifyTarget notify;
  std::span<std::byte> closure;
  size_t total = 0;  // bytes of the whole call
};
// Parses the call at the front of `bytes`. Error: INVALID_ARGUMENT (cut short, zero header, unknown
// flags). Requires: `bytes` is 8-byte aligned.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<ParsedCall> parse_call(
    std::span<std::byte> bytes);

namespace internal {

// Sets the outcome and the texts from the exception that is being handled.
CARIAMA_DSFABRIC_EXPORT void note_exception(IncomingCall& call) noexcept;

inline constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// The bytes that a function takes on the wire. A capture-less lambda has size 1 in C++, but nothing
// to send.
template <typename F>
inline constexpr size_t kClosureBytes = std::is_empty_v<F> ? 0 : padded(sizeof(F));

// Types whose values point into the caller's process, also as elements of the containers of the
// standard library. A pointer that is a member of a user's class is not found.
template <typename T>
inline constexpr bool kPointsHere = std::is_pointer_v<T> || std::is_member_function_pointer_v<T> ||
                                    holds_reference<T>();
template <typename Char, typename Traits>
inline constexpr bool kPointsHere<std::basic_string_view<Char, Traits>> = true;
template <typename T, size_t N>
inline constexpr bool kPointsHere<std::span<T, N>> = true;
template <typename T>
inline constexpr bool kPointsHere<std::reference_wrapper<T>> = true;
template <typename T, size_t N>
inline constexpr bool kPointsHere<std::array<T, N>> = kPointsHere<T>;
template <template <typename...> typename Container, typename... Elements>
requires StandardContainer<Container<Elements...>>
inline constexpr bool kPointsHere<Container<Elements...>> = (kPointsHere<Elements> || ...);

// True for the types that a call may return: values. A pointer is accepted, because it can serve as
// a name in later calls. A pointer to characters is refused, because it is a string literal or
// another text of the callee's process.
template <typename T>
inline constexpr bool kReturns = std::is_void_v<T> ||
                                 (Serializable<T> && (std::is_pointer_v<T> || !kPointsHere<T>));
template <>
inline constexpr bool kReturns<const char*> = false;
template <>
inline constexpr bool kReturns<char*> = false;
template <typename T>
inline constexpr bool kReturns<T&> = false;
template <typename T, typename Deleter>
inline constexpr bool kReturns<std::unique_ptr<T, Deleter>> = false;

// True for functions, and for pointers and references to functions.
template <typename F>
inline constexpr bool kIsFunctionAddress =
    std::is_pointer_v<F> || std::is_member_function_pointer_v<F>;

template <typename F>
inline constexpr bool kTravels =
    std::is_trivially_copyable_v<F>&& std::is_trivially_destructible_v<F>;

// The function object within a received closure, ready to be invoked. The constructor copies the
// object only if its alignment exceeds the 8 bytes of the wire.
template <typename F>
class ArrivedFunction {
 public:
  explicit ArrivedFunction(std::byte* at) {
    if constexpr (std::is_empty_v<F>) {
      function_ = reinterpret_cast<F*>(copy_);
    } else if constexpr (alignof(F) <= 8) {
      function_ = std::launder(reinterpret_cast<F*>(at));
    } else {
      std::memcpy(copy_, at, sizeof(F));
      function_ = std::launder(reinterpret_cast<F*>(copy_));
    }
  }
  [[nodiscard]] F& operator*() const { return *function_; }

 private:
  alignas(F) std::byte copy_[std::is_empty_v<F> || alignof(F) > 8 ? sizeof(F) : 1];
  F* function_;
};

// Invokes the function. Saves its result if it has one and the call requests it.
template <typename Invoke>
void invoke_and_save(IncomingCall& call, Invoke&& invoke) {
  using Result = std::invoke_result_t<Invoke>;
  if constexpr (std::is_void_v<Result>) {
    invoke();
  } else {
    auto result = invoke();
    if (call.result != nullptr) save_value(*call.result, result);
  }
}

// The types of the parameters of a function object whose call operator is neither overloaded nor a
// template; none for others.
template <typename Operator>
struct ParametersOf {
  template <size_t kIndex>
  using At = void;
};
template <typename R, typename C, typename... Parameters>
struct ParametersOf<R (C::*)(Parameters...)> {
  template <size_t kIndex>
  using At = std::tuple_element_t<kIndex, std::tuple<Parameters..., void>>;
};
template <typename R, typename C, typename... Parameters>
struct ParametersOf<R (C::*)(Parameters...) const> : ParametersOf<R (C::*)(Parameters...)> {};
template <typename R, typename C, typename... Parameters>
struct ParametersOf<R (C::*)(Parameters...) noexcept> : ParametersOf<R (C::*)(Parameters...)> {};
template <typename R, typename C, typename... Parameters>
struct ParametersOf<R (C::*)(Parameters...) const noexcept>
    : ParametersOf<R (C::*)(Parameters...)> {};

template <typename F>
struct CallOperator {
  using Type = void;
};
template <typename F>
requires requires { &F::operator(); }
struct CallOperator<F> {
  using Type = decltype(&F::operator());
};

// An argument of type T, as the function takes it that has a `Parameter` in its place.
template <typename T, typename Parameter>
class LoadedArgument {
 public:
  explicit LoadedArgument(std::span<const std::byte>& in) : value_(load_value<T>(in)) {}
  [[nodiscard]] T&& take() { return std::move(value_); }

 private:
  T value_;
};
// A string for a std::string_view: a view of the received bytes.
template <>
class LoadedArgument<std::string, std::string_view> {
 public:
  explicit LoadedArgument(std::span<const std::byte>& in) {
    const std::byte* first = nullptr;
    const size_t size = load_elements<char>(in, first);
    view_ = {reinterpret_cast<const char*>(first), size};
  }
  [[nodiscard]] std::string_view take() const { return view_; }

 private:
  std::string_view view_;
};
// A vector for a std::span<const T>: a view of the received bytes, or of a copy where these are not
// aligned for T.
template <typename T>
requires kIsPlainSequence<std::vector<T>>
class LoadedArgument<std::vector<T>, std::span<const T>> {
 public:
  explicit LoadedArgument(std::span<const std::byte>& in) {
    const std::byte* first = nullptr;
    const size_t size = load_elements<T>(in, first);
    if (size == 0) return;
    if (is_aligned_for<T>(first)) {
      view_ = {reinterpret_cast<const T*>(first), size};
    } else {
      copy_.resize(size);
      std::memcpy(static_cast<void*>(copy_.data()), first, size * sizeof(T));
      view_ = copy_;
    }
  }
  [[nodiscard]] std::span<const T> take() const { return view_; }

 private:
  std::vector<T> copy_;
  std::span<const T> view_;
};

// One argument among those of a call.
template <size_t kIndex, typename Loaded>
struct ArgumentAt {
  explicit ArgumentAt(std::span<const std::byte>& in) : loaded(in) {}
  Loaded loaded;
};
template <typename F, typename Arg, size_t kIndex>
using ArgumentOf =
    ArgumentAt<kIndex,
               LoadedArgument<Arg, std::remove_cvref_t<typename ParametersOf<
                                       typename CallOperator<F>::Type>::template At<kIndex>>>>;

// The arguments of a call of an F, while it runs. Each argument is loaded into its place, and is
// neither copied nor moved before the function takes it.
template <typename Indices, typename F, typename... Args>
class ArgumentList;
template <size_t... kIndices, typename F, typename... Args>
class ArgumentList<std::index_sequence<kIndices...>, F, Args...>
    : private ArgumentOf<F, Args, kIndices>... {
 public:
  // Loads the arguments from left to right, the order of the bases, and removes their bytes from
  // `in`. Throws MalformedArguments, or the exception of a type's own loading function.
  explicit ArgumentList(std::span<const std::byte>& in) : ArgumentOf<F, Args, kIndices>(in)... {}
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  // Returns function(arguments...).
  template <typename Function>
  decltype(auto) pass_to(Function& function) {
    return function(static_cast<ArgumentOf<F, Args, kIndices>&>(*this).loaded.take()...);
  }
};
template <typename F, typename... Args>
using Arguments = ArgumentList<std::index_sequence_for<Args...>, F, Args...>;

}  // namespace internal

// ---- The sending side ---------------------------------------------------------------------------

// Checks the requirement of call() on its function: a callable whose captures can travel bytewise.
// A captured pointer compiles, because it may be valid in the destination's process. A captured
// view, or any class that contains a pointer, compiles too.
template <typename F>
constexpr void require_travelling_function() {
  static_assert(
      internal::kTravels<F>,
      "cariama: this function captures something that is not trivially copyable; pass it as "
      "an argument of call() instead of capturing it");
  static_assert(!internal::holds_reference<F>(),
                "cariama: this function captures by reference ([&] or [&x]), and a reference is an "
                "address in the caller's process; capture by value, or pass an argument");
  static_assert(!internal::kIsFunctionAddress<F>,
                "cariama: the address of a function is valid in the caller's process only; pass a "
                "lambda that calls the function");
}

namespace internal {

// Checks the requirement of call_buffer() on its function. Returns true if the function takes a
// buffer.
template <typename F>
constexpr bool require_buffer_function() {
  require_travelling_function<F>();
  constexpr bool kTakesBuffer = std::is_invocable_v<F&, void*, uint64_t>;
  static_assert(kTakesBuffer,
                "cariama: the function of a call with a buffer takes (void* buffer, uint64_t "
                "size)");
  return kTakesBuffer;
}

// How a Call stores its function, given as F&&: a function that outlives the expression is stored
// by reference and copied once, into the buffer that the call is sent from. (A function of at most
// 16 bytes fits two registers, and is stored by value.)
template <typename F>
using StoredFunction =
    std::conditional_t<std::is_lvalue_reference_v<F> && (sizeof(std::decay_t<F>) > 16),
                       const std::decay_t<F>&, std::decay_t<F>>;

// How a Call stores an argument: a string, a vector or a large object by reference, because most
// calls are written to the place that they are sent from at once.
template <typename T>
using StoredArgument =
    std::conditional_t<kSavedDirectly<T> && !(std::is_trivially_copyable_v<T> && sizeof(T) <= 16),
                       const T&, T>;

// Returns the call itself, or a copy that contains the arguments to which the call refers. For
// senders that may run calls or tasks before they write the call: these could change an argument.
template <typename Call>
[[nodiscard]] decltype(auto) owned(const Call& call) {
  if constexpr (requires { call.owned(); }) {
    return call.owned();
  } else {
    return (call);
  }
}

}  // namespace internal

// A call of fn(args...), without a buffer. `Stored` is the function's decayed type, or a reference
// to it; Args are decayed types; StoredArguments is a tuple of these, or of references to them.
template <typename Stored, typename StoredArguments, typename... Args>
class FunctionCall {
  using F = std::remove_cvref_t<Stored>;

 public:
  static constexpr bool kArgumentsTravel =
      (Serializable<Args> && ...) && !(internal::kPointsHere<Args> || ...);

 private:
  using Returned =
      typename std::conditional_t<std::is_invocable_v<F&, Args...>, std::invoke_result<F&, Args...>,
                                  std::type_identity<void>>::type;

 public:
  // If this is false, the constructor's static_asserts give the only diagnostic.
  static constexpr bool kWellFormed =
      kArgumentsTravel && std::is_invocable_v<F&, Args...> && internal::kReturns<Returned>;
  using Result = std::conditional_t<kWellFormed, Returned, void>;

 private:
  // True if write() writes the arguments to their destination; false if the constructor serializes
  // them into a string.
  static constexpr bool kDirect = !kWellFormed || (internal::kSavedDirectly<Args> && ...);
  using Packed = std::conditional_t<!kWellFormed, std::tuple<>,
                                    std::conditional_t<kDirect, StoredArguments, std::string>>;

  // True if arguments_ refers to arguments.
  static constexpr bool kRefers =
      kDirect && kWellFormed && !std::is_same_v<StoredArguments, std::tuple<Args...>>;

 public:
  template <typename... Given>
  explicit FunctionCall(const F& function, Given&&... given)
      : function_(function), arguments_(stored(std::forward<Given>(given)...)) {
    require_travelling_function<F>();
    static_assert(
        !(internal::kPointsHere<Args> || ...),
        "cariama: an argument of this call is or contains a pointer (as string literals are), a "
        "reference, a string_view or a span, which points into the caller's process; pass a value, "
        "such as a std::string");
    static_assert(
        (internal::kPointsHere<Args> || ...) || (Serializable<Args> && ...),
        "cariama: an argument of this call is neither trivially copyable nor known to cereal; "
        "give its type a serialize() member");
    static_assert(
        std::is_invocable_v<F&, Args...>,
        "cariama: the function cannot be called with these arguments (they arrive as values)");
    static_assert(
        internal::kReturns<Returned>,
        "cariama: the result of this call cannot travel: it is a reference, a view or a unique_ptr "
        "(return a value), or neither trivially copyable nor known to cereal (give its type a "
        "serialize() member)");
  }

  [[nodiscard]] static FunctionId id() {
    return FunctionTable::id_of<&FunctionCall<F, std::tuple<Args...>, Args...>::run>();
  }
  // Bytes after the header and NotifyTarget; a multiple of 8.
  [[nodiscard]] size_t bytes() const {
    size_t arguments = 0;
    if constexpr (kDirect) {
      std::apply([&](const auto&... each) { ((arguments += internal::saved_bytes(each)), ...); },
                 arguments_);
    } else {
      arguments = arguments_.size();
    }
    return internal::kClosureBytes<F> + internal::padded(arguments);
  }
  // Writes bytes() bytes, the closure and the arguments, to `at`, which is 8-byte aligned.
  void write(std::byte* at) const {
    if constexpr (!std::is_empty_v<F>) std::memcpy(at, &function_, sizeof(F));
    at += internal::kClosureBytes<F>;
    if constexpr (kDirect) {
      std::apply([&](const auto&... each) { ((at = internal::save_at(at, each)), ...); },
                 arguments_);
    } else {
      std::memcpy(at, arguments_.data(), arguments_.size());
    }
  }

  // Returns a copy that contains the arguments.
  [[nodiscard]] auto owned() const requires kRefers {
    return std::apply(
        [&](const Args&... each) {
          return FunctionCall<F, std::tuple<Args...>, Args...>(function_, each...);
        },
        arguments_);
  }

  static void run(IncomingCall& call) {
    if (call.closure.size() < internal::kClosureBytes<F>) {
      call.outcome = CallOutcome::kMalformed;
      return;
    }
    const internal::ArrivedFunction<F> function(call.closure.data());
    if constexpr (!kWellFormed) {
      return;  // the constructor has reported the error already; instantiate nothing more
    } else if constexpr (sizeof...(Args) == 0) {
      try {
        internal::invoke_and_save(call, [&]() -> Result { return (*function)(); });
      } catch (...) {
        internal::note_exception(call);
      }
    } else {
      bool loaded = false;
      try {
        std::span<const std::byte> in = call.closure.subspan(internal::kClosureBytes<F>);
        internal::Arguments<F, Args...> arguments(in);
        if (in.size() >= 8) throw MalformedArguments("a call has more arguments than its function");
        loaded = true;
        internal::invoke_and_save(call, [&]() -> Result { return arguments.pass_to(*function); });
      } catch (...) {
        internal::note_exception(call);
        if (!loaded) call.outcome = CallOutcome::kMalformed;
      }
    }
  }

 private:
  template <typename... Given>
  [[nodiscard]] static Packed stored(Given&&... given) {
    if constexpr (!kWellFormed) {
      return {};
    } else if constexpr (kDirect) {
      return Packed(std::forward<Given>(given)...);
    } else {
      std::string bytes;
      (save_value(bytes, static_cast<const Args&>(given)), ...);
      return bytes;
    }
  }

  Stored function_;
  [[no_unique_address]] Packed arguments_;
};

// Returns the Call of function(arguments...). Requires: the arguments, and `function` unless it is
// a temporary, outlive the returned Call.
template <typename F, typename... Given>
[[nodiscard]] auto make_call(F&& function, Given&&... given) {
  return FunctionCall<internal::StoredFunction<F>,
                      std::tuple<internal::StoredArgument<std::decay_t<Given>>...>,
                      std::decay_t<Given>...>(function, std::forward<Given>(given)...);
}

// A call of fn(void* buffer, uint64_t size), with the bytes of the buffer beside the closure
// (Seriema §3.1).
template <typename Stored>
class BufferCall {
  using F = std::remove_cvref_t<Stored>;

 public:
  using Result = void;  // what the function returns is ignored

  // `buffer` must stay valid until write(), which copies it.
  BufferCall(const F& function, std::span<const std::byte> buffer)
      : function_(function), buffer_(buffer) {
    internal::require_buffer_function<F>();
  }

  [[nodiscard]] static FunctionId id() { return FunctionTable::id_of<&BufferCall<F>::run>(); }
  [[nodiscard]] size_t bytes() const {
    // An impossible length must exceed the limit of each path, not overflow: the fast path compares
    // signed sums.
    return sizeof(uint64_t) + internal::kClosureBytes<F> +
           internal::padded(std::min<size_t>(buffer_.size(), PTRDIFF_MAX / 2));
  }
  void write(std::byte* at) const {
    const uint64_t size = buffer_.size();
    std::memcpy(at, &size, sizeof size);
    if constexpr (!std::is_empty_v<F>) std::memcpy(at + sizeof size, &function_, sizeof(F));
    if (size != 0) {
      std::memcpy(at + sizeof size + internal::kClosureBytes<F>, buffer_.data(), size);
    }
  }

  static void run(IncomingCall& call) {
    constexpr size_t kFront = sizeof(uint64_t) + internal::kClosureBytes<F>;
    uint64_t size = 0;
    if (call.closure.size() < kFront || (std::memcpy(&size, call.closure.data(), sizeof size),
                                         size > call.closure.size() - kFront)) {
      call.outcome = CallOutcome::kMalformed;
      return;
    }
    const internal::ArrivedFunction<F> function(call.closure.data() + sizeof size);
    if constexpr (std::is_invocable_v<F&, void*, uint64_t>) {  // else the constructor reports it
      try {
        static_cast<void>((*function)(static_cast<void*>(call.closure.data() + kFront), size));
      } catch (...) {
        internal::note_exception(call);
      }
    }
  }

 private:
  Stored function_;
  std::span<const std::byte> buffer_;
};

// Returns the BufferCall of function(buffer, size). Requires: `function`, unless it is a temporary,
// outlives the returned BufferCall.
template <typename F>
[[nodiscard]] BufferCall<internal::StoredFunction<F>> make_buffer_call(
    F&& function, std::span<const std::byte> buffer) {
  return BufferCall<internal::StoredFunction<F>>(function, buffer);
}

// A call to be sent, without its type: references the caller's function and arguments.
struct OutgoingCall {
  FunctionId id;
  uint8_t flags = 0;
  // True: neither deferred_bytes nor buffered_bytes limits the call, so other calls do not make it
  // refused. For calls that are not repeated and whose number has another limit: answers (the
  // number of calls that wait for them), and those of internal/unlimited_call.h.
  bool is_unlimited = false;
  NotifyTarget notify{};  // used if flags != 0
  // The handle by which a pending call of this process (calls/pending_calls.h) waits for the end of
  // this call, or 0. If the channel that carries the call fails, the pending call ends with an
  // error.
  uint64_t awaited = 0;
  size_t closure_bytes = 0;  // of closure and arguments, a multiple of 8
  const void* call = nullptr;
  void (*write_call)(const void* call, std::byte* at) = nullptr;

  // Requires: `call` contains its arguments (internal::owned()), because its size is computed now.
  template <typename Call>
  [[nodiscard]] static OutgoingCall of(const Call& call) {
    static_assert(
        !requires { call.owned(); }, "a call that refers to arguments may change");
    return {.id = Call::id(),
            .closure_bytes = call.bytes(),
            .call = &call,
            .write_call = [](const void* self, std::byte* at) {
              static_cast<const Call*>(self)->write(at);
            }};
  }
  // Returns the number of bytes behind the header.
  [[nodiscard]] size_t bytes() const {
    return closure_bytes + (flags != 0 ? sizeof(NotifyTarget) : 0);
  }
  [[nodiscard]] size_t total() const { return sizeof(CallHeader) + bytes(); }
  [[nodiscard]] CallHeader header() const { return CallHeader::make(id, bytes(), flags); }
  // Writes total() bytes to `at`, which is 8-byte aligned.
  void write(std::byte* at) const {
    const CallHeader head = header();
    std::memcpy(at, &head, sizeof head);
    write_behind_header(at + sizeof head);
  }
  // Writes everything except the header: the NotifyTarget, if any, and the closure.
  void write_behind_header(std::byte* at) const {
    if (flags != 0) {
      std::memcpy(at, &notify, sizeof notify);
      at += sizeof notify;
    }
    write_call(call, at);
  }
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_ENCODING_H_
