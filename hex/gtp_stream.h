// The Go Text Protocol on file descriptors: reads while a search runs, so that it can be
// interrupted.
#ifndef CARIAMA_HEX_GTP_STREAM_H_
#define CARIAMA_HEX_GTP_STREAM_H_

#include <cstddef>
#include <optional>
#include <string>

#include "hex/gtp.h"

namespace cariama::hex {

// Splits what is read into lines. Lines longer than kMaxLine are cut there: the session answers
// with an error or to what is left of them, and memory stays bounded.
class LineReader {
 public:
  static constexpr size_t kMaxLine = size_t{1} << 20;

  // wake: a descriptor that ends the waiting when it becomes readable; -1: none. Both stay the
  // caller's.
  explicit LineReader(int fd, int wake = -1) : fd_(fd), wake_(wake) {}
  // The next line without its end; a last one without an end too. Blocks. nullopt: end of input, an
  // error of read(), or woken.
  [[nodiscard]] std::optional<std::string> next();

 private:
  int fd_;
  int wake_;
  std::string buffer_;
  size_t used_ = 0;
  bool ended_ = false;
};

// Serves `in` until `quit` or its end, with answers on `out`. Blocks. A thread of its own reads; it
// has ended when this returns. A controller that goes away ends an analysis at once, a genmove
// within its limits. The program should ignore SIGPIPE. Errors: those of the system, if nothing
// could be begun.
[[nodiscard]] absl::Status run_gtp(Engine& engine, int in, int out, const GtpOptions& options = {});

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_STREAM_H_
