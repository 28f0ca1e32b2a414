// Global memory: a histogram whose bins are distributed over all processes of a job. The default is
// three processes; `example_global_histogram -n 4` starts four.
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/global_vector.h"
#include "dsfabric/launcher.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [global_histogram]
uint64_t histogram(Fabric& fabric, uint64_t samples) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  Collectives all(fabric);                                  // this process's end of the collectives
  const auto memory = check(GlobalMemory::create(fabric));  // for this thread

  constexpr size_t kBins = 1000;
  auto bins = check(GlobalVector<uint64_t>::create(all, kBins, deadline));

  // Every process adds to the bins of all processes. 32 additions are in flight at a time.
  std::mt19937_64 random(fabric.rank());
  std::vector<GlobalValue<uint64_t>> in_flight(32);
  for (uint64_t i = 0; i < samples; ++i) {
    GlobalValue<uint64_t>& slot = in_flight[i % in_flight.size()];
    check(slot.wait(deadline).status());
    slot = memory->fetch_add(bins[random() % kBins], 1);
  }
  for (auto& slot : in_flight) check(slot.wait(deadline).status());
  check(all.barrier(deadline));  // the additions of all processes are complete

  // Each process adds up its own bins with plain loads.
  uint64_t mine = 0;
  for (const uint64_t bin : bins.local()) mine += bin;
  const uint64_t total = check(all.all_reduce(mine, std::plus<>(), deadline));

  // Rank 0 reads the whole vector.
  if (fabric.rank() == 0) {
    std::vector<uint64_t> whole(kBins);
    check(bins.get(*memory, 0, std::span(whole), deadline));
    std::printf("%u processes, %zu bins, %lu counts; bin 0 has %lu\n", fabric.size(), kBins,
                static_cast<unsigned long>(total), static_cast<unsigned long>(whole[0]));
  }
  check(all.barrier(deadline));  // no process frees its bins before rank 0 has read them
  return total;
}
// [global_histogram]

// [global_lock]
// The processes print one after the other, so that their lines do not mix. Any order.
void in_turn(Fabric& fabric, const std::function<void()>& print) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  Collectives all(fabric);
  const auto memory = check(GlobalMemory::create(fabric));
  global_ptr<uint64_t> word;  // in memory of rank 0; all processes get the pointer
  if (fabric.rank() == 0) word = check(memory->allocate<uint64_t>(0, 1, deadline));
  check(all.broadcast(word, 0, deadline));

  DistributedLock lock(*memory, word);
  check(lock.acquire(deadline));
  print();
  check(lock.release(deadline));

  check(all.barrier(deadline));
  if (fabric.rank() == 0) memory->free(word);
}
// [global_lock]

// [global_threads]
// The threads of all processes add up their numbers. One thread of each process creates the object,
// and all threads of the process use it.
uint64_t add_up_threads(Fabric& fabric) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  Collectives all(fabric, {.participants = Participants::kThreads});
  const auto take_part = [&] {
    const uint64_t number = fabric.this_thread()->global_id();
    return check(all.all_reduce(number, std::plus<>(), deadline));
  };
  std::thread second([&] {
    const auto self = check(fabric.init_thread(1));
    take_part();
  });
  const uint64_t sum = take_part();  // as thread 0
  second.join();
  return sum;
}
// [global_threads]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 3}, argc, argv)) return *code;
  auto fabric = check(Fabric::create({.threads = 2}));
  const auto self = check(fabric->init_thread(0));
  constexpr uint64_t kSamples = 20'000;
  const uint64_t total = histogram(*fabric, kSamples);
  in_turn(*fabric, [&] { std::printf("rank %u has counted\n", fabric->rank().value()); });
  const uint64_t threads = fabric->total_threads();
  check(add_up_threads(*fabric) == threads * (threads - 1) / 2, "another sum was expected");
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
  return total == kSamples * fabric->size() ? 0 : 1;
}
