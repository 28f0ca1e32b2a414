// Programs with their data in global memory: matrix multiplication and merge sort. Tasks carry
// indices only. Leaf tasks read their input from global memory and write their output to it.
#ifndef CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_
#define CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"
#include "tasks/pool.h"

namespace cariama::bench {

// The arrays, distributed over the processes of a fabric. At most one object per process at a time.
class GlobalArrays {
 public:
  // Collective. Ends the program if the memory cannot be allocated.
  GlobalArrays(Fabric& fabric, size_t matrix, size_t sorted);
  ~GlobalArrays();  // collective
  GlobalArrays(const GlobalArrays&) = delete;
  GlobalArrays& operator=(const GlobalArrays&) = delete;

  struct Data;

 private:
  std::unique_ptr<Data> data_;
};

// Compute C = A B of n x n small integers and return a checksum of C. Require: n is a multiple of
// 64.
[[nodiscard]] uint64_t matmul_plain(size_t n);
[[nodiscard]] uint64_t matmul_tasks(size_t n);
[[nodiscard]] absl::StatusOr<uint64_t> matmul_pool(TaskPool& pool, size_t n);

// Sort n pseudo-random numbers. Return a checksum of the sorted sequence, or 0 if it is not in
// order.
[[nodiscard]] uint64_t sort_plain(size_t n);
[[nodiscard]] uint64_t sort_tasks(size_t n);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_
