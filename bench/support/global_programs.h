// Programs whose data is in global memory: matrix multiplication and merge sort. Tasks carry
// indices only; a leaf reads what it needs, and writes what it has made, wherever that lies.
#ifndef CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_
#define CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"

namespace cariama::bench {

// The arrays, spread over the processes of a fabric. One at a time in a process.
class GlobalArrays {
 public:
  // Collective. Ends the program if there is no memory.
  GlobalArrays(Fabric& fabric, size_t matrix, size_t sorted);
  ~GlobalArrays();  // collective
  GlobalArrays(const GlobalArrays&) = delete;
  GlobalArrays& operator=(const GlobalArrays&) = delete;

  struct Data;

 private:
  std::unique_ptr<Data> data_;
};

// Both make C = A B of n x n small integers, and return a checksum of C. n is a multiple of 64.
[[nodiscard]] uint64_t matmul_plain(size_t n);
[[nodiscard]] uint64_t matmul_tasks(size_t n);

// Both sort n numbers that look random. Return a checksum of the sorted sequence, or 0 if it is not
// in order.
[[nodiscard]] uint64_t sort_plain(size_t n);
[[nodiscard]] uint64_t sort_tasks(size_t n);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_GLOBAL_PROGRAMS_H_
