// Records the uses of registered memory in a file, in the format that bench_registration --trace
// reads (bench/support/registration_trace.h).
//
// One line for each use: rank, t_ns, t_end_ns, kind, callsite_hash, addr, bytes, peer, c_ns. This
// layer knows no ranks and no peers: `rank` is the id of the thread, so that each thread is
// replayed by itself, `kind` is "use" and `peer` is -1. c_ns is the processor time of the thread,
// which includes the time for which it polls. Lines of a thread are in the order of t_ns.
#ifndef CARIAMA_DTUTILS_INTERNAL_REGISTRATION_TRACE_H_
#define CARIAMA_DTUTILS_INTERNAL_REGISTRATION_TRACE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "dtutils/registration/policy.h"

namespace cariama::internal {

// Thread-safe. Each record takes a lock, and a system call or two: recording is no part of normal
// operation. In a forked child nothing is recorded.
class RegistrationTrace {
 public:
  // The trace that CARIAMA_TRACE_REGISTRATION names, or nullptr. %p in the name becomes the process
  // id. A file that cannot be created is reported once. Written to the end when the process exits.
  [[nodiscard]] static RegistrationTrace* get();

  // Creates the file. Errors: ALREADY_EXISTS (also a symbolic link), those of open(2).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RegistrationTrace>> create(
      const std::string& file);
  ~RegistrationTrace();
  RegistrationTrace(const RegistrationTrace&) = delete;
  RegistrationTrace& operator=(const RegistrationTrace&) = delete;

  // Records that a use begins, by this thread. Returns the argument of end(), or 0 in a forked
  // child.
  [[nodiscard]] uint64_t begin(const void* address, size_t bytes, const CallStack& stack);
  void end(uint64_t id);
  // Writes all uses that have begun. A use in progress ends now.
  void write_all();

 private:
  struct Use {
    int64_t begin;
    int64_t end;  // 0: in progress
    uint32_t call_site;
    pid_t thread;
    uintptr_t address;
    size_t bytes;
    int64_t processor_time;
  };

  explicit RegistrationTrace(std::FILE* file);
  void write_first();

  std::FILE* const file_;
  const pid_t process_;
  const int64_t start_;
  std::mutex mutex_;
  std::deque<Use> uses_;  // not written yet
  uint64_t written_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_REGISTRATION_TRACE_H_
