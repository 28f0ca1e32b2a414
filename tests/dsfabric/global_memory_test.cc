// Global memory between processes: mapped memory, failed processes, late answers, invalid pointers.
#include "dsfabric/global_memory.h"

#include <unistd.h>
#include <csignal>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives.h"
#include "dsfabric/collectives/lock_numbers.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/global_vector.h"
#include "dsfabric/memory/remote_heap.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

TEST(GlobalPointer, IsArithmetic) {
  global_ptr<uint32_t> null;
  EXPECT_TRUE(null.is_null());
  EXPECT_FALSE(null);
  GlobalAddress address;
  address.address = 0x1000;
  address.rank = 3;
  const global_ptr<uint32_t> first(address);
  global_ptr<uint32_t> pointer = first + 5;
  EXPECT_EQ(pointer.address().address, 0x1014u);
  EXPECT_EQ(pointer - first, 5);
  EXPECT_EQ(first - pointer, -5);
  EXPECT_EQ(--pointer, first + 4);
  EXPECT_EQ(pointer -= 4, first);
  EXPECT_LT(first, first + 1);
  EXPECT_EQ((first + 2).cast<uint64_t>() - first.cast<uint64_t>(), 1);
  address.rank = 2;
  EXPECT_LT(global_ptr<uint32_t>(address) + 100, first);  // ordered by process first
  EXPECT_NE(global_ptr<uint32_t>(address), first);
  const global_ptr<const uint32_t> constant = first;
  EXPECT_EQ(constant.address(), first.address());
  static_assert(std::is_trivially_copyable_v<global_ptr<double>>);
}

// Numbers of elements whose size in bytes is 2^64 and more.
TEST(GlobalMemoryMistakes, SizesThatOverflow) {
  LocalJob job({.processes = 2, .transport = transport_case("shm")});
  job.run([](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    RDMAMemory near = must(fabric.memory().allocate(64));
    for (const uint32_t rank : {0u, 1u}) {
      const auto piece = must(memory->allocate<uint64_t>(rank, 8, soon()));
      for (const size_t count : {size_t{1} << 61, (size_t{1} << 61) + 1, (size_t{1} << 62) + 8}) {
        EXPECT_TRUE(
            absl::IsResourceExhausted(memory->allocate<uint64_t>(rank, count, soon()).status()));
        EXPECT_TRUE(absl::IsInvalidArgument(memory->rget(piece, near, 0, count).wait(soon())));
        EXPECT_TRUE(absl::IsInvalidArgument(memory->rput(near, 0, count, piece).wait(soon())));
      }
      memory->free(piece);
    }
    must(fabric.memory().free(std::move(near)));
    Collectives all(fabric);
    for (const size_t size : {size_t{1} << 62, SIZE_MAX}) {
      EXPECT_TRUE(
          absl::IsResourceExhausted(GlobalVector<uint64_t>::create(all, size, soon()).status()));
    }
  });
}

TEST(GlobalMemoryMistakes, AreRefused) {
  LocalJob job({.processes = 2, .transport = transport_case("shm")});
  job.run([](Fabric& fabric, uint32_t) {
    EXPECT_EQ(GlobalMemory::create(fabric, {.piece_bytes = 0}).status().code(),
              absl::StatusCode::kInvalidArgument);
    const auto memory = must(GlobalMemory::create(fabric));
    const auto by_owner = must(GlobalMemory::create(fabric, {.atomics = AtomicsBy::kOwner}));
    const global_ptr<uint64_t> null;
    EXPECT_EQ(memory->rget(null).wait(soon()).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->rput(1, null).wait(soon()).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->fetch_add(null, 1).wait(soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    GlobalAddress nobody;
    nobody.address = 64;
    nobody.rank = 2;
    EXPECT_EQ(memory->rget(global_ptr<uint64_t>(nobody)).wait(soon()).status().code(),
              absl::StatusCode::kInvalidArgument);

    // The owner checks what it executes, because addresses come over the wire. No process allocates
    // meanwhile.
    Collectives all(fabric);
    const auto theirs = must(memory->allocate<uint64_t>(1 - fabric.rank(), 8, soon()));
    must(all.barrier(soon()));
    EXPECT_EQ(must(by_owner->fetch_add(theirs + 7, 1).wait(soon())), 0u);
    for (const ptrdiff_t outside : {-1, 8, 1 << 20}) {
      SCOPED_TRACE(outside);
      EXPECT_EQ(by_owner->fetch_add(theirs + outside, 1).wait(soon()).status().code(),
                absl::StatusCode::kInvalidArgument);
    }
    const auto odd = (theirs.cast<std::byte>() + 4).cast<uint64_t>();
    EXPECT_EQ(by_owner->fetch_add(odd, 1).wait(soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->fetch_add(odd, 1).wait(soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(must(memory->rget(theirs + 7).wait(soon())), 1u);
    must(all.barrier(soon()));
    memory->free(theirs);

    // The processes pass different sizes.
    const auto vector = GlobalVector<int>::create(all, 10 + fabric.rank(), soon());
    EXPECT_EQ(vector.status().code(), absl::StatusCode::kFailedPrecondition) << vector.status();
    must(all.barrier(soon()));
  });
}

// The object of an operation that did not start gets no event. Only a Future is ready.
TEST(GlobalMemoryMistakes, AreNotNotified) {
  LocalJob job({.processes = 2, .transport = transport_case("sim")});
  job.run([&](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    const global_ptr<uint64_t> null;
    Synchronizer done;
    EXPECT_TRUE(absl::IsInvalidArgument(memory->rput(1, null).notify(done)));
    EXPECT_FALSE(done.done());
    Future<void> end;
    EXPECT_TRUE(absl::IsInvalidArgument(memory->rput(1, null).notify(end)));
    EXPECT_TRUE(end.ready());
    EXPECT_TRUE(absl::IsInvalidArgument(end.get(soon())));
    EXPECT_TRUE(absl::IsInvalidArgument(memory->rget(null).future().get(soon()).status()));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(GlobalTransfer().notify([](const absl::Status&) { FAIL(); })));
    EXPECT_TRUE(absl::IsFailedPrecondition(GlobalValue<int>().future().get(soon()).status()));
    // The end of an operation is given away once.
    const auto word = must(memory->allocate<uint64_t>(1 - fabric.rank(), 1, soon()));
    GlobalValue<uint64_t> value = memory->rget(word);
    must(value.notify(done));
    must(fabric.wait(done, soon()));
    EXPECT_TRUE(absl::IsFailedPrecondition(value.wait(soon()).status()));
    EXPECT_TRUE(absl::IsFailedPrecondition(value.future().get(soon()).status()));
    memory->free(word);
  });
}

// finalize() notifies the objects of operations in flight; later ones are refused.
TEST(GlobalMemoryAtTheEnd, NotifiesEachObject) {
  for (const uint32_t service_threads : {0u, 1u}) {
    LocalJobOptions options{.processes = 2,
                            .transport = transport_case("sim"),
                            .fabric = {.service_threads = service_threads}};
    options.finalize = options.threads_stay = false;
    LocalJob job(options);
    job.run([&](Fabric& fabric, uint32_t) {
      const auto memory = must(GlobalMemory::create(fabric));
      const auto word = must(memory->allocate<uint64_t>(1 - fabric.rank(), 1, soon()));
      std::array<Future<void>, 20> ends;
      for (auto& end : ends) must(memory->rput(1, word).notify(end));
      GlobalValue<uint64_t> late = memory->rget(word);
      must(fabric.finalize(soon()));
      for (auto& end : ends) {
        EXPECT_TRUE(end.ready());
        const absl::Status status = end.get(soon());
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      }
      EXPECT_TRUE(absl::IsUnavailable(late.future().get(soon()).status()));
      Synchronizer done;
      EXPECT_TRUE(absl::IsUnavailable(memory->rput(1, word).notify(done)));
      EXPECT_FALSE(done.done());
    });
  }
}

// The function of an Async call runs in a thread of the fabric, and may wait for such an event.
TEST(GlobalMemoryWaits, OfAnAsyncFunctionForAnEvent) {
  static std::atomic<uint64_t> got;
  static GlobalAddress place;
  got = 0;
  LocalJob job({.processes = 2, .transport = transport_case("sim")});
  job.run([&](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    if (fabric.rank() == 0) {
      const auto word = must(memory->allocate<uint64_t>(0, 1, soon()));
      must(memory->rput(7, word).wait(soon()));
      place = word.address();
      const std::array<std::byte, 64> buffer{};
      Synchronizer run;
      must(call_buffer<Async, RemoteNotify>(
          fabric, 1,
          [](void*, uint64_t) {
            const auto mine = must(GlobalMemory::create(*running_fabric()));
            got = must(mine->rget(global_ptr<uint64_t>(place)).future().get(soon()));
          },
          std::span(buffer), run));
      must(fabric.wait(run, soon()));
      EXPECT_EQ(got, 7u);
      memory->free(word);
    } else {
      EXPECT_TRUE(fabric.wait([] { return got != 0; }, soon()));  // runs the call
    }
    job.meet(2);
  });
}

// A call arrives before the data of an rget. The thread that waits for the rget runs the call.
TEST(GlobalMemoryWaits, RunCalls) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    static std::atomic<int> greeted, ran;
    greeted = ran = 0;
    global_ptr<uint64_t> word;
    LocalJob job({.processes = 2, .transport = transport_case("sim"), .seed = seed});
    job.run([&](Fabric& fabric, uint32_t) {
      const auto memory = must(GlobalMemory::create(fabric));
      if (fabric.rank() == 0) word = must(memory->allocate<uint64_t>(0, 1, soon()));
      must(call(fabric, 1 - fabric.rank(), [] { ++greeted; }));  // connects
      EXPECT_TRUE(fabric.wait_polling([] { return greeted == 2; }, soon()));
      job.meet(2);  // runs no calls
      if (fabric.rank() == 0) {
        Synchronizer sent;
        must(call<LocalNotify>(
            fabric, 1, [] { ++ran; }, sent));
        EXPECT_TRUE(fabric.wait_polling([&] { return sent.done(); }, soon()));
      }
      job.meet(2);
      if (fabric.rank() == 1) {
        EXPECT_EQ(ran, 0);
        EXPECT_EQ(must(memory->rget(word).wait(soon())), 0u);
        EXPECT_EQ(ran, 1);
      }
      job.meet(2);
      if (fabric.rank() == 0) memory->free(word);
    });
  }
}

TEST(RemoteMemoryNames, LeadToTheAddressUntilTheMemoryIsFreed) {
  LocalJob job({.processes = 2, .transport = transport_case("shm")});
  std::atomic<uint64_t> name{0};
  std::atomic<uint64_t> address{0};
  job.run([&](Fabric& fabric, uint32_t) {
    RemoteMemory memory;
    if (fabric.rank() == 1) {
      memory = must(RemoteMemory::allocate(fabric, 1, 64, soon()));
      const uint64_t first = memory.address().address;
      EXPECT_TRUE(RemoteMemory::contains(fabric, first, 64));
      EXPECT_TRUE(RemoteMemory::contains(fabric, first + 60, 4));
      EXPECT_FALSE(RemoteMemory::contains(fabric, first + 60, 5));
      EXPECT_FALSE(RemoteMemory::contains(fabric, first + 1, SIZE_MAX));
      EXPECT_FALSE(RemoteMemory::contains(fabric, first - 1, 1));
      name = RemoteMemory::new_name(fabric);
      EXPECT_NE(RemoteMemory::new_name(fabric), name);
      const uint64_t other = RemoteMemory::new_name(fabric);
      memory.publish(other);
      EXPECT_EQ(must(RemoteMemory::find(fabric, 1, other, soon())), memory.address());
      memory.publish(name);
      EXPECT_TRUE(absl::IsNotFound(RemoteMemory::find(fabric, 1, other, soon()).status()));
      address = memory.address().address;
      EXPECT_EQ(must(RemoteMemory::find(fabric, 1, name, soon())), memory.address());
    }
    job.meet(2);
    EXPECT_NE(RemoteMemory::new_name(fabric), name);
    if (fabric.rank() == 0) {
      const GlobalAddress found = must(RemoteMemory::find(fabric, 1, name, soon()));
      EXPECT_EQ(found.address, address);
      EXPECT_EQ(found.rank, 1u);
      EXPECT_TRUE(absl::IsNotFound(RemoteMemory::find(fabric, 0, name, soon()).status()));
      const auto global = must(GlobalMemory::create(fabric));
      must(global->rput(uint64_t{5}, global_ptr<uint64_t>(found)).wait(soon()));
    }
    job.meet(2);
    if (fabric.rank() == 1) {
      EXPECT_EQ(*reinterpret_cast<const uint64_t*>(address.load()), 5u);
      memory.free();
    }
    job.meet(2);
    EXPECT_TRUE(absl::IsNotFound(RemoteMemory::find(fabric, 1, name, soon()).status()));
  });
}

// Names with 32 bits for the count would begin again, and replace those of published memory.
TEST(RemoteMemoryNames, AreNotUsedTwiceAfter32Bits) {
  LocalJob job({.processes = 3, .transport = transport_case("sim")});
  std::array<std::array<uint64_t, 4>, 3> names{};
  job.run([&](Fabric& fabric, uint32_t) {
    auto& mine = names[fabric.rank()];
    auto& heap = internal::attachment_of<internal::RemoteHeap>(fabric);
    const RemoteMemory memory = must(RemoteMemory::allocate(fabric, fabric.rank(), 64, soon()));
    mine[0] = RemoteMemory::new_name(fabric);
    memory.publish(mine[0]);
    heap.skip_names((uint64_t{1} << 32) - 2);
    for (size_t i = 1; i < mine.size(); ++i) {
      mine[i] = RemoteMemory::new_name(fabric);
      EXPECT_TRUE(
          absl::IsNotFound(RemoteMemory::find(fabric, fabric.rank(), mine[i], soon()).status()));
    }
    EXPECT_EQ(must(RemoteMemory::find(fabric, fabric.rank(), mine[0], soon())), memory.address());
  });
  std::set<uint64_t> all;
  for (const auto& of_rank : names) all.insert(of_rank.begin(), of_rank.end());
  EXPECT_EQ(all.size(), 12u);
}

// If the requester has stopped waiting, the owner's allocation is freed; otherwise it would leak.
TEST(RemoteMemoryLate, IsFreed) {
  LocalJob job({.processes = 2, .transport = transport_case("sim")});
  std::array<std::atomic<bool>, 2> step{};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      // The other process receives no calls meanwhile.
      const auto late =
          RemoteMemory::allocate(fabric, 1, 64, deadline_after(std::chrono::milliseconds(5)));
      EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(late.status().message()), HasSubstr(fabric.label(1)));
      step[0] = true;
      ASSERT_TRUE(fabric.wait_polling([&] { return step[1].load(); }, soon()));
    } else {
      ASSERT_TRUE(wait_until([&] { return step[0].load(); }, soon()));
      auto& heap = internal::attachment_of<internal::RemoteHeap>(fabric);
      ASSERT_TRUE(fabric.wait([&] { return heap.allocations() == 1; }, soon()));
      ASSERT_TRUE(fabric.wait([&] { return heap.allocations() == 0; }, soon()));
      step[1] = true;
    }
  });
}

// The numbers of lock objects are UINT32_MAX - 1, UINT32_MAX, 0 and 1, and then those again: two
// objects with one number exclude each other, too.
TEST(DistributedLockNumbers, ExcludeWhenTheyWrap) {
  LocalJob job({.processes = 1, .transport = transport_case("sim")});
  job.run([&](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    const auto word = must(memory->allocate<uint64_t>(0, 1, soon()));
    std::vector<std::unique_ptr<DistributedLock>> locks;
    for (int i = 0; i < 8; ++i) {
      if (i % 4 == 0) internal::next_lock_number() = UINT32_MAX - 1;
      locks.push_back(std::make_unique<DistributedLock>(*memory, word));
    }
    for (const auto& holder : locks) {
      must(holder->acquire(soon()));
      EXPECT_NE(must(memory->rget(word).wait(soon())), 0u);
      for (const auto& other : locks) {
        if (other == holder) continue;
        EXPECT_FALSE(must(other->try_acquire(soon())));
        EXPECT_FALSE(must(other->take_over(soon())));
        EXPECT_EQ(other->release(soon()).code(), absl::StatusCode::kFailedPrecondition);
      }
      must(holder->release(soon()));
    }
    EXPECT_EQ(must(memory->rget(word).wait(soon())), 0u);
  });
}

// ---- Processes ----------------------------------------------------------------------------------

TEST(GlobalMemoryOfProcesses, IsMappedAndShared) {
  run_process_job(3, {}, [](Fabric& fabric) {
    Collectives all(fabric);
    const auto memory = must(GlobalMemory::create(fabric));
    auto vector = must(GlobalVector<uint64_t>::create(all, 3000, soon(), {.block = 7}));
    for (size_t i = 0; i < vector.local().size(); ++i) vector.local()[i] = vector.global_index(i);
    must(all.barrier(soon()));
    std::vector<uint64_t> whole(3000);
    must(vector.get(*memory, 0, std::span(whole), soon()));
    for (uint64_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], i);
    must(all.barrier(soon()));
    for (int i = 0; i < 1000; ++i) {
      static_cast<void>(must(memory->fetch_add(vector[1500], 1).wait(soon())));
    }
    must(all.barrier(soon()));
    EXPECT_EQ(must(vector.rget(*memory, 1500).wait(soon())), 4500u);
    // Every access is a load or store: no work request was posted.
    EXPECT_EQ(memory->statistics().transfers, 0u);
    EXPECT_EQ(memory->statistics().executed, 0u);
    must(all.barrier(soon()));
  });
}

// Continues a stopped process when it is destroyed. If a wait does not keep its deadline, continues
// the process after 20 s, so that the test fails and does not hang.
class StoppedProcess {
 public:
  explicit StoppedProcess(pid_t process)
      : rescue_([this, process] {
          const Deadline end = deadline_after(std::chrono::seconds(20));
          while (!returned_ && std::chrono::steady_clock::now() < end) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          kill(process, SIGCONT);
        }) {}
  ~StoppedProcess() {
    returned_ = true;
    rescue_.join();
  }
  StoppedProcess(const StoppedProcess&) = delete;
  StoppedProcess& operator=(const StoppedProcess&) = delete;

 private:
  std::atomic<bool> returned_{false};
  std::thread rescue_;
};

// Runs `body(fabric, memory, word, owner)` in rank 0. Rank 1, process `owner`, owns the word and
// executes the atomics of its lock.
template <typename Body>
void run_with_owner_of_word(const FabricOptions& options, const Body& body) {
  run_process_job(2, options, [&](Fabric& fabric) {
    Collectives all(fabric);
    const auto memory = must(GlobalMemory::create(fabric, {.atomics = AtomicsBy::kOwner}));
    pid_t owner = getpid();
    must(all.broadcast(owner, 1, soon()));
    if (fabric.rank() == 0) {
      body(fabric, *memory, must(memory->allocate<uint64_t>(1, 1, soon())), owner);
    }
    must(all.barrier(soon()));
  });
}

void expect_late(const absl::Status& late, const Fabric& fabric) {
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(late.ToString(), HasSubstr(fabric.label(1)));
}

// The owner of the word is stopped. The attempt stays in flight.
TEST(DistributedLockDeadline, HoldsIfTheOwnerOfTheWordIsStopped) {
  run_with_owner_of_word(
      {}, [](Fabric& fabric, GlobalMemory& memory, global_ptr<uint64_t> word, pid_t owner) {
        DistributedLock lock(memory, word);
        DistributedLock other(memory, word);
        must(lock.acquire(soon()));
        must(lock.release(soon()));
        ASSERT_TRUE(stop_process(owner, soon()));
        {
          const StoppedProcess stopped(owner);
          expect_late(lock.acquire(deadline_after(std::chrono::milliseconds(300))), fabric);
        }
        // The owner has executed the attempt: the lock is taken, and acquire() returns that.
        must(lock.acquire(soon()));
        EXPECT_FALSE(must(other.try_acquire(soon())));
        must(lock.release(soon()));
        must(other.acquire(soon()));
      });
}

TEST(DistributedLockDeadline, HoldsForEveryOperation) {
  run_with_owner_of_word(
      {}, [](Fabric& fabric, GlobalMemory& memory, global_ptr<uint64_t> word, pid_t owner) {
        DistributedLock lock(memory, word);
        DistributedLock other(memory, word);
        DistributedLock third(memory, word);
        must(lock.acquire(soon()));
        ASSERT_TRUE(stop_process(owner, soon()));
        {
          const StoppedProcess stopped(owner);
          const auto soon_over = [] { return deadline_after(std::chrono::milliseconds(300)); };
          expect_late(lock.release(soon_over()), fabric);
          EXPECT_TRUE(lock.held());
          expect_late(other.try_acquire(soon_over()).status(), fabric);
          expect_late(third.take_over(soon_over()).status(), fabric);
        }
        // The owner executes the release first, then the attempt.
        must(lock.release(soon()));
        EXPECT_FALSE(lock.held());
        EXPECT_TRUE(must(other.try_acquire(soon())));
        must(other.release(soon()));
      });
}

// All receive units of the stopped owner are full: the attempt cannot even be sent.
TEST(DistributedLockDeadline, HoldsIfTheAttemptCannotBeSent) {
  FabricOptions options;
  options.receive_units = 4;
  run_with_owner_of_word(
      options, [](Fabric& fabric, GlobalMemory& memory, global_ptr<uint64_t> word, pid_t owner) {
        DistributedLock lock(memory, word);
        must(lock.acquire(soon()));
        must(lock.release(soon()));
        ASSERT_TRUE(stop_process(owner, soon()));
        {
          const StoppedProcess stopped(owner);
          absl::Status sent;
          while (sent.ok()) sent = service_call<Fail>(fabric, 1, [] {}).status();
          EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
          expect_late(lock.acquire(deadline_after(std::chrono::milliseconds(300))), fabric);
        }
        must(lock.acquire(soon()));
        must(lock.release(soon()));
      });
}

// A word that other code has written: an error, or the deadline.
TEST(DistributedLockWord, OfAnotherMeaningIsAnError) {
  LocalJob job({.processes = 2});
  job.run([](Fabric& fabric, uint32_t) {
    const auto memory = must(GlobalMemory::create(fabric));
    const auto word = must(memory->allocate<uint64_t>(fabric.rank(), 1, soon()));
    for (const uint64_t value : {uint64_t{1}, uint64_t{UINT32_MAX}, uint64_t{3} << 32,
                                 uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 1}) {
      must(memory->rput(value, word).wait(soon()));
      DistributedLock lock(*memory, word);
      EXPECT_TRUE(absl::IsFailedPrecondition(lock.acquire(soon()))) << value;
      EXPECT_TRUE(absl::IsFailedPrecondition(lock.try_acquire(soon()).status())) << value;
      EXPECT_FALSE(must(lock.take_over(soon()))) << value;
      EXPECT_FALSE(lock.held());
    }
    // Locks that do not exist, of processes that live.
    for (const uint64_t value : {uint64_t{1} << 32, uint64_t{2} << 32 | UINT32_MAX}) {
      must(memory->rput(value, word).wait(soon()));
      DistributedLock lock(*memory, word);
      const absl::Status late = lock.acquire(deadline_after(std::chrono::milliseconds(50)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      EXPECT_FALSE(must(lock.try_acquire(soon())));
      EXPECT_FALSE(must(lock.take_over(soon())));
    }
    must(memory->rput(0, word).wait(soon()));
    DistributedLock lock(*memory, word);
    must(lock.acquire(soon()));
    must(memory->rput(UINT64_MAX, word).wait(soon()));
    EXPECT_TRUE(absl::IsFailedPrecondition(lock.release(soon())));
    EXPECT_FALSE(lock.held());
    memory->free(word);
  });
}

// The survivors leave without finalize(), because the dead process cannot take part.
TEST(GlobalMemoryDeaths, EndLocksAndTransfers) {
  run_job_with_a_victim(3, 1, [](Fabric& fabric) {
    Collectives all(fabric, {.leave_out_dead = true});
    const auto memory = must(GlobalMemory::create(fabric));
    global_ptr<uint64_t> word;
    if (fabric.rank() == 0) word = must(memory->allocate<uint64_t>(0, 1, soon()));
    must(all.broadcast(word, 0, soon()));
    const auto of_victim = must(memory->allocate<uint64_t>(1, 1, soon()));
    DistributedLock lock(*memory, word);
    if (fabric.rank() == 1) must(lock.acquire(soon()));
    must(all.barrier(soon()));
    if (fabric.rank() == 1) raise(SIGKILL);

    const absl::Status dead = lock.acquire(soon());
    EXPECT_EQ(dead.code(), absl::StatusCode::kUnavailable) << dead;
    EXPECT_THAT(std::string(dead.message()), HasSubstr(fabric.label(1)));
    must(all.barrier(soon()));
    // One process takes the lock over; the other waits for its release.
    const bool mine = must(lock.take_over(soon()));
    EXPECT_EQ(must(all.all_reduce(mine ? 1 : 0, std::plus<>(), soon())), 1);
    EXPECT_EQ(all.left_out(), std::vector<Rank>{1});
    if (mine) {
      must(lock.release(soon()));
    } else {
      must(lock.acquire(soon()));
      must(lock.release(soon()));
    }
    expect_dead(memory->rget(of_victim).wait(soon()).status(), fabric, 1);
    Future<void> end;
    expect_dead(memory->rput(1, of_victim).notify(end), fabric, 1);
    expect_dead(end.get(soon()), fabric, 1);
    EXPECT_EQ(RemoteMemory::allocate(fabric, 1, 8, soon()).status().code(),
              absl::StatusCode::kUnavailable);
    must(all.barrier(soon()));
  });
}

TEST(CollectivesOfProcesses, ContinueWithoutDeadProcesses) {
  run_job_with_a_victim(4, 0, [](Fabric& fabric) {
    Collectives all(fabric, {.leave_out_dead = true});
    must(all.barrier(soon()));
    if (fabric.rank() == 0) raise(SIGKILL);  // rank 0 is the root of the tree
    const auto sum = must(all.all_reduce(fabric.rank(), std::plus<>(), soon()));
    EXPECT_EQ(sum, 6u);
    EXPECT_EQ(all.left_out(), std::vector<Rank>{0});
    uint32_t value = fabric.rank();
    EXPECT_EQ(all.broadcast(value, 0, soon()).code(), absl::StatusCode::kUnavailable);
    must(all.broadcast(value, 2, soon()));
    EXPECT_EQ(value, 2u);
    must(all.barrier(soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
