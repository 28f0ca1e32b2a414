// What a call returns where speed matters: a Status that is also a bool, as the paper's code wants
// it.
//
//   bool sent = messenger.call([] { ... });             // Listing 1
//   if (CallResult sent = messenger.call(...); !sent) report(sent.status());
//
// It may be dropped: whoever chose Retry and lives with the failure of a whole process looks
// elsewhere.
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
  // To bool and nothing else: never an integer by accident.
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
