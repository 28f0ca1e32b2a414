// The options of calls, spelled as in the paper: call<RemoteNotify>(...),
// call_buffer<RetryAsync>(...). Any of them, in any order, as template arguments; each kind at most
// once.
#ifndef CARIAMA_DSFABRIC_CALL_OPTIONS_H_
#define CARIAMA_DSFABRIC_CALL_OPTIONS_H_

#include <cstdint>
#include <type_traits>

namespace cariama {

// When a call's Synchronizer is counted down (Seriema §3.1).
enum class Notification : uint8_t {
  kTransmitted,  // the call has left: what it was made from may be reused
  kConsumed,     // it has been run by the destination
};
inline constexpr Notification LocalNotify = Notification::kTransmitted;
inline constexpr Notification RemoteNotify = Notification::kConsumed;

// What a call does when the destination is behind and has no room (Seriema §4.4.1, appendix).
enum class WhenFull : uint8_t {
  kFail,        // returns RESOURCE_EXHAUSTED; nothing was sent
  kRetry,       // waits for room, running incoming calls meanwhile
  kRetryAsync,  // keeps the call, and sends it later, in order; returns at once
};
inline constexpr WhenFull Fail = WhenFull::kFail;
inline constexpr WhenFull Retry = WhenFull::kRetry;
inline constexpr WhenFull RetryAsync = WhenFull::kRetryAsync;

// How call_buffer pulls a buffer: before the function runs, in the destination thread's place, or
// beside it while other calls go on (Seriema §3.1).
enum class Pulling : uint8_t { kSync, kAsync };
inline constexpr Pulling Sync = Pulling::kSync;
inline constexpr Pulling Async = Pulling::kAsync;

// The options of one call, taken out of the template arguments.
template <auto... Options>
struct CallOptions {
  template <typename Kind>
  static constexpr int kCount = (0 + ... + std::is_same_v<decltype(Options), Kind>);
  static_assert(kCount<Notification> <= 1 && kCount<WhenFull> <= 1 && kCount<Pulling> <= 1,
                "cariama: an option of a call is given twice");
  static_assert(kCount<Notification> + kCount<WhenFull> + kCount<Pulling> == sizeof...(Options),
                "cariama: the options of a call are LocalNotify or RemoteNotify; Fail, Retry or "
                "RetryAsync; Sync or Async");

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
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_OPTIONS_H_
