// Remote allocation, global pointers, transfers, atomics, locks and vectors against oracles, on
// every transport.
#include "dsfabric/global_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dsfabric/call_forms.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/global_vector.h"
#include "dsfabric/memory/remote_heap.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/transfer_completion.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

size_t allocations(Fabric& fabric) {
  return internal::attachment_of<internal::RemoteHeap>(fabric).allocations();
}

class GlobalMemoryContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
  // The values of AtomicsBy that are correct on this transport.
  static std::vector<AtomicsBy> ways() {
    std::vector<AtomicsBy> ways{AtomicsBy::kAutomatic, AtomicsBy::kOwner};
    // These devices' atomics are atomic with respect to the CPU's.
    if (GetParam().base != Transport::kVerbs) ways.push_back(AtomicsBy::kDevice);
    return ways;
  }
};

TEST_P(GlobalMemoryContract, AllocatesInTheRequestedProcess) {
  LocalJob job({.processes = 3, .transport = GetParam(), .fabric = {.threads = 2}});
  std::atomic<uint32_t> ready{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    ++ready;  // this thread is a worker now
    ASSERT_TRUE(fabric.wait_polling([&] { return ready >= 6; }, soon()));
    if (thread == 0) {
      Collectives all(fabric);
      for (uint32_t rank = 0; rank < 3; ++rank) {
        auto memory = must(RemoteMemory::allocate(fabric, rank, 1000, soon()));
        EXPECT_EQ(memory.rank(), rank);
        EXPECT_EQ(memory.size(), 1000u);
        EXPECT_EQ(memory.address().address % 64, 0u);
        EXPECT_EQ(memory.locator().length, 1000u);
        EXPECT_EQ(memory.locator().owner, rank);
        // Allocate near a thread, then release and adopt the memory.
        auto near = must(RemoteMemory::allocate_near(fabric, rank * 2 + 1, 64, soon()));
        EXPECT_EQ(near.rank(), rank);
        const GlobalAddress address = near.release();
        near = RemoteMemory::adopt(fabric, address, 64);
        RemoteMemory moved = std::move(memory);
        EXPECT_EQ(memory.address().address, 0u);  // NOLINT(bugprone-use-after-move): defined
      }
      must(all.barrier(soon()));
      // free() sends calls, which may still be in flight.
      EXPECT_TRUE(fabric.wait([&] { return allocations(fabric) == 0; }, soon()));
      EXPECT_EQ(RemoteMemory::allocate(fabric, 3, 8, soon()).status().code(),
                absl::StatusCode::kOutOfRange);
      EXPECT_EQ(RemoteMemory::allocate_near(fabric, 6, 8, soon()).status().code(),
                absl::StatusCode::kOutOfRange);
      const auto none = RemoteMemory::allocate(fabric, (fabric.rank() + 1) % 3, 8, soon(), 4000);
      EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(none.status().message()),
                  HasSubstr(fabric.label((fabric.rank() + 1) % 3)));
      const auto huge =
          RemoteMemory::allocate(fabric, (fabric.rank() + 1) % 3, size_t{1} << 50, soon());
      EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
      must(all.barrier(soon()));
    }
    ++ready;  // the other threads stay workers until all have finished
    ASSERT_TRUE(fabric.wait_polling([&] { return ready >= 12; }, soon()));
  });
}

// Random gets and puts by all processes, each into its own stripe of every process's memory,
// compared with a local copy.
TEST_P(GlobalMemoryContract, GetsReturnPutValues) {
  constexpr uint32_t kProcesses = 3;
  constexpr size_t kStripe = 600;  // words
  LocalJob job({.processes = kProcesses, .transport = GetParam()});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const auto memory = must(GlobalMemory::create(fabric, {.piece_bytes = 256}));
    const auto mine = must(memory->allocate<uint32_t>(fabric.rank(), kStripe * kProcesses, soon()));
    const auto gathered = must(all.all_gather(mine, soon()));

    std::vector<std::vector<uint32_t>> oracle(kProcesses, std::vector<uint32_t>(kStripe));
    std::mt19937_64 random(fabric.rank());
    for (int step = 0; step < 300; ++step) {
      const auto rank = static_cast<uint32_t>(random() % kProcesses);
      const size_t at = random() % kStripe;
      // One word, a few, or many. Each handle is waited for before the same place is used again.
      const size_t count = std::min<size_t>(kStripe - at, step % 3 == 0   ? 1
                                                          : step % 3 == 1 ? random() % 16
                                                                          : kStripe);
      const global_ptr<uint32_t> stripe =
          *gathered[rank] + static_cast<ptrdiff_t>(fabric.rank() * kStripe + at);
      std::vector<uint32_t> values(count);
      if (random() % 2 == 0) {
        for (uint32_t& value : values) value = static_cast<uint32_t>(random());
        std::copy(values.begin(), values.end(), oracle[rank].begin() + at);
        if (count == 1) {
          must(memory->rput(values[0], stripe).wait(soon()));
        } else if (step % 2 == 0) {
          GlobalTransfer put = memory->rput<uint32_t>(values, stripe);
          std::fill(values.begin(), values.end(), 0);  // may be reused immediately
          must(put.wait(soon()));
        } else {
          must(memory->put<uint32_t>(values, stripe, soon()));
        }
      } else {
        if (count == 1) {
          values[0] = must(memory->rget(stripe).wait(soon()));
        } else if (step % 2 == 0) {
          must(memory->rget(stripe, std::span(values)).wait(soon()));
        } else {
          must(memory->get(stripe, std::span(values), soon()));
        }
        EXPECT_TRUE(std::equal(values.begin(), values.end(), oracle[rank].begin() + at));
      }
    }
    must(all.barrier(soon()));
    // The owner sees the values that the other processes have put.
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      const uint64_t sum = std::accumulate(oracle[rank].begin(), oracle[rank].end(), uint64_t{0});
      const uint64_t expected = must(all.all_reduce(sum, std::plus<>(), soon()));
      if (rank == fabric.rank()) {
        const uint32_t* words = mine.local(fabric);
        EXPECT_EQ(std::accumulate(words, words + kStripe * kProcesses, uint64_t{0}), expected);
      } else {
        EXPECT_EQ(gathered[rank]->local(fabric), nullptr);
      }
    }
    must(all.barrier(soon()));
    memory->free(mine);
  });
}

TEST_P(GlobalMemoryContract, ManyAreInFlight) {
  constexpr uint32_t kOperations = 1000;
  LocalJob job({.processes = 2, .transport = GetParam(), .fabric = {.send_depth = 16}});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const auto memory = must(GlobalMemory::create(fabric));
    const auto theirs =
        must(memory->allocate<std::array<uint64_t, 3>>(1 - fabric.rank(), kOperations, soon()));
    std::vector<GlobalTransfer> puts;
    for (uint64_t i = 0; i < kOperations; ++i)
      puts.push_back(memory->rput({i, i * i, ~i}, theirs + i));
    for (GlobalTransfer& put : puts) must(put.wait(soon()));
    std::vector<GlobalValue<std::array<uint64_t, 3>>> gets;
    for (uint64_t i = 0; i < kOperations; ++i) gets.push_back(memory->rget(theirs + i));
    for (uint64_t i = kOperations; i-- > 0;) {
      EXPECT_EQ(must(gets[i].wait(soon())), (std::array<uint64_t, 3>{i, i * i, ~i}));
      EXPECT_TRUE(gets[i].done());
      EXPECT_TRUE(gets[i].wait(soon()).ok());  // wait() may be called any number of times
    }
    // Handles are dropped: their operations continue, and then free their resources.
    for (uint64_t i = 0; i < kOperations; ++i)
      static_cast<void>(memory->rput({i, 0, 0}, theirs + i));
    for (uint64_t i = 0; i < kOperations; ++i) static_cast<void>(memory->rget(theirs + i));
    // A connection executes in order, so a later get returns the values of the puts.
    EXPECT_EQ(must(memory->rget(theirs + (kOperations - 1)).wait(soon()))[0], kOperations - 1);
    const GlobalMemoryStatistics& statistics = memory->statistics();
    EXPECT_EQ(statistics.direct + statistics.transfers, 4 * kOperations + 1);
    // Where peers are mapped, no work request was posted.
    EXPECT_EQ(statistics.direct != 0, GetParam().name == "shm");
    must(all.barrier(soon()));
    memory->free(theirs);
  });
}

TEST_P(GlobalMemoryContract, RegisteredMemoryIsTransferredInPlace) {
  LocalJob job({.processes = 2, .transport = GetParam()});
  job.run([](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    const auto theirs = must(memory->allocate<uint64_t>(1 - fabric.rank(), 100, soon()));
    RDMAMemory buffer = must(fabric.memory().allocate(100 * sizeof(uint64_t)));
    auto* const words = reinterpret_cast<uint64_t*>(buffer.get_buffer());
    for (uint64_t i = 0; i < 100; ++i) words[i] = i * 3 + fabric.rank();
    must(memory->rput(buffer, 0, 100, theirs).wait(soon()));
    std::fill(words, words + 100, 0);
    must(memory->rget(theirs + 10, buffer, 8, 50).wait(soon()));
    EXPECT_EQ(words[0], 0u);
    for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(words[1 + i], (10 + i) * 3 + fabric.rank());
    EXPECT_EQ(words[51], 0u);
    EXPECT_EQ(memory->rget(theirs, buffer, 8, 100).wait(soon()).code(),
              absl::StatusCode::kInvalidArgument);
    must(fabric.memory().free(std::move(buffer)));
    memory->free(theirs);
  });
}

// Increments *word `rounds` times, and counts the values that are not those of a counter.
Detached count_up(GlobalMemory& memory, global_ptr<uint64_t> word, uint64_t rounds,
                  std::atomic<uint64_t>& wrong, std::atomic<bool>& ended) {
  for (uint64_t i = 0; i < rounds; ++i) {
    if (must(co_await memory.fetch_add(word, 1).future()) != i) ++wrong;
  }
  ended = true;
}

// The end of an operation is given to a Synchronizer, a Future or a callback.
TEST_P(GlobalMemoryContract, EndsNotifyObjects) {
  using Triple = std::array<uint64_t, 3>;
  constexpr uint64_t kLong = 100;  // more than a slot
  constexpr uint32_t kRounds = 200;
  for (const uint32_t service_threads : {0u, 1u}) {
    for (const AtomicsBy way : ways()) {
      SCOPED_TRACE(::testing::Message() << service_threads << " " << static_cast<int>(way));
      LocalJob job({.processes = 2,
                    .transport = GetParam(),
                    .fabric = {.service_threads = service_threads, .send_depth = 16}});
      job.run([&](Fabric& fabric, uint32_t) {
        Collectives all(fabric);
        std::atomic<uint64_t> called{0}, wrong{0};
        std::atomic<bool> ended{false};
        std::vector<std::vector<uint64_t>> got(kRounds, std::vector<uint64_t>(kLong));
        std::vector<Triple> values(kRounds);
        auto memory = must(GlobalMemory::create(fabric, {.atomics = way}));
        const auto theirs = must(memory->allocate<Triple>(1 - fabric.rank(), kRounds, soon()));
        const auto row =
            must(memory->allocate<uint64_t>(1 - fabric.rank(), kRounds * kLong, soon()));

        Synchronizer puts(2 * kRounds);
        const auto waited = [&](const Synchronizer& done) { must(fabric.wait(done, soon())); };
        for (uint64_t i = 0; i < kRounds; ++i) {
          must(memory->rput({i, i * i, ~i}, theirs + i).notify(puts));
          const std::vector<uint64_t> words(kLong, i);
          must(memory->rput(std::span(words), row + i * kLong).notify(puts));
        }
        waited(puts);

        Synchronizer gets(kRounds);
        for (uint64_t i = 0; i < kRounds; ++i) {
          must(memory->rget(theirs + i).notify(values[i], gets));
          must(memory->rget(row + i * kLong, std::span(got[i]))
                   .notify([&, i](const absl::Status& status) {
                     if (!status.ok() || got[i] != std::vector<uint64_t>(kLong, i)) ++wrong;
                     ++called;
                   }));
        }
        waited(gets);
        for (uint64_t i = 0; i < kRounds; ++i) EXPECT_EQ(values[i], (Triple{i, i * i, ~i}));
        EXPECT_TRUE(fabric.wait([&] { return called == kRounds; }, soon()));

        Future<void> last;
        must(memory->rput({7, 8, 9}, theirs).notify(last));
        must(last.get(soon()));
        EXPECT_EQ(must(memory->rget(theirs).future().get(soon())), (Triple{7, 8, 9}));

        must(memory->rput(0, row).wait(soon()));
        count_up(*memory, row, 20, wrong, ended);
        EXPECT_TRUE(fabric.wait([&] { return ended.load(); }, soon()));
        EXPECT_EQ(wrong, 0u);

        // The GlobalMemory waits for the operations that it handed over.
        for (uint64_t i = 0; i < 50; ++i) {
          must(memory->rput({i, 0, 0}, theirs + i).notify([&](const absl::Status& status) {
            if (!status.ok()) ++wrong;
            ++called;
          }));
        }
        memory.reset();
        EXPECT_TRUE(fabric.wait([&] { return called == kRounds + 50; }, soon()));
        EXPECT_EQ(wrong, 0u);
        must(all.barrier(soon()));
        memory = must(GlobalMemory::create(fabric));
        memory->free(theirs);
        memory->free(row);
      });
    }
  }
}

// notify_at_end() gives the transfers of a Transmitter the same objects.
TEST_P(GlobalMemoryContract, TransfersNotifyObjects) {
  for (const uint32_t service_threads : {0u, 1u}) {
    LocalJob job(
        {.processes = 2, .transport = GetParam(), .fabric = {.service_threads = service_threads}});
    std::array<RemoteMemoryLocator, 2> places;
    job.run([&](Fabric& fabric, uint32_t) {
      const Rank other = 1 - fabric.rank();
      Collectives all(fabric);
      auto transmitter = must(Transmitter::create(*must(fabric.connection(other, ThreadIndex(0)))));
      RDMAMemory mine = must(fabric.memory().allocate(64));
      RDMAMemory theirs = must(fabric.memory().allocate(64));
      auto* const words = reinterpret_cast<uint64_t*>(mine.get_buffer());
      auto* const arrived = reinterpret_cast<std::atomic<uint64_t>*>(theirs.get_buffer());
      places[fabric.rank()] = must(internal::locate_for(fabric, other, theirs, 0, 64));
      must(all.barrier(soon()));

      words[0] = 41 + fabric.rank();
      Synchronizer write;
      must(transmitter.write(mine, 0, 8, places[other], &write));
      Synchronizer written;
      must(notify_at_end(fabric, transmitter.queue(), write, written));
      must(fabric.wait(written, soon()));

      Synchronizer read;
      must(transmitter.read(mine, 8, 8, places[other], &read));
      Future<void> end;
      must(notify_at_end(fabric, transmitter.queue(), read, end));
      must(end.get(soon()));
      EXPECT_EQ(words[1], words[0]);

      std::atomic<int> called{0};
      Synchronizer both(2);
      must(transmitter.write(mine, 0, 8, places[other], &both));
      must(transmitter.write(mine, 0, 8, places[other], &both));
      must(notify_at_end(fabric, transmitter.queue(), both, [&](const absl::Status& status) {
        must(status);
        ++called;
      }));
      EXPECT_TRUE(fabric.wait([&] { return called == 1; }, soon()));
      must(all.barrier(soon()));
      EXPECT_EQ(arrived->load(), 41 + other);
      must(all.barrier(soon()));
      must(fabric.memory().free(std::move(mine)));
      must(fabric.memory().free(std::move(theirs)));
    });
  }
}

TEST_P(GlobalMemoryContract, AtomicsLoseNothing) {
  constexpr uint32_t kProcesses = 3;
  constexpr uint64_t kRounds = 60;
  for (const AtomicsBy way : ways()) {
    SCOPED_TRACE(static_cast<int>(way));
    LocalJob job({.processes = kProcesses, .transport = GetParam(), .fabric = {.threads = 2}});
    std::array<std::atomic<uint64_t>, 6 * kRounds> seen{};
    std::atomic<uint64_t> word_address{0};
    std::array<GlobalAddress, 1> word;
    std::atomic<uint32_t> done{0};
    job.run([&](Fabric& fabric, uint32_t thread) {
      const auto memory = must(GlobalMemory::create(fabric, {.atomics = way}));
      if (fabric.rank() == 1 && thread == 0) {
        word[0] = must(memory->allocate<uint64_t>(1, 2, soon())).address();
        word_address = 1;
      }
      ASSERT_TRUE(fabric.wait_polling([&] { return word_address != 0; }, soon()));
      const global_ptr<uint64_t> counter(word[0]);
      const global_ptr<uint64_t> product = counter + 1;
      // Threads of the owner and of other processes, several operations at a time.
      std::vector<GlobalValue<uint64_t>> adds;
      for (uint64_t i = 0; i < kRounds; ++i) {
        adds.push_back(memory->fetch_add(counter, 1));
        if (adds.size() < 5) continue;
        for (auto& add : adds) ++seen[must(add.wait(soon()))];
        adds.clear();
      }
      for (uint64_t i = 0; i < kRounds / 10; ++i) {
        auto expected = memory->load(product).wait(soon());
        while (true) {
          const uint64_t before = must(
              memory->compare_exchange(product, must(expected), must(expected) + 7).wait(soon()));
          if (before == *expected) break;
          expected = before;
        }
      }
      ++done;
      ASSERT_TRUE(fabric.wait_polling([&] { return done >= 6; }, soon()));
      EXPECT_EQ(must(memory->load(counter).wait(soon())), 6 * kRounds);
      EXPECT_EQ(must(memory->load(product).wait(soon())), 6 * (kRounds / 10) * 7);
      if (way == AtomicsBy::kOwner) {
        EXPECT_EQ(memory->statistics().executed != 0, fabric.rank() != 1);
      }
      ++done;
      ASSERT_TRUE(fabric.wait_polling([&] { return done >= 12; }, soon()));
      if (fabric.rank() == 1 && thread == 0) memory->free(counter);
    });
    // Every counter value was returned exactly once.
    for (const auto& count : seen) EXPECT_EQ(count, 1u);
  }
}

TEST_P(GlobalMemoryContract, ExchangesAWord) {
  LocalJob job({.processes = 2, .transport = GetParam()});
  std::atomic<uint64_t> sum{0};
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const auto memory = must(GlobalMemory::create(fabric));
    global_ptr<uint64_t> word;
    if (fabric.rank() == 0) word = must(memory->allocate<uint64_t>(0, 1, soon()));
    must(all.broadcast(word, 0, soon()));
    // Each value that is stored is returned exactly once, or remains at the end.
    for (uint64_t i = 1; i <= 20; ++i) sum += must(memory->exchange(word, i, soon()));
    must(all.barrier(soon()));
    if (fabric.rank() == 0) {
      EXPECT_EQ(sum + must(memory->load(word).wait(soon())), 2 * 210u);
    }
    must(all.barrier(soon()));
  });
}

TEST_P(GlobalMemoryContract, ALockIsHeldByOne) {
  constexpr uint64_t kRounds = 15;
  LocalJob job({.processes = 3, .transport = GetParam(), .fabric = {.threads = 2}});
  std::atomic<uint32_t> ready{0};
  std::atomic<uint32_t> done{0};
  std::array<GlobalAddress, 1> place;
  std::atomic<int> inside{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    const auto memory = must(GlobalMemory::create(fabric));
    if (fabric.rank() == 0 && thread == 0) {
      place[0] = must(memory->allocate<uint64_t>(2, 2, soon())).address();
      ++ready;
    }
    ASSERT_TRUE(fabric.wait_polling([&] { return ready == 1; }, soon()));
    const global_ptr<uint64_t> word(place[0]);
    const global_ptr<uint64_t> counter = word + 1;
    DistributedLock lock(*memory, word);
    EXPECT_EQ(lock.release(soon()).code(), absl::StatusCode::kFailedPrecondition);
    for (uint64_t i = 0; i < kRounds; ++i) {
      must(lock.acquire(soon()));
      EXPECT_EQ(inside.fetch_add(1), 0);
      EXPECT_EQ(lock.acquire(soon()).code(), absl::StatusCode::kFailedPrecondition);
      // Not atomic: correct only under the lock.
      const uint64_t value = must(memory->rget(counter).wait(soon()));
      must(memory->rput(value + 1, counter).wait(soon()));
      EXPECT_EQ(inside.fetch_sub(1), 1);
      must(lock.release(soon()));
    }
    ++done;
    ASSERT_TRUE(fabric.wait_polling([&] { return done >= 6; }, soon()));
    EXPECT_EQ(must(memory->rget(counter).wait(soon())), 6 * kRounds);
    EXPECT_TRUE(must(lock.try_acquire(soon())) || !lock.held());
  });
}

TEST_P(GlobalMemoryContract, VectorsOfEveryShape) {
  for (const size_t processes : {1u, 2u, 3u, 5u}) {
    LocalJob job({.processes = static_cast<uint32_t>(processes), .transport = GetParam()});
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives all(fabric);
      const auto memory = must(GlobalMemory::create(fabric));
      for (const size_t size : {0u, 1u, 4u, 7u, 60u, 61u}) {
        for (const size_t block : {0u, 1u, 3u, 100u}) {
          SCOPED_TRACE(std::to_string(size) + " elements in blocks of " + std::to_string(block));
          auto vector = must(GlobalVector<uint64_t>::create(all, size, soon(), {.block = block}));
          // Each element belongs to one process, and each process locates its own elements.
          size_t mine = 0;
          for (size_t i = 0; i < size; ++i) {
            if (vector.rank_of(i) != fabric.rank()) continue;
            ++mine;
            EXPECT_EQ(vector.global_index(vector.local_index(i)), i);
            EXPECT_EQ(vector[i].local(fabric), &vector.local()[vector.local_index(i)]);
          }
          ASSERT_EQ(vector.local().size(), mine);
          EXPECT_EQ(must(all.all_reduce(mine, std::plus<>(), soon())), size);
          for (size_t i = 0; i < mine; ++i) vector.local()[i] = vector.global_index(i) * 11;
          must(all.barrier(soon()));
          std::vector<uint64_t> whole(size);
          must(vector.get(*memory, 0, std::span(whole), soon()));
          for (size_t i = 0; i < size; ++i) EXPECT_EQ(whole[i], i * 11);
          must(all.barrier(soon()));
          if (size >= 7) {
            if (fabric.rank() == processes - 1) {
              must(vector.put(*memory, 2, std::array<uint64_t, 5>{1, 2, 3, 4, 5}, soon()));
              must(vector.rput(*memory, 0, 77).wait(soon()));
            }
            must(all.barrier(soon()));
            EXPECT_EQ(must(vector.rget(*memory, 0).wait(soon())), 77u);
            EXPECT_EQ(must(vector.rget(*memory, 1).wait(soon())), 11u);
            for (size_t i = 2; i < 7; ++i) {
              EXPECT_EQ(must(vector.rget(*memory, i).wait(soon())), i - 1);
            }
          }
          EXPECT_EQ(vector.get(*memory, size, std::span(whole).first(0), soon()), absl::OkStatus());
          std::array<uint64_t, 1> beyond{};
          EXPECT_EQ(vector.get(*memory, size, beyond, soon()).code(),
                    absl::StatusCode::kOutOfRange);
          must(all.barrier(soon()));
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(On, GlobalMemoryContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
