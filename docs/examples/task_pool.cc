// Task pools: a recursive function whose calls are pool tasks, on two worker processes.
#include "tasks/pool.h"

#include <chrono>
#include <cstdio>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [fib]
long fib(long n) {
  if (n < 2) return n;
  pool::Children<fib> left;
  left.spawn(n - 1);
  const long right = pool::call<fib>(n - 2);
  return left.sync() + right;
}
// [fib]

// [run]
void compute(Fabric& fabric) {
  auto workers = check(TaskPool::create(fabric));
  const long value = check(workers->run<fib>(25));  // on every rank
  if (fabric.rank() == 0) std::printf("fib(25) is %ld\n", value);
  check(value == 75025, "a wrong result");
}
// [run]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  auto fabric = check(Fabric::create());
  auto self = check(fabric->init_thread(0));
  compute(*fabric);
  check(fabric->finalize(deadline_after(std::chrono::seconds(30))));
  return 0;
}
