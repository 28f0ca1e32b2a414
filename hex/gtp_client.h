// An engine in a process of its own, spoken to by GTP.
#ifndef CARIAMA_HEX_GTP_CLIENT_H_
#define CARIAMA_HEX_GTP_CLIENT_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cariama::hex {

// One thread at a time. The destructor asks the engine to quit and, if it does not within a second,
// kills it with the processes that it started.
class GtpClient {
 public:
  // Starts `command` by /bin/sh; its stderr is ours. Errors: those of the system. That the command
  // does not exist shows at the first ask().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GtpClient>> start(const std::string& command);
  ~GtpClient();
  GtpClient(const GtpClient&) = delete;
  GtpClient& operator=(const GtpClient&) = delete;

  // Sends one command and waits for its answer, without the `=` and the id, trimmed. Blocks for up
  // to `seconds`. Blocks of live graphics are passed over. Errors: INVALID_ARGUMENT (the engine
  // answered `?`: its text), DEADLINE_EXCEEDED, UNAVAILABLE (it ended, or speaks something else;
  // only the destructor can follow these two).
  [[nodiscard]] absl::StatusOr<std::string> ask(std::string_view command, double seconds);

 private:
  GtpClient(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}

  pid_t pid_;
  int to_;  // a socket: a write to an engine that ended must not raise SIGPIPE
  int from_;
  std::string received_;
  size_t scanned_ = 0;  // no answer ends before
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_CLIENT_H_
