// The limit of descriptors of the launcher.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_DESCRIPTOR_LIMIT_H_
#define CARIAMA_DSFABRIC_LAUNCHER_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

#include <algorithm>

namespace cariama::internal {

// Raises the limit of descriptors of this process during its lifetime, as far as the user may.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t wanted) {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0 || before_.rlim_cur >= wanted) return;
    rlimit raised = before_;
    raised.rlim_cur = std::min(wanted, before_.rlim_max);
    raised_ = setrlimit(RLIMIT_NOFILE, &raised) == 0;
  }
  ~DescriptorLimit() { restore(); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  // Async-signal-safe: for a child between fork and exec.
  void restore() const {
    if (raised_) setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  bool raised_ = false;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_DESCRIPTOR_LIMIT_H_
