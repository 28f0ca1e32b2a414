// Joins a job that cariama-run started.
#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/launch_variables.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// Returns the inherited socket. Checks its cookie, because another file may have reused the
// descriptor number.
absl::StatusOr<int> inherited_socket(const std::string& text) {
  const size_t colon = text.find(':');
  int socket = -1;
  uint64_t wanted = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(0, colon), &socket) ||
      !absl::SimpleAtoi(text.substr(colon + 1), &wanted)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      absl::StrCat(kLaunchSocketVariable, " is malformed: '", text, "'"),
                      "leave it as cariama-run set it");
  }
  // Two fabrics on one socket would take each other's answers.
  static std::atomic<pid_t> joined{0};
  uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  const bool open =
      getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 && cookie == wanted;
  if (!open || joined.exchange(getpid()) == getpid()) {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
        open ? "this process has joined the job already"
             : "the socket that cariama-run gave to this process is not open here",
        absl::StrCat("join once per process, in the process that cariama-run started (exec is "
                     "allowed); to start a separate job from it, unset ",
                     kLaunchSocketVariable));
  }
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> join_local(Exchange::Deadline deadline) {
  const std::optional<std::string> text = environment_variable(kLaunchSocketVariable);
  if (!text) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      absl::StrCat(kLaunchSocketVariable, " is not set"),
                      "start the program with cariama-run");
  }
  absl::StatusOr<int> size = environment_number(kSizeVariable, 1, INT32_MAX);
  if (!size.ok()) return size.status();
  absl::StatusOr<int> rank = environment_number(kRankVariable, 0, *size - 1);
  if (!rank.ok()) return rank.status();
  absl::StatusOr<std::optional<uint32_t>> threads = threads_from_environment();
  if (!threads.ok()) return threads.status();
  absl::StatusOr<int> socket = inherited_socket(*text);
  if (!socket.ok()) return socket.status();
  // Close-on-exec: programs that this process starts do not belong to the job.
  fcntl(*socket, F_SETFD, FD_CLOEXEC);

  auto joined = std::make_unique<StoreBootstrap>(BootstrapKind::kLocal, *socket, *rank, *size);
  absl::StatusOr<std::string> bytes = joined->get(0, kSecretKey, deadline);
  if (!bytes.ok()) return bytes.status();
  JobSecret secret;
  if (bytes->size() != secret.size()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "cariama-run gave a secret of another size",
                      "use the cariama-run of the same version as the program");
  }
  std::memcpy(secret.data(), bytes->data(), secret.size());
  joined->set_secret(secret);
  joined->set_threads(*threads);
  return joined;
}

}  // namespace cariama::internal
