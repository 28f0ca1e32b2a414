#include "dtutils/error.h"

#include <string>
#include <system_error>

#include "absl/strings/cord.h"

namespace cariama {
namespace {

// The scope is a payload of the Status, so that copies and moves preserve it in code that does not
// know it. The URL only has to be unique. The payload is the scope's name, because a Status prints
// its payloads.
constexpr char kScopeUrl[] = "cariama.dtutils/error_scope";
constexpr ErrorScope kScopes[] = {ErrorScope::kNone, ErrorScope::kOperation, ErrorScope::kLink,
                                  ErrorScope::kPeer, ErrorScope::kProcess};

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
  const std::string_view name = scope_name(scope);
  status.SetPayload(kScopeUrl, absl::Cord(absl::string_view(name.data(), name.size())));
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
  if (!payload.has_value()) return ErrorScope::kNone;
  for (const ErrorScope scope : kScopes) {
    const std::string_view name = scope_name(scope);
    if (*payload == absl::string_view(name.data(), name.size())) return scope;
  }
  return ErrorScope::kNone;
}

}  // namespace cariama
