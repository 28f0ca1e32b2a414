// The output of a job's processes that the reader of the launcher's output has not read yet.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_OUTPUT_QUEUE_H_
#define CARIAMA_DSFABRIC_LAUNCHER_OUTPUT_QUEUE_H_

#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// Writes to stdout or stderr without blocking, so that the launcher handles its signals and time
// limits also while the reader does not read. Thread-compatible.
class OutputQueue {
 public:
  // The caller keeps the ownership of `descriptor`, which must outlive the queue.
  explicit OutputQueue(int descriptor);

  // Appends the text, and writes as much as the reader takes now.
  void append(std::string_view text);
  // Writes as much as the reader takes now. If writing fails, discards everything from then on.
  void write_some();
  // Returns the errno of the write that failed, or 0. For example ENOSPC, or EPIPE if the reader
  // has closed its end (and SIGPIPE is ignored).
  [[nodiscard]] int error() const { return error_; }

  [[nodiscard]] bool empty() const { return pending_.empty(); }
  // Returns true if the caller should append nothing until the reader has taken some bytes.
  [[nodiscard]] bool full() const { return pending_.size() >= kMaxPending; }
  // Returns the event that write_some() waits for.
  [[nodiscard]] pollfd polled() const { return {empty() ? -1 : descriptor_, POLLOUT, 0}; }

 private:
  static constexpr size_t kMaxPending = size_t{1} << 20;

  FileDescriptor own_;  // descriptor_, if this object has opened it
  int descriptor_;
  std::string pending_;
  int error_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_OUTPUT_QUEUE_H_
