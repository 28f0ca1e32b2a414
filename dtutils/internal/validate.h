// Checks that every transport makes before it accepts a request. They are shared, so that all
// transports refuse the same requests with the same PostError.
#ifndef CARIAMA_DTUTILS_INTERNAL_VALIDATE_H_
#define CARIAMA_DTUTILS_INTERNAL_VALIDATE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/completion.h"
#include "dtutils/error.h"
#include "dtutils/queue_pair.h"

namespace cariama::internal {

// The error of an operation that was called with an invalid argument.
[[nodiscard]] inline absl::Status invalid_argument(std::string_view what, std::string_view remedy) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, remedy);
}

[[nodiscard]] constexpr bool is_atomic(Opcode opcode) {
  return opcode == Opcode::kFetchAdd || opcode == Opcode::kCompareSwap;
}

[[nodiscard]] constexpr bool has_immediate(Opcode opcode) {
  return opcode == Opcode::kSendImmediate || opcode == Opcode::kWriteImmediate;
}

// Returns the kind that the initiator's completion reports for `opcode`.
[[nodiscard]] constexpr CompletionKind completion_kind(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
    case Opcode::kSendImmediate:
      return CompletionKind::kSend;
    case Opcode::kWrite:
    case Opcode::kWriteImmediate:
      return CompletionKind::kWrite;
    case Opcode::kRead:
      return CompletionKind::kRead;
    case Opcode::kFetchAdd:
      return CompletionKind::kFetchAdd;
    case Opcode::kCompareSwap:
      return CompletionKind::kCompareSwap;
  }
  return CompletionKind::kSend;
}

struct Validation {
  PostError error = PostError::kNone;
  uint64_t bytes = 0;  // the sum of the segments' lengths, when error is kNone
};

// Checks whether `request` may be posted on a queue pair with these limits. The transport must
// check the room in the queue and the state of the queue pair before this call. `atomics`:
// DeviceLimits::atomics.
[[nodiscard]] inline Validation validate(const WorkRequest& request, const QueuePairLimits& limits,
                                         bool atomics) {
  if (request.segment_count > limits.max_send_segments) return {PostError::kTooManySegments};
  // At most 65535 lengths of 32 bits: the sum cannot overflow.
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) bytes += request.segments[i].length;

  switch (request.opcode) {
    case Opcode::kSend:
    case Opcode::kSendImmediate:
    case Opcode::kWrite:
    case Opcode::kWriteImmediate:
      if ((request.flags & kInline) != 0 && bytes > limits.max_inline) {
        return {PostError::kInlineTooLarge};
      }
      break;
    case Opcode::kRead:
      if ((request.flags & kInline) != 0) return {PostError::kInlineTooLarge};
      break;
    case Opcode::kFetchAdd:
    case Opcode::kCompareSwap:
      if (!atomics) return {PostError::kUnsupported};
      if ((request.flags & kInline) != 0) return {PostError::kInlineTooLarge};
      if (request.segment_count != 1 || bytes != 8 || request.remote_address % 8 != 0) {
        return {PostError::kMisalignedAtomic};
      }
      break;
    default:
      return {PostError::kUnsupported};
  }
  if (bytes > limits.max_message) return {PostError::kMessageTooLarge};
  return {PostError::kNone, bytes};
}

// Checks whether `request` may be posted to a receive queue that accepts `max_segments` segments.
// The transport must check the room in the queue.
[[nodiscard]] inline PostError validate(const ReceiveRequest& request, uint32_t max_segments) {
  return request.segment_count > max_segments ? PostError::kTooManySegments : PostError::kNone;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_VALIDATE_H_
