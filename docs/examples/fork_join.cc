// Fork and join: a recursive function that forks itself, and a parallel reduction, on two worker
// processes.
#include <cstdio>
#include <functional>
#include <utility>

#include "docs/examples/options.h"
#include "dtutils/process_group.h"
#include "tasks/parallel.h"
#include "tasks/runtime.h"
#include "tasks/task.h"

namespace {

// [fib]
long fib(long n) {
  if (n < 2) return n;
  cariama::task<long> left = cariama::spawn([n] { return fib(n - 1); });
  const long right = fib(n - 2);
  return cariama::join(std::move(left)) + right;
}
// [fib]

// [reduce]
long square(long i) { return i * i; }

long sum_of_squares(long n) { return cariama::parallel_reduce(0L, n, 0L, square, std::plus<>()); }
// [reduce]

// [run]
int work(cariama::Exchange& exchange) {
  auto runtime = cariama::TaskRuntime::create(exchange, {});
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", runtime.status().ToString().c_str());
    return 1;
  }
  const absl::StatusOr<long> result = (*runtime)->run([] { return fib(25); });
  if (!result.ok() || *result != 75025) return 1;
  if (exchange.rank() == 0) std::printf("fib(25) is %ld\n", *result);
  return 0;
}
// [run]

int more_work(cariama::Exchange& exchange) {
  auto runtime = cariama::TaskRuntime::create(exchange, {});
  if (!runtime.ok()) return 1;
  const absl::StatusOr<long> result = (*runtime)->run([] { return sum_of_squares(100'000); });
  return result.ok() && *result == 333328333350000 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv, {.launches = false});
  for (const auto& body : {work, more_work}) {
    const absl::Status status = cariama::run_processes(2, body);
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
