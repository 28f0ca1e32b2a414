// The options of calls, spelled as in the paper: call<RemoteNotify>(...),
// call_buffer<RetryAsync>(...). Any of them, in any order, as template arguments; each kind at most
// once.
#ifndef CARIAMA_DSFABRIC_CALL_OPTIONS_H_
#define CARIAMA_DSFABRIC_CALL_OPTIONS_H_

#include <cstdint>
#include <type_traits>

namespace cariama {

// Which event of a call counts its Synchronizer down (Seriema §3.1). completions.h defines the
// events, and has the form that requests both.
enum class Notification : uint8_t { kTransmitted, kConsumed };
inline constexpr Notification LocalNotify = Notification::kTransmitted;
inline constexpr Notification RemoteNotify = Notification::kConsumed;

// The policy of a call for which the destination has no room (Seriema §4.4.1, appendix). A
// one-sided call with kFail or kRetry first waits for a grant of further chunks, if one can be
// obtained, at most MessengerOptions::timeout. The first call of a messenger waits for the
// messenger's set-up under every policy. To avoid that wait, call setup() before. The first call to
// a process waits for the connection to it, at most FabricOptions::timeout.
enum class WhenFull : uint8_t {
  kFail,   // returns RESOURCE_EXHAUSTED, or DEADLINE_EXCEEDED after such a wait; nothing was sent
  kRetry,  // waits for room, at most FabricOptions::retry_timeout, and runs incoming calls
           // meanwhile
  kRetryAsync,  // defers the call: the sender sends it later, in order. Beyond the limit of
                // deferred bytes, and for a call within the process: as kFail
};
inline constexpr WhenFull Fail = WhenFull::kFail;
inline constexpr WhenFull Retry = WhenFull::kRetry;
inline constexpr WhenFull RetryAsync = WhenFull::kRetryAsync;

// When call_buffer READs the buffer. kSync: the destination's consumer waits for the READ, runs the
// function, and only then runs the next call. kAsync: the READ proceeds while later calls run
// (Seriema §3.1).
enum class Pulling : uint8_t { kSync, kAsync };
inline constexpr Pulling Sync = Pulling::kSync;
inline constexpr Pulling Async = Pulling::kAsync;

// The options of one call, parsed from the template arguments.
template <auto... Options>
struct CallOptions {
  template <typename Kind>
  static constexpr int kCount = (0 + ... + std::is_same_v<decltype(Options), Kind>);

  // True if an option of this kind was given.
  template <typename Kind>
  static constexpr bool kGives = kCount<Kind> != 0;

  template <typename Kind>
  static constexpr Kind pick(Kind otherwise) {
    Kind kind = otherwise;
    [[maybe_unused]] const auto look = [&](auto option) {
      if constexpr (std::is_same_v<decltype(option), Kind>) kind = option;
    };
    (look(Options), ...);
    return kind;
  }

  static constexpr Notification kNotification = pick(Notification::kTransmitted);
  static constexpr WhenFull kWhenFull = pick(WhenFull::kRetry);
  static constexpr Pulling kPulling = pick(Pulling::kSync);

  // At the end: clang ignores the members behind an assertion that fails, and reports each use.
  static_assert(kCount<Notification> <= 1 && kCount<WhenFull> <= 1 && kCount<Pulling> <= 1,
                "cariama: an option of a call is given twice");
  static_assert(kCount<Notification> + kCount<WhenFull> + kCount<Pulling> == sizeof...(Options),
                "cariama: the options of a call are LocalNotify or RemoteNotify; Fail, Retry or "
                "RetryAsync; Sync or Async");
};

namespace internal {

// Each form of call refuses, with one error, the options that would have no effect on it.
template <typename Options>
constexpr void require_no_notification() {
  static_assert(!Options::template kGives<Notification>,
                "cariama: LocalNotify and RemoteNotify say when a Synchronizer is counted down; "
                "this call has none");
}
template <typename Options>
constexpr void require_no_pulling() {
  static_assert(!Options::template kGives<Pulling>,
                "cariama: Sync and Async say how call_buffer READs its buffer; this call READs "
                "none");
}
template <typename Options>
constexpr void require_only_notification() {
  static_assert(!Options::template kGives<WhenFull> && !Options::template kGives<Pulling>,
                "cariama: a broadcast takes no options but LocalNotify and RemoteNotify");
}
template <typename Options>
constexpr void require_only_when_full() {
  static_assert(!Options::template kGives<Notification> && !Options::template kGives<Pulling>,
                "cariama: async_call takes no options but Fail, Retry and RetryAsync; its Future "
                "is ready when the result has arrived");
}

}  // namespace internal

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_OPTIONS_H_
