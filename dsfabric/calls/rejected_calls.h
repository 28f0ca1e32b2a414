// Counts and reports invalid messages.
#ifndef CARIAMA_DSFABRIC_CALLS_REJECTED_CALLS_H_
#define CARIAMA_DSFABRIC_CALLS_REJECTED_CALLS_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "dsfabric/bootstrap/fabric_job.h"

namespace cariama::internal {

// Thread-safe.
class RejectedCalls {
 public:
  explicit RejectedCalls(const FabricJob& job) : job_(job) {}

  // Reports only rejections number 1, 2, 4, 8, ..., so that a flood of invalid calls does not flood
  // stderr. Needs no memory.
  void add(uint32_t from, std::string_view why) {
    const uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    if ((count & (count - 1)) != 0) return;
    const std::string label = label_of(from);
    std::fprintf(stderr, "cariama: rank %u rejected a call from %s: %.*s (%lu so far)\n",
                 job_.rank(), label.c_str(), static_cast<int>(why.size()), why.data(),
                 static_cast<unsigned long>(count));
  }
  [[nodiscard]] uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] std::string label_of(uint32_t rank) const {
    try {
      return job_.label(rank);
    } catch (const std::bad_alloc&) {  // a short text needs no memory
      return "a process";
    }
  }

  const FabricJob& job_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_REJECTED_CALLS_H_
