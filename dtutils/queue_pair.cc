#include "dtutils/queue_pair.h"

#include <string>
#include <system_error>

#include "dtutils/error.h"

namespace cariama {
namespace {

struct PostExplanation {
  absl::StatusCode code;
  std::string_view reason;
  std::string_view remedy;
};

PostExplanation explain(PostError error) {
  using absl::StatusCode;
  switch (error) {
    case PostError::kNone:
      return {StatusCode::kOk, "", ""};
    case PostError::kQueueFull:
      return {StatusCode::kResourceExhausted, "the queue is full",
              "poll completions and post again, and signal at least one operation in send_depth"};
    case PostError::kNotConnected:
      return {StatusCode::kFailedPrecondition, "the queue pair is not connected",
              "connect() both ends, or make a new queue pair if repair() failed"};
    case PostError::kTooManySegments:
      return {StatusCode::kInvalidArgument, "the request has too many segments",
              "see limits(), and create the queue pair with more"};
    case PostError::kInlineTooLarge:
      return {StatusCode::kInvalidArgument,
              "the data is larger than max_inline, or the operation cannot be inline",
              "send it from registered memory, without kInline"};
    case PostError::kMessageTooLarge:
      return {StatusCode::kInvalidArgument, "the message is larger than max_message",
              "split it into several requests"};
    case PostError::kMisalignedAtomic:
      return {
          StatusCode::kInvalidArgument,
          "an atomic needs a remote address that is a multiple of 8, and one segment of 8 bytes",
          "align the remote word"};
    case PostError::kUnsupported:
      return {StatusCode::kUnimplemented, "the queue pair does not support this operation",
              "see the device's limits(); with a shared receive queue, post receives there"};
    case PostError::kDeviceError:
      break;
  }
  return {StatusCode::kInternal, "the driver refused the request",
          "repair() both ends; look at the kernel log if it stays"};
}

}  // namespace

absl::Status to_status(const PostResult& result, std::string_view peer) {
  if (result.ok()) return absl::OkStatus();
  const PostExplanation explanation = explain(result.error);
  std::string what("posting to ");
  what.append(peer).append(" failed after ").append(std::to_string(result.posted));
  what.append(result.posted == 1 ? " request: " : " requests: ").append(explanation.reason);
  if (result.system_error != 0) {
    what.append(" (").append(std::generic_category().message(result.system_error)).append(")");
  }
  const bool link =
      result.error == PostError::kDeviceError || result.error == PostError::kNotConnected;
  return make_error(explanation.code, link ? ErrorScope::kLink : ErrorScope::kOperation, what,
                    explanation.remedy);
}

// Not inline: g++ would compare the virtual function with this one before each call.
PostResult QueuePair::post_one(const WorkRequest& request) {
  return post_send(std::span(&request, 1));
}

bool QueuePair::open_direct_writer(RemoteKey /*key*/, DirectWriter& /*writer*/) { return false; }

}  // namespace cariama
