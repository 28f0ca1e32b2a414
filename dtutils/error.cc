#include "dtutils/error.h"

#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"

namespace cariama {
namespace {

// The scope is a payload of the Status, so that copies and moves preserve it in code that does not
// know it. The URL only has to be unique.
constexpr char kScopeUrl[] = "cariama.dtutils/error_scope";

}  // namespace

std::string_view scope_name(ErrorScope scope) {
  switch (scope) {
    case ErrorScope::kNone:
      return "none";
    case ErrorScope::kOperation:
      return "operation";
    case ErrorScope::kLink:
      return "link";
    case ErrorScope::kPeer:
      return "peer";
    case ErrorScope::kProcess:
      return "process";
  }
  return "none";
}

absl::Status make_error(absl::StatusCode code, ErrorScope scope, std::string_view what,
                        std::string_view remedy) {
  std::string message(what);
  if (!remedy.empty()) message.append(": ").append(remedy);
  absl::Status status(code, message);
  // A Status that is OK cannot carry a payload; SetPayload ignores it then.
  status.SetPayload(kScopeUrl, absl::Cord(std::string(1, static_cast<char>(scope))));
  return status;
}

absl::Status make_errno_error(int error_number, ErrorScope scope, std::string_view what,
                              std::string_view remedy) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error_number);
  // The caller reports a failure: a missing or overwritten errno must not turn it into success.
  if (code == absl::StatusCode::kOk) code = absl::StatusCode::kUnknown;
  std::string text(what);
  text.append(": ").append(std::generic_category().message(error_number));
  return make_error(code, scope, text, remedy);
}

ErrorScope error_scope(const absl::Status& status) {
  const auto payload = status.GetPayload(kScopeUrl);
  if (!payload.has_value() || payload->size() != 1) return ErrorScope::kNone;
  const auto scope = static_cast<ErrorScope>((*payload)[0]);
  return scope <= ErrorScope::kProcess ? scope : ErrorScope::kNone;
}

}  // namespace cariama
