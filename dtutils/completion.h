// Completions: the form in which every transport reports the end of operations on the data path.
#ifndef CARIAMA_DTUTILS_COMPLETION_H_
#define CARIAMA_DTUTILS_COMPLETION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// Why an operation ended. Every status except kSuccess has moved the queue pair to the error state:
// the outstanding operations and those posted later complete with kFlushed until repair().
// Soft-RoCE reports some failures with a general code only: kLocalOperation for a wrong local key
// and for a receive that is too small, and kRemoteOperation at the sender of a message that was too
// long for its receive.
enum class CompletionStatus : uint8_t {
  kSuccess,
  kLocalLength,  // the message is longer than the receive buffers posted for it (receiver's side)
  kLocalOperation,    // the work request is inconsistent with the queue pair
  kLocalProtection,   // a local key is wrong, or a segment leaves its region
  kFlushed,           // not executed: the queue pair was or went into the error state
  kRemoteAccess,      // the remote key is wrong, revoked, too short, or lacks the access
  kRemoteInvalid,     // the target refused: misaligned atomic, receive buffer too small
  kRemoteOperation,   // the target failed to execute the operation
  kRetryExceeded,     // the peer does not answer: its process ended or is unreachable
  kReceiverNotReady,  // the peer posted no receive in time
  kPeerDied,          // the peer process is known to have ended
  kUnknown,           // the device reported another code, see vendor_error
};

// The operation that completed.
enum class CompletionKind : uint8_t {
  kSend,
  kWrite,  // with or without immediate
  kRead,
  kFetchAdd,
  kCompareSwap,
  kReceive,           // a SEND arrived
  kReceiveImmediate,  // a WRITE_WITH_IMM arrived: its data is in place
};

// Plain data. When status is not kSuccess, only id, status, kind, queue_pair and vendor_error are
// valid. The kind of a receive that failed is always kReceive.
struct Completion {
  uint64_t id = 0;  // of the work request or receive request
  CompletionStatus status = CompletionStatus::kUnknown;
  CompletionKind kind = CompletionKind::kSend;
  bool has_immediate = false;
  uint32_t immediate = 0;     // host byte order
  uint32_t bytes = 0;         // bytes received, for kReceive and kReceiveImmediate
  uint32_t queue_pair = 0;    // number() of the local queue pair
  uint32_t vendor_error = 0;  // the device's own error code, for the log
};
static_assert(sizeof(Completion) <= 32);

// Returns the name of a status or of a kind ("remote access error", "RDMA READ").
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view status_name(CompletionStatus status);
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view kind_name(CompletionKind kind);

// Converts a completion of an operation towards `peer` (the label given to connect()) to a Status.
// Returns OK, or an error whose text names operation, peer, reason and remedy, with its scope.
// kPeerDied, kRetryExceeded and kFlushed give UNAVAILABLE.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status to_status(const Completion& completion,
                                                            std::string_view peer);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_COMPLETION_H_
