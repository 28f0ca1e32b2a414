// Serves the Go Text Protocol on file descriptors. It reads while a search runs, so that lines can
// interrupt the search.
#ifndef CARIAMA_HEX_GTP_STREAM_H_
#define CARIAMA_HEX_GTP_STREAM_H_

#include <cstddef>
#include <optional>
#include <string>

#include "hex/gtp.h"

namespace cariama::hex {

// Reads lines from a descriptor. Cuts lines to kMaxLine characters, so that memory is bounded. The
// session then executes the rest of such a line or answers with an error.
class LineReader {
 public:
  static constexpr size_t kMaxLine = size_t{1} << 20;

  // wake: next() returns nullopt when this descriptor becomes readable; -1: none. The caller keeps
  // the ownership of both descriptors.
  explicit LineReader(int fd, int wake = -1) : fd_(fd), wake_(wake) {}
  // Returns the next line without its end. The last line needs no newline. Blocks. Returns nullopt
  // at the end of the input, after an error of read(), or when `wake` is readable.
  [[nodiscard]] std::optional<std::string> next();
  // Returns the errno of the read() that failed, or 0.
  [[nodiscard]] int error() const { return error_; }

 private:
  int fd_;
  int wake_;
  std::string buffer_;
  size_t used_ = 0;
  bool ended_ = false;
  int error_ = 0;
};

// Executes the lines of `in` until `quit` or the end of the input, and writes the answers to `out`.
// Blocks. It starts a thread that reads `in`, and joins it before it returns. During a command the
// thread reads at most 4096 further lines with 4 MiB in all, and one line more. If the controller
// closes `in`, an analysis ends immediately and a genmove ends within its limits. The program
// should ignore SIGPIPE. Errors: those of the system before the first line is read, and of read(2)
// and write(2), which end the session. A controller that has closed its end of `in` (ECONNRESET) or
// `out` (EPIPE) is no error. Throws the exceptions of the engine, after the thread has ended.
[[nodiscard]] absl::Status run_gtp(Engine& engine, int in, int out, const GtpOptions& options = {});

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_STREAM_H_
