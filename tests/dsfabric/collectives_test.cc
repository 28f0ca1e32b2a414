// Collective operations on a simulated cluster: sizes, schedules, message counts, deadlines, usage
// errors, failed processes.
#include "dsfabric/collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives/collective_group.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

LocalJobOptions simulated(uint32_t processes, uint64_t seed) {
  return {.processes = processes,
          .transport = transport_case("sim"),
          .seed = seed,
          .fabric = {.receive_units = 4, .receive_unit_bytes = 512, .send_depth = 32}};
}

uint32_t log2_up(uint32_t processes) { return std::bit_width(processes - 1); }

// A contribution that names a process that does not exist is dropped.
TEST(CollectivesSimulated, AContributionThatLeavesOutAnInvalidRankIsDropped) {
  LocalJob job(simulated(2, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives together(fabric, {.leave_out_dead = false});
    if (fabric.rank() == 0) {
      auto& traffic = internal::attachment_of<internal::ControlTraffic>(fabric);
      const auto group =
          internal::attachment_of<internal::CollectiveGroups>(fabric).find(traffic, 0);
      internal::CollectiveParcel parcel;
      parcel.left_out = {1'000'000'000};
      internal::CollectivePacket packet;
      packet.sequence = 1;
      packet.type = internal::PacketType::kUp;
      packet.total = parcel.save().size();
      group->arrive(1, packet, parcel.save());
    }
    must(together.barrier(soon()));
    must(together.barrier(soon()));
  });
}

// Every operation on every shape of tree, each in its own schedule.
TEST(CollectivesSimulated, EveryShape) {
  for (const uint32_t processes : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 15u, 16u, 17u, 33u}) {
    SCOPED_TRACE(processes);
    LocalJob job(simulated(processes, processes));
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives all(fabric);
      const uint64_t rank = fabric.rank();
      must(all.barrier(soon()));
      const uint64_t sum = must(all.all_reduce(rank + 1, std::plus<>(), soon()));
      EXPECT_EQ(sum, uint64_t{processes} * (processes + 1) / 2);
      const auto gathered = must(all.all_gather(rank * rank, soon()));
      for (uint64_t i = 0; i < processes; ++i) EXPECT_EQ(gathered[i], i * i);
      uint64_t value = rank;
      must(all.broadcast(value, processes / 2, soon()));
      EXPECT_EQ(value, processes / 2);
    });
  }
}

// The numbers of steps and messages that the header states.
TEST(CollectivesSimulated, CostsLogarithmicallyManySteps) {
  for (const uint32_t processes : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 16u, 31u, 33u}) {
    SCOPED_TRACE(processes);
    LocalJob job(simulated(processes, 1));
    std::atomic<uint32_t> most_hops{0};
    std::atomic<uint64_t> broadcast_messages{0};
    std::atomic<uint64_t> barrier_messages{0};
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives broadcasts(fabric);
      Collectives barriers(fabric);
      uint32_t value = fabric.rank();
      must(broadcasts.broadcast(value, processes - 1, soon()));
      EXPECT_EQ(value, processes - 1);
      const uint32_t hops = broadcasts.statistics().broadcast_hops;
      EXPECT_EQ(hops, std::popcount((fabric.rank() + 1) % processes));
      for (uint32_t before = most_hops; before < hops;)
        most_hops.compare_exchange_weak(before, hops);
      must(barriers.barrier(soon()));
      // All messages of an operation are sent before all processes know its result. After a second
      // barrier on another object, no message is in flight.
      Collectives end(fabric);
      must(end.barrier(soon()));
      broadcast_messages += broadcasts.statistics().messages;
      barrier_messages += barriers.statistics().messages;
    });
    EXPECT_LE(most_hops, log2_up(processes));
    EXPECT_EQ(broadcast_messages, processes - 1);
    EXPECT_EQ(barrier_messages, 2 * (processes - 1));
  }
}

// A source that only broadcasts cannot run ahead of the receivers without bound.
TEST(CollectivesSimulated, AFastSourceIsAtMostAWindowAhead) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    LocalJob job(simulated(5, seed));
    std::array<std::atomic<uint64_t>, 5> done{};
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives all(fabric);
      for (uint64_t i = 1; i <= 100; ++i) {
        uint64_t value = fabric.rank() == 2 ? i * i : 0;
        must(all.broadcast(value, 2, soon()));
        EXPECT_EQ(value, i * i);
        done[fabric.rank()] = i;
        for (const auto& other : done) EXPECT_LE(i, other.load() + 17);
      }
    });
  }
}

TEST(CollectivesSimulated, MixesOfOperationsUnderManySchedules) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const auto processes = static_cast<uint32_t>(2 + seed % 6);
    LocalJob job(simulated(processes, seed));
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives first(fabric);
      Collectives second(fabric);
      std::mt19937_64 random(seed);  // the same sequence in every process
      const uint64_t rank = fabric.rank();
      for (uint64_t i = 0; i < 40; ++i) {
        Collectives& all = random() % 2 == 0 ? first : second;
        const uint64_t number = random();
        switch (number % 4) {
          case 0:
            must(all.barrier(soon()));
            break;
          case 1: {
            const auto source = static_cast<uint32_t>(number / 4 % processes);
            uint64_t value = number + rank;
            must(all.broadcast(value, source, soon()));
            EXPECT_EQ(value, number + source);
            break;
          }
          case 2: {
            const auto last = [](uint64_t, uint64_t b) { return b; };
            EXPECT_EQ(must(all.all_reduce(number + rank, last, soon())), number + processes - 1);
            break;
          }
          default: {
            const auto values = must(all.all_gather(number * rank, soon()));
            for (uint64_t j = 0; j < processes; ++j) EXPECT_EQ(values[j], number * j);
          }
        }
      }
    });
  }
}

// ---- Deadlines ----------------------------------------------------------------------------------

TEST(CollectivesDeadline, NamesMissingParticipantsAndCanContinue) {
  constexpr uint32_t kProcesses = 6;
  constexpr uint32_t kAbsent = 5;  // two levels below the root
  LocalJob job({.processes = kProcesses, .transport = transport_case("shm")});
  std::atomic<uint32_t> gave_up{0};
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    must(all.barrier(soon()));
    if (fabric.rank() == kAbsent) {
      // The other processes detect that the absent process has not entered, while it waits here.
      EXPECT_TRUE(fabric.wait_polling([&] { return gave_up == kProcesses - 1; }, soon()));
    } else {
      // A process that does not answer soon counts as missing. So on a busy machine the text may
      // need several attempts, which continue the same operation.
      absl::Status late;
      std::set<uint32_t> named;
      for (const Deadline end = soon();
           named != std::set<uint32_t>{kAbsent} && std::chrono::steady_clock::now() < end;) {
        late = all.barrier(deadline_after(std::chrono::milliseconds(500)));
        EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
        named.clear();
        for (uint32_t rank = 0; rank < kProcesses; ++rank) {
          if (absl::StrContains(late.message(), fabric.label(rank))) named.insert(rank);
        }
      }
      EXPECT_EQ(named, std::set<uint32_t>{kAbsent}) << late;
      ++gave_up;
      for (uint32_t rank = 0; rank < kProcesses; ++rank) {
        must(call(fabric, rank, [] {}));  // makes the rank re-check its condition
      }
    }
    must(all.barrier(soon()));  // continues the same operation
    EXPECT_EQ(must(all.all_reduce(fabric.rank(), std::plus<>(), soon())), 15u);
    EXPECT_EQ(all.statistics().operations, 3u);
  });
}

TEST(CollectivesDeadline, NamesTheThread) {
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .fabric = {.threads = 2}});
  std::array<std::unique_ptr<Collectives>, 2> objects;
  std::array<std::atomic<bool>, 2> made{};
  std::atomic<uint32_t> gave_up{0};
  job.run([&](Fabric& fabric, uint32_t thread) {
    const uint32_t rank = fabric.rank();
    if (thread == 0) {
      objects[rank] = std::make_unique<Collectives>(
          fabric, CollectiveOptions{.participants = Participants::kThreads});
      made[rank] = true;
    }
    ASSERT_TRUE(wait_until([&] { return made[rank].load(); }, soon()));
    must(objects[rank]->barrier(soon()));
    if (rank == 1 && thread == 1) {
      ASSERT_TRUE(wait_until([&] { return gave_up == 3; }, soon()));
    } else {
      const std::string missing = "thread 1 of " + fabric.label(1);
      absl::Status late;
      for (const Deadline end = soon();
           !absl::StrContains(late.message(), missing) && std::chrono::steady_clock::now() < end;) {
        late = objects[rank]->barrier(deadline_after(std::chrono::milliseconds(500)));
        EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
      }
      EXPECT_THAT(std::string(late.message()), HasSubstr(missing));
      ++gave_up;
    }
    must(objects[rank]->barrier(soon()));
  });
}

// ---- Deaths -------------------------------------------------------------------------------------

// One process is cut off between two arbitrary steps. The others finish every operation, and agree
// on every result and on the processes left out.
void survive(uint64_t seed, bool leave_out_dead) {
  SCOPED_TRACE(seed);
  constexpr uint64_t kOperations = 12;
  std::mt19937_64 random(seed);
  const auto processes = static_cast<uint32_t>(3 + random() % 7);
  const auto victim = static_cast<uint32_t>(random() % processes);
  const uint64_t when = random() % (processes * 200);  // counted in evaluations of conditions

  LocalJobOptions options = simulated(processes, seed);
  options.finalize = false;  // the dead process does not take part
  options.fabric.heartbeat = std::chrono::milliseconds(1);
  LocalJob job(options);
  std::atomic<uint32_t> finished{0};
  std::atomic<uint64_t> looks{0};
  struct Outcome {
    absl::StatusCode code;
    uint64_t value;
    std::vector<Rank> left_out;
    bool operator==(const Outcome&) const = default;
  };
  std::vector<std::vector<Outcome>> outcomes(processes);
  job.run([&](Fabric& fabric, uint32_t) {
    const uint32_t rank = fabric.rank();
    if (rank == victim) {
      // The victim takes part until it is cut off.
      static_cast<void>(fabric.wait([&] { return ++looks >= when % 50; }, soon()));
    }
    Collectives all(fabric, {.leave_out_dead = leave_out_dead});
    for (uint64_t i = 0; i < kOperations; ++i) {
      if (rank == victim && i == when % kOperations) {
        job.sim()->kill(victim);
        break;
      }
      const auto sum = all.all_reduce(uint64_t{1} << rank, std::plus<>(), soon());
      outcomes[rank].push_back({sum.status().code(), sum.ok() ? *sum : 0, all.left_out()});
      if (!sum.ok()) {
        EXPECT_EQ(sum.status().code(), absl::StatusCode::kUnavailable) << sum.status();
        EXPECT_THAT(std::string(sum.status().message()), HasSubstr(fabric.label(victim)));
      }
    }
    ++finished;
    // A process that has finished still answers the others.
    EXPECT_TRUE(fabric.wait_polling([&] { return finished == processes; }, soon()));
  });

  const uint64_t everybody = (uint64_t{1} << processes) - 1;
  const uint64_t without = everybody & ~(uint64_t{1} << victim);
  const auto& first = outcomes[victim == 0 ? 1 : 0];
  ASSERT_EQ(first.size(), kOperations);
  for (uint32_t rank = 0; rank < processes; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(outcomes[rank], first) << "rank " << rank << ", victim " << victim;
  }
  // First results include the victim; later results do not, and none includes it again.
  for (uint64_t i = 0; i < kOperations; ++i) {
    if (first[i].left_out.empty()) {
      EXPECT_EQ(first[i].value, everybody);
      EXPECT_TRUE(i == 0 || first[i - 1].left_out.empty());
    } else {
      EXPECT_EQ(first[i].left_out, std::vector<Rank>{victim});
      EXPECT_EQ(first[i].value, leave_out_dead ? without : 0);
      EXPECT_EQ(first[i].code,
                leave_out_dead ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    }
  }
  EXPECT_FALSE(first.back().left_out.empty());
}

TEST(CollectivesDeaths, AreLeftOutByAllParticipants) {
  for (uint64_t seed = 1; seed <= 60; ++seed) survive(seed, true);
}

TEST(CollectivesDeaths, EndOperationsIfTheyAreNotToBeLeftOut) {
  for (uint64_t seed = 1; seed <= 20; ++seed) survive(seed, false);
}

TEST(CollectivesDeaths, ADeadSourceEndsItsBroadcast) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    constexpr uint32_t kProcesses = 6;
    const auto source = static_cast<uint32_t>(seed % kProcesses);
    LocalJobOptions options = simulated(kProcesses, seed);
    options.finalize = false;
    options.fabric.heartbeat = std::chrono::milliseconds(1);
    LocalJob job(options);
    std::atomic<uint32_t> finished{0};
    job.run([&](Fabric& fabric, uint32_t) {
      Collectives all(fabric, {.leave_out_dead = true});
      must(all.barrier(soon()));
      if (fabric.rank() == source) {
        job.sim()->kill(source);
      } else {
        uint64_t value = 0;
        // Broadcasts 2 to 15 have the down phase only; broadcast 16 has both phases.
        for (int i = 2; i <= 16; ++i) {
          const absl::Status status = all.broadcast(value, source, soon());
          EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << i << ": " << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr(fabric.label(source)));
        }
        value = fabric.rank();
        const uint32_t other = (source + 1) % kProcesses;
        must(all.broadcast(value, other, soon()));
        EXPECT_EQ(value, other);
      }
      ++finished;
      EXPECT_TRUE(fabric.wait_polling([&] { return finished == kProcesses; }, soon()));
    });
  }
}

// ---- Mistakes -----------------------------------------------------------------------------------

TEST(CollectivesMistakes, DifferentFunctionsAreDetected) {
  LocalJob job(simulated(4, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const absl::Status status = fabric.rank() == 2
                                    ? all.all_reduce(1, std::plus<>(), soon()).status()
                                    : all.barrier(soon());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("barrier"));
    must(all.barrier(soon()));
  });
}

// Rank 0 waits in a barrier for another rank, which waits in a broadcast for the value of rank 0.
TEST(CollectivesMistakes, ABroadcastAndABarrierAreDetected) {
  for (const uint32_t processes : {2, 5}) {
    for (uint32_t odd = 1; odd < processes; ++odd) {
      SCOPED_TRACE(absl::StrCat(processes, " processes, rank ", odd));
      LocalJobOptions options = simulated(processes, 1);
      options.fabric.heartbeat = std::chrono::milliseconds(1);
      LocalJob job(options);
      job.run([&](Fabric& fabric, uint32_t) {
        Collectives all(fabric);
        int value = 0;
        const absl::Status status =
            fabric.rank() == odd ? all.broadcast(value, 0, soon()) : all.barrier(soon());
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        must(all.barrier(soon()));
      });
    }
  }
}

TEST(CollectivesMistakes, DifferentTypesAreDetected) {
  LocalJob job(simulated(3, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const absl::Status status = fabric.rank() == 2
                                    ? all.all_reduce(uint64_t{1}, std::plus<>(), soon()).status()
                                    : all.all_reduce(uint32_t{1}, std::plus<>(), soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    uint64_t wide = 1;
    uint32_t narrow = 1;
    const absl::Status other =
        fabric.rank() == 0 ? all.broadcast(wide, 0, soon()) : all.broadcast(narrow, 0, soon());
    EXPECT_EQ(other.ok(), fabric.rank() == 0) << other;
    must(all.barrier(soon()));
  });
}

TEST(CollectivesMistakes, AreRefused) {
  LocalJob job(simulated(2, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    Collectives workers(fabric, {.participants = Participants::kThreads});
    int value = 0;
    EXPECT_EQ(all.broadcast(value, 2, soon()).code(), absl::StatusCode::kOutOfRange);
    must(all.barrier(soon()));
    if (fabric.rank() == 0) {
      Synchronizer done;
      int code = 0;
      must(call_return(
          fabric, 0, [object = &all] { return static_cast<int>(object->barrier(soon()).code()); },
          code, done));
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
    }
    must(all.barrier(soon()));
  });
  LocalJobOptions nameless = simulated(2, 1);
  nameless.init_thread = false;
  LocalJob second(nameless);
  second.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    Collectives workers(fabric, {.participants = Participants::kThreads});
    EXPECT_EQ(workers.barrier(soon()).code(), absl::StatusCode::kFailedPrecondition);
    must(all.barrier(soon()));  // any thread may take part for its process
  });
}

// 65 values of 1 MiB are more than the 64 MiB of the longest result.
TEST(CollectivesMistakes, AResultThatIsTooLongIsRefusedByAll) {
  using Large = std::array<std::byte, size_t{1} << 20>;
  static const Large value{};
  LocalJob job(simulated(65, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const absl::Status refused = all.all_gather(value, soon()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("more than 67108864"));
    must(all.barrier(soon()));
  });
}

TEST(CollectivesMistakes, AnOperatorThatThrowsEndsTheOperationForAll) {
  LocalJob job(simulated(5, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const auto sum = all.all_reduce(
        fabric.rank(),
        [](uint32_t a, uint32_t b) -> uint32_t {
          if (b == 3) throw std::runtime_error("no threes");
          return a + b;
        },
        soon());
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sum.status().message()), HasSubstr("no threes"));
    must(all.barrier(soon()));
  });
}

TEST(CollectivesMistakes, AnOperatorMayThrowAnything) {
  LocalJob job(simulated(3, 1));
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    const auto sum = all.all_reduce(
        fabric.rank(), [](uint32_t, uint32_t) -> uint32_t { throw 5; }, soon());
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sum.status().message()),
                HasSubstr("the operator of all_reduce threw int"));
    must(all.barrier(soon()));
  });
}

// After the end of the job no participant can come, so nothing waits.
TEST(CollectivesAfterFinalize, SayThatTheFabricWasFinalized) {
  LocalJobOptions options{.processes = 2};
  options.finalize = options.threads_stay = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    Collectives workers(fabric, {.participants = Participants::kThreads});
    TerminationDetector detector(fabric);
    const auto memory = must(GlobalMemory::create(fabric));
    const auto by_owner = must(GlobalMemory::create(fabric, {.atomics = AtomicsBy::kOwner}));
    const auto theirs = must(memory->allocate<uint64_t>(1 - fabric.rank(), 1, soon()));
    const auto mine = must(memory->allocate<uint64_t>(fabric.rank(), 1, soon()));
    must(all.barrier(soon()));
    DistributedLock lock(*memory, theirs);
    DistributedLock own(*memory, mine);
    must(memory->rput(uint64_t{7} << 32, mine).wait(soon()));  // an owner that never releases it
    must(fabric.finalize(soon()));

    const auto expect_ended = [](const absl::Status& status) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(status.ToString(), HasSubstr("the fabric was finalized"));
    };
    // No deadline comes: the error comes immediately.
    int value = 0;
    for (Collectives* one : {&all, &workers}) {
      expect_ended(one->barrier(kForever));
      expect_ended(one->broadcast(value, 0, kForever));
      expect_ended(one->all_reduce(value, std::plus<>(), kForever).status());
      expect_ended(one->all_gather(value, kForever).status());
    }
    expect_ended(detector.wait(kForever));
    expect_ended(lock.acquire(kForever));
    expect_ended(lock.try_acquire(kForever).status());
    expect_ended(lock.take_over(kForever).status());
    expect_ended(own.acquire(kForever));
    expect_ended(own.try_acquire(kForever).status());
    expect_ended(memory->rget(theirs).wait(kForever).status());
    expect_ended(memory->rput(1, theirs).wait(kForever));
    for (GlobalMemory* one : {memory.get(), by_owner.get()}) {
      expect_ended(one->fetch_add(theirs, 1).wait(kForever).status());
      expect_ended(one->compare_exchange(theirs, 0, 1).wait(kForever).status());
    }
    expect_ended(memory->allocate<uint64_t>(1 - fabric.rank(), 1, kForever).status());
    // Memory of this process stays accessible.
    EXPECT_EQ(must(memory->rget(mine).wait(soon())), uint64_t{7} << 32);
  });
}

// release() inside of a call cannot be sent: the owner of the word has no receive unit, and the
// process may not defer more calls. The lock is still held, and can be released later.
TEST(DistributedLockTest, AReleaseThatCannotStartMayBeRepeated) {
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  options.fabric.service_threads = 0;
  options.fabric.receive_units = 4;
  options.fabric.deferred_bytes = 1;
  LocalJob job(options);
  std::atomic<bool> stalls{false};
  std::atomic<bool> stalled{false};
  std::atomic<bool> refused{false};
  std::atomic<bool> over{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait_polling([&] { return stalls.load(); }, soon()));
      stalled = true;
      EXPECT_TRUE(wait_until([&] { return refused.load(); }, soon()));  // does not poll
      EXPECT_TRUE(fabric.wait_polling([&] { return over.load(); }, soon()));
      return;
    }
    const auto memory = must(GlobalMemory::create(fabric, {.atomics = AtomicsBy::kOwner}));
    const auto word = must(memory->allocate<uint64_t>(1, 1, soon()));
    {
      DistributedLock lock(*memory, word);
      must(lock.acquire(soon()));
      stalls = true;
      EXPECT_TRUE(wait_until([&] { return stalled.load(); }, soon()));
      absl::Status sent;
      while (sent.ok()) sent = call<Fail>(fabric, 1, [] {});
      EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
      must(call<RetryAsync>(fabric, 1, [] {}));  // is deferred
      absl::Status released;
      must(service_call(
          fabric, 0,
          [](uint64_t lock, uint64_t status) {
            *reinterpret_cast<absl::Status*>(status) =
                reinterpret_cast<DistributedLock*>(lock)->release(soon());
          },
          reinterpret_cast<uint64_t>(&lock), reinterpret_cast<uint64_t>(&released)));
      EXPECT_TRUE(absl::IsResourceExhausted(released)) << released;
      EXPECT_TRUE(lock.held());
      refused = true;
      must(lock.release(soon()));
      DistributedLock next(*memory, word);
      EXPECT_TRUE(must(next.try_acquire(soon())));
    }
    memory->free(word);
    over = true;
  });
}

}  // namespace
}  // namespace cariama::testing
