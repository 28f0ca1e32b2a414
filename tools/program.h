// The main function of a program that prints results on stdout.
//
//   int main(int argc, char** argv) {
//     return cariama::run_program("cariama-run", [&] { return run(argc, argv); });
//   }
#ifndef CARIAMA_TOOLS_PROGRAM_H_
#define CARIAMA_TOOLS_PROGRAM_H_

#include <cerrno>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "dtutils/error.h"
#include "dtutils/internal/standard_streams.h"

namespace cariama {

// Writes the buffer of stdout. Returns the error of this or of an earlier write once: the next call
// reports only later writes.
[[nodiscard]] inline absl::Status flush_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  bool written = std::fflush(stdout) == 0;
  if (written && !failed_before) return absl::OkStatus();
  if (written) {
    // The errno of the earlier write is lost. Another write fails for the same reason.
    errno = EIO;
    written = std::fputc('\n', stdout) != EOF && std::fflush(stdout) == 0;
  }
  const int error = errno != 0 && !written ? errno : EIO;
  std::clearerr(stdout);
  return make_errno_error(error, ErrorScope::kProcess, "cannot write to standard output");
}

// Returns the result of `run`, the exit code. Returns 1, and prints the reason on stderr, if
// something that was printed on stdout could not be written. Opens closed standard streams first.
template <typename Run>
[[nodiscard]] int run_program(const char* name, const Run& run) {
  internal::open_standard_streams();
  const int code = run();
  const absl::Status written = flush_output();
  if (written.ok()) return code;
  std::fprintf(stderr, "%s: %s\n", name, std::string(written.message()).c_str());
  return 1;
}

}  // namespace cariama

#endif  // CARIAMA_TOOLS_PROGRAM_H_
