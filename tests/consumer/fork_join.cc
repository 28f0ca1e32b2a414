// Uses the component tasks of the installed package: a recursive fork-join function on two workers.
#include <cariama.h>

#include <cstdio>
#include <utility>

namespace {

long fib(long n) {
  if (n < 2) return n;
  cariama::task<long> left = cariama::spawn([n] { return fib(n - 1); });
  const long right = fib(n - 2);
  return cariama::join(std::move(left)) + right;
}

}  // namespace

int main() {
  const absl::Status status = cariama::run_processes(2, [](cariama::Exchange& exchange) {
    const auto runtime = cariama::TaskRuntime::create(exchange, {});
    if (!runtime.ok()) {
      std::fprintf(stderr, "TaskRuntime::create: %s\n", runtime.status().ToString().c_str());
      return 1;
    }
    const absl::StatusOr<long> result = (*runtime)->run([] { return fib(20); });
    if (!result.ok() || *result != 6765) return 2;
    if (exchange.rank() == 0) std::printf("consumer: fib(20) is %ld\n", *result);
    return 0;
  });
  if (!status.ok()) std::fprintf(stderr, "run_processes: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
