// The return type of calls on the hot path: a Status that also converts to bool, as the paper's
// code requires.
//
//   bool sent = messenger.call([] { ... });             // Listing 1
//   if (CallResult sent = messenger.call(...); !sent) report(sent.status());
//
// It is not [[nodiscard]]: a caller that chose Retry may ignore it. With Retry only errors such as
// the failure of the destination process remain, and Fabric::peer_status() reports them too.
#ifndef CARIAMA_DSFABRIC_CALL_RESULT_H_
#define CARIAMA_DSFABRIC_CALL_RESULT_H_

#include <concepts>
#include <utility>

#include "absl/status/status.h"

namespace cariama {

// 8 bytes; folds away where the call is inlined and succeeds.
class CallResult {
 public:
  CallResult() = default;                                          // OK
  CallResult(absl::Status status) : status_(std::move(status)) {}  // NOLINT: as Status converts

  [[nodiscard]] bool ok() const { return status_.ok(); }
  // Converts to bool only, so that it never becomes an integer by accident.
  template <std::same_as<bool> Bool>
  operator Bool() const {  // NOLINT
    return status_.ok();
  }
  // OK, or why the call was not accepted.
  [[nodiscard]] const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_CALL_RESULT_H_
