// How many bytes of registered memory may exist: one number per process that the user sets and
// reads.
//
//   MemoryBudget::process().set_limit(uint64_t{4} << 30);
//   printf("%lu of %lu\n", MemoryBudget::process().used(), MemoryBudget::process().limit());
//
// Allocators draw on it before they map memory, so that a program which outgrows its share gets an
// error that says so, and the machine does not start to swap or to kill. Everything that allocators
// hold counts, whether it is handed out or not.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_
#define CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// Thread-safe, lock-free. Must outlive the allocators that draw on it.
class CARIAMA_DTUTILS_EXPORT MemoryBudget {
 public:
  // `name` and `remedy` go into the error text ("the <name> is ...: <remedy>").
  explicit MemoryBudget(uint64_t limit_bytes, std::string_view name = "memory budget",
                        std::string_view remedy = "raise its limit with set_limit()");
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // The budget of this process. Its limit is at first the environment variable
  // CARIAMA_MEMORY_BUDGET ("4GiB", "unlimited"), else half of the memory that the process may use
  // (the machine's, or its cgroup's limit when that is less). Processes that share a machine should
  // be given their shares.
  [[nodiscard]] static MemoryBudget& process();

  // Bytes. A limit below what is in use frees nothing; it only refuses more.
  void set_limit(uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  // The most that was ever in use.
  [[nodiscard]] uint64_t high_water() const { return high_water_.load(std::memory_order_relaxed); }

  // Takes `bytes`, whole or not at all. Error: RESOURCE_EXHAUSTED, with budget, use and remedy.
  [[nodiscard]] absl::Status reserve(uint64_t bytes);

  // Gives back what a reserve() took.
  void release(uint64_t bytes);

 private:
  const std::string name_;
  const std::string remedy_;
  std::atomic<uint64_t> limit_;
  // These are numbers, they publish no other data: relaxed order suffices.
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> high_water_{0};
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_
