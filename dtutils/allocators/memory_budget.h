// The limit in bytes of the memory that allocators map and register: one number per process that
// the user sets and reads.
//
//   MemoryBudget::process().set_limit(uint64_t{4} << 30);
//   printf("%lu of %lu\n", MemoryBudget::process().used(), MemoryBudget::process().limit());
//
// Allocators reserve bytes here before they map memory. So a program that exceeds its share gets an
// error that states this; without the budget the machine would swap, or the kernel's out-of-memory
// killer would end a process. All memory of the allocators counts, handed out or not. Memory that
// the user registers, directly or through a RegistrationCache, does not count.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_
#define CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// Thread-safe, lock-free. Must outlive the allocators that use it.
class CARIAMA_DTUTILS_EXPORT MemoryBudget {
 public:
  // `name` and `remedy` go into the error text ("the <name> is ...: <remedy>").
  explicit MemoryBudget(uint64_t limit_bytes, std::string_view name = "memory budget",
                        std::string_view remedy = "raise its limit with set_limit()");
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Returns the budget of this process. The initial limit is the environment variable
  // CARIAMA_MEMORY_BUDGET ("4GiB", "unlimited"), else half of the memory that the process may use
  // (the machine's, or its cgroup's limit if that is smaller). Set a share for each of several
  // processes on one machine.
  [[nodiscard]] static MemoryBudget& process();

  // Sets the limit in bytes. A limit below the bytes in use frees nothing; it only refuses further
  // reservations.
  void set_limit(uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  // Returns the largest value that used() ever had.
  [[nodiscard]] uint64_t high_water() const { return high_water_.load(std::memory_order_relaxed); }

  // Reserves all of `bytes` or nothing. At least `spare` bytes stay free. Error:
  // RESOURCE_EXHAUSTED; the text states budget, use and remedy.
  [[nodiscard]] absl::Status reserve(uint64_t bytes, uint64_t spare = 0);

  // Returns bytes that reserve() reserved.
  void release(uint64_t bytes);

 private:
  const std::string name_;
  const std::string remedy_;
  std::atomic<uint64_t> limit_;
  // used_ and high_water_ publish no other data, so relaxed order suffices.
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> high_water_{0};
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_MEMORY_BUDGET_H_
