// GtpClient: an engine in a separate process that communicates by GTP.
#ifndef CARIAMA_HEX_GTP_CLIENT_H_
#define CARIAMA_HEX_GTP_CLIENT_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/guardian.h"
#include "hex/gtp_text.h"

namespace cariama::hex {

// The client of one engine process. Not thread-safe. The destructor sends `quit` to the engine,
// waits up to a second for its end, and then kills the process group of the engine. If this process
// dies before, a guardian process kills the group.
class GtpClient {
 public:
  // Starts the engine: `command`, executed by /bin/sh. The engine inherits stderr. Returns OK also
  // if the command does not exist: then /bin/sh ends, and the first ask() returns UNAVAILABLE.
  // Errors: those of socketpair(2), pipe2(2) and fork(2), and of Guardian::start().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GtpClient>> start(const std::string& command);
  ~GtpClient();
  GtpClient(const GtpClient&) = delete;
  GtpClient& operator=(const GtpClient&) = delete;

  // Sends one command and returns its answer, trimmed, without the `=`. Blocks for up to `seconds`.
  // Skips blocks of live graphics. Errors: INVALID_ARGUMENT with the engine's message if it
  // answered `?`; DEADLINE_EXCEEDED; UNAVAILABLE if the engine has ended or its output is no GTP.
  // After the last two errors the client must be destroyed.
  [[nodiscard]] absl::StatusOr<std::string> ask(std::string_view command, double seconds);

 private:
  GtpClient() = default;

  internal::Guardian guardian_;
  pid_t pid_ = -1;
  FileDescriptor to_;  // a socket: a write to an engine that ended must not raise SIGPIPE
  FileDescriptor from_;
  GtpAnswers answers_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_CLIENT_H_
