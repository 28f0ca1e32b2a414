// Every call of the paper's Table 1, send-based and one-sided. Each process calls the process of
// the next rank, which counts the calls that it runs.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/future.h"
#include "dsfabric/launcher.h"
#include "dsfabric/quiescence.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

std::atomic<int> ran = 0;  // calls that ran in this process
std::atomic<uint64_t> bytes = 0;

// The function that call_buffer() runs: adds up the bytes of the buffer.
void take(void* buffer, uint64_t size) {
  const std::span data(static_cast<const unsigned char*>(buffer), size);
  bytes += std::accumulate(data.begin(), data.end(), uint64_t{0});
  ++ran;
}
constexpr auto kTake = [](void* buffer, uint64_t size) { take(buffer, size); };

constexpr size_t kSize = 64;
// Number of calls that each of send_based() and one_sided() makes.
constexpr int kBufferCalls = 6;
constexpr int kOtherCalls = 7;

// `theirs` is memory of the called process. Every byte of `mine` is 1.
// [send_based]
void send_based(Fabric& fabric, ThreadId to, RDMAMemory* mine, const RemoteMemoryLocator& theirs) {
  const std::vector<std::byte> own(kSize, std::byte{1});  // not registered with a device
  Synchronizer run(10);
  // call: with captures, or with arguments. RemoteNotify: `run` is counted down when the call has
  // run. The completion stands behind the function.
  check(call<RemoteNotify>(
      fabric, to, [] { ++ran; }, run));
  check(call(
      fabric, to, [](const std::string& text) { ran += static_cast<int>(text.size()); },
      std::string("a")));
  // call_buffer: the buffer travels together with the call. Any memory, registered or not.
  check(call_buffer<RemoteNotify>(fabric, to, kTake, std::span(own), run));
  check(call_buffer<RemoteNotify>(fabric, to, kTake, mine, 0, kSize, run));
  // call_buffer into `theirs`: the buffer is written there before the function runs.
  check(call_buffer<RemoteNotify>(fabric, to, kTake, mine, 0, kSize, theirs, run));
  // call_buffer with a READ by the destination: before its next call (Sync), or concurrently with
  // later calls (Async).
  check(call_buffer<Sync, RemoteNotify>(fabric, to, kTake, mine, 0, kSize, run));
  check(call_buffer<Async, RemoteNotify>(fabric, to, kTake, mine, 0, kSize, run));
  check(call_buffer<Sync, RemoteNotify>(fabric, to, kTake, std::span(own), run));
  // call_return: the result is stored into `value`.
  int value = 0;
  check(call_return(
      fabric, to, [](int a, int b) { return ++ran, a + b; }, value, run, 40, 2));
  Future<int> later = async_call(fabric, to, [] { return ++ran, 7; });
  // A Synchronizer in registered memory: the destination counts it down by one RDMA WRITE.
  auto written = check(RemoteObject<Synchronizer>::create(fabric));
  check(call<RemoteNotify>(
      fabric, to, [] { ++ran; }, written));
  // Both events of a call, each with a Synchronizer, a Future or a callback.
  Future<void> sent;
  check(call(
      fabric, to, [](int) { ++ran; },
      on_transmitted(sent) | on_consumed([&run](const absl::Status&) { run.decrease(); }), 5));
  // A service call runs immediately in a service thread of the process. It must not block.
  check(service_call<RemoteNotify>(
      fabric, fabric.rank_of(to), [] { ++ran; }, run));

  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  check(fabric.wait(run, deadline));
  check(written.wait(deadline));
  check(sent.get(deadline));
  check(value == 42 && check(later.get(deadline)) == 7, "wrong results");
}
// [send_based]

// [one_sided]
void one_sided(Fabric& fabric, ThreadContext& self, ThreadId to, RDMAMemory* mine,
               const RemoteMemoryLocator& theirs) {
  const std::vector<std::byte> own(kSize, std::byte{1});
  RDMAMessenger messenger(self, to);
  Synchronizer run(9);
  check(messenger.call<RemoteNotify>([] { ++ran; }, run));
  check(messenger.call([](const std::string& text) { ran += static_cast<int>(text.size()); },
                       std::string("a")));
  check(messenger.call_buffer<RemoteNotify>(kTake, std::span(own), run));
  check(messenger.call_buffer<RemoteNotify>(kTake, mine, 0, kSize, run));
  check(messenger.call_buffer<RemoteNotify>(kTake, mine, 0, kSize, theirs, run));
  check(messenger.call_buffer<Sync, RemoteNotify>(kTake, mine, 0, kSize, run));
  check(messenger.call_buffer<Async, RemoteNotify>(kTake, mine, 0, kSize, run));
  check(messenger.call_buffer<Sync, RemoteNotify>(kTake, std::span(own), run));
  int value = 0;
  check(messenger.call_return([](int a, int b) { return ++ran, a + b; }, value, run, 40, 2));
  Future<int> later = messenger.async_call([] { return ++ran, 7; });
  auto written = check(RemoteObject<Synchronizer>::create(fabric));
  check(messenger.call<RemoteNotify>([] { ++ran; }, written));
  Future<void> sent;
  check(messenger.call(
      [](int) { ++ran; },
      on_transmitted(sent) | on_consumed([&run](const absl::Status&) { run.decrease(); }), 5));

  // An aggregator batches calls and publishes them together. flush() publishes the batch now.
  RDMAAggregator aggregator(messenger);
  check(aggregator.call([] { ++ran; }));
  check(aggregator.flush());

  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  check(fabric.wait(run, deadline));
  check(written.wait(deadline));
  check(sent.get(deadline));
  check(value == 42 && check(later.get(deadline)) == 7, "wrong results");
  check(messenger.shutdown(deadline));
}
// [one_sided]

// [broadcast]
void to_all_threads(Fabric& fabric, RDMAMemory* mine) {
  Synchronizer run(2);
  check(broadcast<RemoteNotify>(
      fabric, [] { ++ran; }, run));
  check(broadcast_buffer<RemoteNotify>(fabric, kTake, mine, 0, kSize, run));
  check(fabric.wait(run, deadline_after(std::chrono::seconds(60))));
}
// [broadcast]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  auto fabric = check(Fabric::create({.threads = 1}));
  auto self = check(fabric->init_thread(0));
  Collectives all(*fabric);
  TerminationDetector detector(*fabric);
  const Rank next = (fabric->rank() + 1) % fabric->size();
  const Rank before = (fabric->rank() + fabric->size() - 1) % fabric->size();

  RDMAMemory mine = check(fabric->memory().allocate(kSize));
  std::memset(mine.get_buffer(), 1, kSize);
  // Each process sends a locator of its memory to the process of the previous rank.
  RDMAMemory place = check(fabric->memory().allocate(2 * kSize));
  RemoteMemoryLocator name{};
  if (before != fabric->rank()) name = place.locator(fabric->domain(before), fabric->rank());
  if (before == fabric->rank()) name.address = reinterpret_cast<uint64_t>(place.get_buffer());
  name.length = 2 * kSize;
  const auto names = check(all.all_gather(name, deadline));  // index: rank

  send_based(*fabric, fabric->thread_of(next), &mine, names[next]->slice(0, kSize));
  one_sided(*fabric, *self, fabric->thread_of(next), &mine, names[next]->slice(kSize, kSize));
  check(detector.wait(deadline));  // returns when all calls of the job have run
  std::printf("rank %u ran %d calls, with %lu bytes\n", fabric->rank().value(), ran.load(),
              static_cast<unsigned long>(bytes.load()));
  check(ran == 2 * (kBufferCalls + kOtherCalls), "another number of calls was expected");
  check(bytes == 2 * kBufferCalls * kSize, "bytes are missing");
  check(all.barrier(deadline));
  if (fabric->rank() == 0) to_all_threads(*fabric, &mine);
  check(fabric->finalize(deadline));
  check(ran == 2 * (kBufferCalls + kOtherCalls) + 2, "a broadcast is missing");
  return 0;
}
