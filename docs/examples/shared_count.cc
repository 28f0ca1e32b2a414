// Data that the tasks of all workers change: they count into one word of global memory. The program
// starts two workers; under cariama-run, mpirun or srun each process is a worker.
#include <chrono>
#include <cstdint>
#include <cstdio>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/fabric.h"
#include "dsfabric/global_memory.h"
#include "tasks/await.h"
#include "tasks/parallel.h"
#include "tasks/runtime.h"
#include "tasks/start.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [count]
GlobalMemory* memory = nullptr;  // of this process; every worker sets it before run()

void count_multiples(global_ptr<uint64_t> counter, long limit) {
  parallel_for(0L, limit, [counter](long i) {
    if (i % 3 != 0) return;
    GlobalValue<uint64_t> before = memory->fetch_add(counter, 1);
    check(await(before, kForever).status());
  });
}

uint64_t multiples_below(long limit) {
  const auto counter = check(memory->allocate<uint64_t>(0, 1, kForever));  // in process 0
  count_multiples(counter, limit);
  GlobalValue<uint64_t> counted = memory->load(counter);
  return check(await(counted, kForever));
}
// [count]

}  // namespace

// [main]
int main(int argc, char** argv) {
  read_options(argc, argv);  // --help and --version
  if (auto code = start_workers({.processes = 2}, argc, argv)) return *code;
  auto fabric = check(Fabric::create());
  const auto own_memory = check(GlobalMemory::create(*fabric));
  memory = own_memory.get();
  auto runtime = check(TaskRuntime::create(*fabric, {}));
  const uint64_t counted = check(runtime->run([] { return multiples_below(1000); }));
  if (fabric->rank() == 0) std::printf("%lu\n", static_cast<unsigned long>(counted));
  check(counted == 334, "a wrong result");
  runtime.reset();  // before the fabric ends
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
  return 0;
}
// [main]
