// The return type of every form of call: OK if the call was accepted, else the reason why it was
// not. Send-based, one-sided and aggregated calls and broadcasts share this type.
//
//   bool sent = messenger.call([] { ... });                               // Listing 1
//   if (CallResult sent = messenger.call(...); !sent) report(sent.status());
//   if (absl::Status sent = call(fabric, thread, ...); !sent.ok()) ...
#ifndef CARIAMA_DSFABRIC_CALL_RESULT_H_
#define CARIAMA_DSFABRIC_CALL_RESULT_H_

#include <concepts>
#include <utility>

#include "absl/status/status.h"

namespace cariama {

// An absl::Status that also converts to bool. 8 bytes; folds away where the call is inlined and
// succeeds. [[nodiscard]]: a call that was not accepted does not run, and its completions are not
// notified. Exception: a broadcast without an object for `consumed` (riutils/broadcast.h).
class [[nodiscard]] CallResult {
 public:
  CallResult() = default;                                          // OK
  CallResult(absl::Status status) : status_(std::move(status)) {}  // NOLINT: as Status converts

  [[nodiscard]] bool ok() const { return status_.ok(); }
  // OK, or why the call was not accepted.
  [[nodiscard]] const absl::Status& status() const { return status_; }
  operator absl::Status() const& { return status_; }         // NOLINT
  operator absl::Status() && { return std::move(status_); }  // NOLINT
  // Converts to bool only, so that it never becomes an integer by accident.
  template <std::same_as<bool> Bool>
  operator Bool() const {  // NOLINT
    return status_.ok();
  }

 private:
  absl::Status status_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_RESULT_H_
