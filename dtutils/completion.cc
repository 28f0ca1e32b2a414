#include "dtutils/completion.h"

#include <string>

#include "dtutils/error.h"

namespace cariama {
namespace {

struct Explanation {
  std::string_view name;
  absl::StatusCode code;
  ErrorScope scope;
  std::string_view remedy;
};

// Every failure affects at least the link, since it moved the queue pair to the error state.
Explanation explain(CompletionStatus status) {
  using absl::StatusCode;
  switch (status) {
    case CompletionStatus::kSuccess:
      return {"success", StatusCode::kOk, ErrorScope::kNone, ""};
    case CompletionStatus::kLocalLength:
      return {"local length error", StatusCode::kOutOfRange, ErrorScope::kLink,
              "post receive buffers as large as the longest message, then repair() both ends"};
    case CompletionStatus::kLocalOperation:
      return {"local operation error", StatusCode::kInvalidArgument, ErrorScope::kLink,
              "check the request against the queue pair's limits(), its local keys and, if it is a "
              "receive, its size; then repair() both ends"};
    case CompletionStatus::kLocalProtection:
      return {"local protection error", StatusCode::kInvalidArgument, ErrorScope::kLink,
              "check that each segment lies in a region that is registered with the queue pair's "
              "domain and carries its local key, then repair() both ends"};
    case CompletionStatus::kFlushed:
      return {
          "not executed, the queue pair was in the error state", StatusCode::kUnavailable,
          ErrorScope::kLink,
          "the queue pair's first error completion tells why; repair() both ends, then repeat it"};
    case CompletionStatus::kRemoteAccess:
      return {"remote access error", StatusCode::kPermissionDenied, ErrorScope::kLink,
              "check the remote key, that the range lies in its region and that the region grants "
              "this access and is still registered, then repair() both ends"};
    case CompletionStatus::kRemoteInvalid:
      return {"remote invalid request", StatusCode::kInvalidArgument, ErrorScope::kLink,
              "the peer's receive buffer is too small, or the operation is malformed or not "
              "supported there: correct that, then repair() both ends"};
    case CompletionStatus::kRemoteOperation:
      return {"remote operation error", StatusCode::kInternal, ErrorScope::kLink,
              "the peer's own error completions tell why; then repair() both ends"};
    case CompletionStatus::kRetryExceeded:
      return {"the peer does not answer", StatusCode::kUnavailable, ErrorScope::kPeer,
              "check that its process runs and that the network between the hosts works"};
    case CompletionStatus::kReceiverNotReady:
      return {"the peer posted no receive in time", StatusCode::kUnavailable, ErrorScope::kLink,
              "post more receives there, or raise receiver_retry_count; then repair() both ends"};
    case CompletionStatus::kPeerDied:
      return {"the peer process has ended", StatusCode::kUnavailable, ErrorScope::kPeer,
              "start it again and connect a new queue pair to it"};
    case CompletionStatus::kUnknown:
      break;
  }
  return {"unknown device error", StatusCode::kUnknown, ErrorScope::kLink,
          "look up the vendor error in the device's manual; then repair() both ends"};
}

// Returns " to ", " from " or " at " for the error text between the operation and the peer's label.
std::string_view preposition(CompletionKind kind) {
  switch (kind) {
    case CompletionKind::kRead:
    case CompletionKind::kReceive:
    case CompletionKind::kReceiveImmediate:
      return " from ";
    case CompletionKind::kFetchAdd:
    case CompletionKind::kCompareSwap:
      return " at ";
    case CompletionKind::kSend:
    case CompletionKind::kWrite:
      break;
  }
  return " to ";
}

}  // namespace

std::string_view status_name(CompletionStatus status) { return explain(status).name; }

std::string_view kind_name(CompletionKind kind) {
  switch (kind) {
    case CompletionKind::kSend:
      return "SEND";
    case CompletionKind::kWrite:
      return "RDMA WRITE";
    case CompletionKind::kRead:
      return "RDMA READ";
    case CompletionKind::kFetchAdd:
      return "FETCH_ADD";
    case CompletionKind::kCompareSwap:
      return "COMPARE_SWAP";
    case CompletionKind::kReceive:
      return "RECEIVE";
    case CompletionKind::kReceiveImmediate:
      return "RECEIVE of a WRITE_WITH_IMM";
  }
  return "unknown operation";
}

absl::Status to_status(const Completion& completion, std::string_view peer) {
  if (completion.status == CompletionStatus::kSuccess) return absl::OkStatus();
  const Explanation explanation = explain(completion.status);
  std::string what(kind_name(completion.kind));
  what.append(preposition(completion.kind)).append(peer).append(" failed: ");
  what.append(explanation.name);
  if (completion.vendor_error != 0) {
    what.append(" (vendor error ").append(std::to_string(completion.vendor_error)).append(")");
  }
  return make_error(explanation.code, explanation.scope, what, explanation.remedy);
}

}  // namespace cariama
