// Complete jobs in simulated time with many seeds. The seed determines the schedule of the threads,
// the arrival time of each transfer, and which transfers are late or torn. Each job uses every kind
// of channel, growth, deferred calls, both consumption modes, answers, buffers and broadcasts at
// the same time.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

constexpr uint32_t kProcesses = 3;
constexpr uint64_t kCalls = 60;      // of each channel
constexpr uint32_t kKinds = 3;       // plain, trad, ovfl
constexpr uint64_t kBytes = 3000;    // size of pulled and broadcast buffers
constexpr uint32_t kBroadcasts = 3;  // of each process: one without a buffer, two with one

// Records the calls that arrived in a process by one channel.
struct Arrivals {
  std::atomic<uint64_t> count{0};
  uint64_t next = 0;
  uint64_t disorder = 0;
};
Arrivals arrivals[kProcesses][kProcesses][kKinds];  // to, from, kind
std::atomic<uint64_t> broadcasts[kProcesses];
std::atomic<uint64_t> buffers[kProcesses];
std::atomic<uint64_t> damaged;
constexpr uint64_t kTargets = 4;
RemoteMemoryLocator targets[kProcesses];  // of each process, for the process before it
std::atomic<bool> located[kProcesses];

void note_arrival(uint32_t from, uint32_t kind, uint64_t number) {
  Arrivals& here = arrivals[running_fabric()->rank()][from][kind];
  if (here.next++ != number) ++here.disorder;
  here.count.fetch_add(1);
}
const auto take = [](void* buffer, uint64_t size) {
  const auto* const bytes = static_cast<const uint8_t*>(buffer);
  bool good = size == kBytes;
  for (uint64_t i = 0; good && i < size; ++i) good = bytes[i] == static_cast<uint8_t>(i * 7);
  ++(good ? buffers[running_fabric()->rank()] : damaged);
};

template <typename Calls>
void send(Calls& calls, uint32_t me, uint32_t kind, std::mt19937_64& random) {
  for (uint64_t i = 0; i < kCalls; ++i) {
    // The serialized string gives the calls different lengths.
    const auto numbered = [me, kind, i](const std::string&) { note_arrival(me, kind, i); };
    const std::string load(random() % 200, 'x');
    switch (random() % 3) {
      case 0:
        if (CallResult sent = calls.template call<Fail>(numbered, load); sent.ok()) break;
        [[fallthrough]];
      case 1:
        must(calls.template call<Retry>(numbered, load).status());
        break;
      default:
        must(calls.template call<RetryAsync>(numbered, load).status());
    }
  }
  must(calls.flush());
}

void run_everything(Fabric& fabric, uint64_t seed) {
  const uint32_t me = fabric.rank();
  const uint32_t next = (me + 1) % kProcesses;
  std::mt19937_64 random(seed * kProcesses + me);
  MessengerOptions options;
  options.chunk_bytes = 1024;
  options.max_chunks = 1 + static_cast<uint32_t>(random() % 4);
  options.chunks_per_request = 1 + static_cast<uint32_t>(random() % options.max_chunks);
  options.flush_bytes = 1 + static_cast<uint32_t>(random() % 700);
  options.consumption = random() % 3 == 0 ? Consumption::kPull : Consumption::kPush;
  options.arrival = random() % 2 == 0 ? Arrival::kAuto : Arrival::kEvent;
  RDMAMessenger plain(*fabric.this_thread(), next, options);
  RDMAMessenger under_batches(*fabric.this_thread(), next, options);
  RDMAAggregator batches(under_batches);
  RDMAMessenger under_overflow(*fabric.this_thread(), next, options);
  RDMAOverflowAggregator overflow(under_overflow);
  send(plain, me, 0, random);
  send(batches, me, 1, random);
  send(overflow, me, 2, random);

  const uint32_t before = (me + kProcesses - 1) % kProcesses;
  RDMAMemory room = must(fabric.memory().allocate(kTargets * kBytes));
  std::memset(room.get_buffer(), 0, room.size());
  must(call(fabric, before, [] {}));  // connects
  targets[me] = must(internal::locate_for(fabric, before, room, 0, room.size()));
  located[me] = true;
  ASSERT_TRUE(fabric.wait_polling([&] { return located[next].load(); }, soon()));

  RDMAMemory source = must(fabric.memory().allocate(kBytes));
  for (uint64_t i = 0; i < kBytes; ++i) source.get_buffer()[i] = static_cast<std::byte>(i * 7);
  Synchronizer done(3 + kTargets + kBroadcasts);
  int answer = 0;
  must(plain.call_return([](int a, int b) { return a + b; }, answer, done, 40, 2).status());
  must(plain.call_buffer<Sync, RemoteNotify>(take, &source, 0, kBytes, done).status());
  must(batches.call_buffer<Async, RemoteNotify>(take, &source, 0, kBytes, done).status());
  must(batches.flush());
  for (uint64_t i = 0; i < kTargets; ++i) {
    must(plain
             .call_buffer<RemoteNotify>(take, &source, 0, kBytes,
                                        targets[next].slice(i * kBytes, kBytes), done)
             .status());
  }
  must(broadcast<RemoteNotify>(
           fabric, [] { ++broadcasts[running_fabric()->rank()]; }, done)
           .status());
  for (int i = 0; i < 2; ++i) {
    must(broadcast_buffer<RemoteNotify>(fabric, take, &source, 0, kBytes, done).status());
  }
  ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
  EXPECT_EQ(done.status(), absl::OkStatus());
  EXPECT_EQ(answer, 42);
  const auto have_all = [&] {
    for (const Arrivals& one : arrivals[me][before]) {
      if (one.count.load() != kCalls) return false;
    }
    return broadcasts[me].load() == kProcesses &&
           buffers[me].load() == 2 + kTargets + 2 * kProcesses;
  };
  ASSERT_TRUE(fabric.wait(have_all, soon()));
  for (RDMAMessenger* one : {&plain, &under_batches, &under_overflow}) must(one->shutdown(soon()));
  must(fabric.memory().free(std::move(source)));
  must(fabric.memory().free(std::move(room)));
}

// A transport, and the order in which WRITEs become visible. They become visible in pieces unless
// the order is kWrites.
struct SeedsCase {
  const char* name;
  const char* transport;
  ArrivalOrder order = ArrivalOrder::kWrites;
};
void PrintTo(const SeedsCase& seeds, std::ostream* out) { *out << seeds.name; }
class ChannelSeeds : public ::testing::TestWithParam<SeedsCase> {};
INSTANTIATE_TEST_SUITE_P(On, ChannelSeeds,
                         ::testing::Values(SeedsCase{"sim", "sim"},
                                           SeedsCase{"fault_sim", "fault_sim"},
                                           SeedsCase{"no_order", "sim", ArrivalOrder::kNone},
                                           SeedsCase{"blocks", "sim", ArrivalOrder::kWithinBlocks},
                                           SeedsCase{"within", "sim", ArrivalOrder::kWithinWrite},
                                           SeedsCase{"bytes", "sim", ArrivalOrder::kBytes}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ChannelSeeds, EverythingRunsOnceInOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    for (auto& to : arrivals) {
      for (auto& from : to) {
        for (Arrivals& one : from) {
          one.count = 0;
          one.next = one.disorder = 0;
        }
      }
    }
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      broadcasts[rank] = buffers[rank] = 0;
      located[rank] = false;
    }
    damaged = 0;
    testing::LocalJobOptions options;
    options.processes = kProcesses;
    options.transport = transport_case(GetParam().transport);
    options.seed = seed;
    options.sim.jitter = std::chrono::nanoseconds(500);
    options.sim.write_order = GetParam().order;
    if (GetParam().order != ArrivalOrder::kWrites) {
      options.sim.torn_spread = std::chrono::nanoseconds(2000);
    }
    LocalJob local(options);
    local.run([seed](Fabric& fabric, uint32_t) { run_everything(fabric, seed); });
    for (uint32_t to = 0; to < kProcesses; ++to) {
      for (const Arrivals& one : arrivals[to][(to + kProcesses - 1) % kProcesses]) {
        EXPECT_EQ(one.count.load(), kCalls);
        EXPECT_EQ(one.disorder, 0u);
      }
    }
    EXPECT_EQ(damaged.load(), 0u);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cariama
