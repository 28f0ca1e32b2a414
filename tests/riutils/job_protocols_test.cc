// Every protocol of dsfabric and riutils in a job of real processes without common test state.
// Started directly, this program launches itself as two processes on this host. Under mpirun it
// joins the job of mpirun, so that it also runs on two hosts (tests/rdma_vm/mpirun-in-guests). All
// processes run the same tests together; each checks its own observations.
//
//   job_protocols_test [--faults] [--trust-bytes] [gtest options]
//
// --trust-bytes: over verbs, the bytes of one WRITE count as ordered although the device does not
//   guarantee it (soft-RoCE places them in order). So calls arrive by trailing words.
// --faults: uses devices that delay and tear transfers.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/collectives.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/launcher.h"
#include "dsfabric/quiescence.h"
#include "dtutils/fault/fault_device.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using testing::must;
using testing::soon;

// ---- The job; it exists as long as the program --------------------------------------------------

struct Job {
  std::shared_ptr<FaultControl> control;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<ThreadContext> self;
  std::unique_ptr<Collectives> all;
  std::unique_ptr<TerminationDetector> detector;

  [[nodiscard]] uint32_t me() const { return fabric->rank(); }
  [[nodiscard]] uint32_t size() const { return fabric->size(); }
  [[nodiscard]] uint32_t next() const { return (me() + 1) % size(); }
  [[nodiscard]] uint32_t before() const { return (me() + size() - 1) % size(); }
};
Job* job = nullptr;

class JobOfTheTests : public ::testing::Environment {
 public:
  explicit JobOfTheTests(bool faults) : faults_(faults) {}
  void SetUp() override {
    FabricOptions options;
    options.threads = 1;
    // A busy host may stop the guests of the virtual machine for some time.
    options.ack_timeout = std::chrono::milliseconds(500);
    if (faults_) {
      job_.control = std::make_shared<FaultControl>();
      options.device =
          make_fault_device(must(open_device({})), FaultOptions::benign(11), job_.control);
    }
    job_.fabric = must(Fabric::create(options));
    job_.self = must(job_.fabric->init_thread(0));
    job_.all = std::make_unique<Collectives>(*job_.fabric);
    job_.detector = std::make_unique<TerminationDetector>(*job_.fabric);
    job = &job_;
    ASSERT_GE(job_.size(), 2u) << "this test needs a job of at least two processes";
    static_cast<void>(must(job_.fabric->connection(job_.next())));
  }
  void TearDown() override {
    if (job_.control != nullptr) {
      // The test is valid only if faults were really injected.
      EXPECT_GT(job_.control->injected(Fault::kLateCompletion), 0u);
      EXPECT_GT(job_.control->injected(Fault::kLateOperation), 0u);
    }
    job_.detector.reset();
    job_.all.reset();
    must(job_.fabric->finalize(soon()));
    job_.self.reset();
    job_.fabric.reset();
  }

 private:
  const bool faults_;
  Job job_;
};

// Records the calls that ran in this process; they come from the process before it.
std::atomic<uint64_t> ran;
std::atomic<uint64_t> expected_number;
std::atomic<uint64_t> disorder;
std::atomic<uint64_t> good_buffers;
std::atomic<uint64_t> bad_buffers;

void note(uint64_t number) {
  if (expected_number.exchange(number + 1) != number) ++disorder;
  ++ran;
}

std::byte byte_at(uint64_t seed, uint64_t i) { return static_cast<std::byte>(seed * 31 + i * 7); }
std::vector<std::byte> bytes_of(uint64_t seed, size_t size) {
  std::vector<std::byte> data(size);
  for (size_t i = 0; i < size; ++i) data[i] = byte_at(seed, i);
  return data;
}
// Returns the function for call_buffer: it checks the buffer's size and content.
auto taker(uint64_t seed, uint64_t size) {
  return [seed, size](void* buffer, uint64_t length) {
    const auto* const bytes = static_cast<const std::byte*>(buffer);
    bool good = length == size;
    for (uint64_t i = 0; good && i < size; ++i) good = bytes[i] == byte_at(seed, i);
    ++(good ? good_buffers : bad_buffers);
  };
}

void await(Synchronizer& done) {
  EXPECT_TRUE(job->fabric->wait([&] { return done.done(); }, soon()));
  EXPECT_EQ(done.status(), absl::OkStatus());
}

// All processes begin and end each test together, so that the counters of one test contain no calls
// of another.
void begin_together() {
  ran = expected_number = disorder = good_buffers = bad_buffers = 0;
  must(job->all->barrier(soon()));
}
void end_together() { must(job->all->barrier(soon())); }
class JobTest : public ::testing::Test {
 protected:
  void SetUp() override { begin_together(); }
  void TearDown() override { end_together(); }
};
class MessengerJob : public ::testing::TestWithParam<Arrival> {
 protected:
  void SetUp() override {
    // The channel takes about 80 calls, so that chunks are filled often and few packets are in
    // flight.
    options_.chunk_bytes = 1024;
    options_.max_chunks = 2;
    options_.arrival = GetParam();
    RDMAMessenger probe(*job->self, job->next(), options_);
    const absl::Status there = probe.setup();
    if (there.ok()) must(probe.shutdown(soon()));
    begin_together();
    if (absl::IsFailedPrecondition(there)) GTEST_SKIP() << there;
    EXPECT_EQ(there, absl::OkStatus());
  }
  void TearDown() override { end_together(); }
  MessengerOptions options_;
};
INSTANTIATE_TEST_SUITE_P(Arriving, MessengerJob,
                         ::testing::Values(Arrival::kAuto, Arrival::kTrailing, Arrival::kPolled,
                                           Arrival::kEvent),
                         [](const auto& info) { return std::string(arrival_name(info.param)); });

// ---- Send-based calls ---------------------------------------------------------------------------

TEST_F(JobTest, SendBasedCallsReturnNotifyAndThrow) {
  Fabric& fabric = *job->fabric;
  Synchronizer run(3);
  must(call<RemoteNotify>(
      fabric, job->next(), [] { ++ran; }, run));
  must(service_call<RemoteNotify>(
      fabric, job->next(), [] { ++ran; }, run));
  std::vector<std::string> answer;
  const std::string text = "arguments that do not travel bytewise";
  must(call_return(
      fabric, job->next(),
      [](const std::string& text, uint32_t rank) {
        return std::vector<std::string>{text, std::to_string(rank),
                                        std::to_string(running_fabric()->rank())};
      },
      answer, run, text, job->me()));
  await(run);
  EXPECT_EQ(answer, (std::vector<std::string>{text, std::to_string(job->me()),
                                              std::to_string(job->next())}));
  auto written = must(RemoteObject<Synchronizer>::create(fabric));
  must(call<RemoteNotify>(
      fabric, job->next(), [] { ++ran; }, written));
  EXPECT_EQ(written.wait(soon()), absl::OkStatus());
  const auto thrown = async_call(fabric, job->next(), []() -> int {
                        throw std::runtime_error("not today");
                      }).get(soon());
  EXPECT_TRUE(absl::IsInternal(thrown.status()));
  EXPECT_NE(thrown.status().message().find("not today"), std::string::npos) << thrown.status();
  EXPECT_TRUE(absl::IsOutOfRange(call(fabric, job->size(), [] {})));
  must(job->detector->wait(soon()));
  EXPECT_EQ(ran.load(), 3u);
}

// The forms of call_buffer. Each function sends one call and counts its Synchronizer down.
struct BufferForms {
  std::function<void(RDMAMemory*source, uint64_t size, Synchronizer&)> side, sync, async;
  std::function<void(RDMAMemory* source, uint64_t size, const RemoteMemoryLocator&, Synchronizer&)>
      placed;
  std::function<void(std::span<const std::byte>, Synchronizer&)> lent;
};
constexpr uint64_t kSide = 700;
constexpr uint64_t kPulled = 60'000;
void expect_buffers_to_arrive(const BufferForms& forms) {
  Fabric& fabric = *job->fabric;
  RDMAMemory source = must(fabric.memory().allocate(kPulled));
  RDMAMemory place = must(fabric.memory().allocate(kPulled));
  const std::vector<std::byte> data = bytes_of(3, kPulled);
  std::memcpy(source.get_buffer(), data.data(), kPulled);
  const auto names = must(job->all->all_gather(
      place.locator(fabric.domain(job->before()), fabric.rank()).slice(0, kPulled), soon()));
  Synchronizer done(6);
  forms.side(&source, kSide, done);
  forms.placed(&source, kPulled, *names[job->next()], done);
  forms.sync(&source, kPulled, done);
  forms.async(&source, kPulled, done);
  forms.lent(std::span(data).first(1000), done);  // copied into registered memory
  forms.lent(data, done);                         // registered
  await(done);
  must(job->detector->wait(soon()));
  EXPECT_EQ(good_buffers.load(), 6u);
  EXPECT_EQ(bad_buffers.load(), 0u);
  must(fabric.memory().free(std::move(source)));
  must(fabric.memory().free(std::move(place)));
}

TEST_F(JobTest, SendBasedBuffersArriveByEveryForm) {
  Fabric& fabric = *job->fabric;
  const uint32_t to = job->next();
  expect_buffers_to_arrive(
      {.side =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(call_buffer<RemoteNotify>(fabric, to, taker(3, size), source, 0, size, done));
           },
       .sync =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(call_buffer<Sync, RemoteNotify>(fabric, to, taker(3, size), source, 0, size,
                                                  done));
           },
       .async =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(call_buffer<Async, RemoteNotify>(fabric, to, taker(3, size), source, 0, size,
                                                   done));
           },
       .placed =
           [&](RDMAMemory* source, uint64_t size, const RemoteMemoryLocator& there,
               Synchronizer& done) {
             must(call_buffer<RemoteNotify>(fabric, to, taker(3, size), source, 0, size, there,
                                            done));
           },
       .lent =
           [&](std::span<const std::byte> data, Synchronizer& done) {
             must(call_buffer<Sync, RemoteNotify>(fabric, to, taker(3, data.size()), data, done));
           }});
}

// More calls than credits, with each policy for missing credits, run in order. Calls
// that are sent from inside a call, where no send may wait, also run in order.
TEST_F(JobTest, SendBasedCallsKeepTheirOrderWithoutCredits) {
  Fabric& fabric = *job->fabric;
  constexpr uint64_t kCalls = 600;
  for (uint64_t i = 0; i < kCalls; ++i) {
    const auto numbered = [i] { note(i); };
    if (i % 3 == 0) {
      must(call<RetryAsync>(fabric, job->next(), numbered));
    } else {
      absl::Status sent = call<Fail>(fabric, job->next(), numbered);
      if (absl::IsResourceExhausted(sent)) sent = call<Retry>(fabric, job->next(), numbered);
      must(sent);
    }
  }
  must(job->detector->wait(soon()));
  EXPECT_EQ(ran.load(), kCalls);
  EXPECT_EQ(disorder.load(), 0u);
  begin_together();
  must(call(fabric, job->next(), [back = job->me()] {
    for (uint64_t i = 0; i < 300; ++i) {
      if (!call(*running_fabric(), back, [i] { note(i); }).ok()) std::abort();
    }
  }));
  must(job->detector->wait(soon()));
  EXPECT_EQ(ran.load(), 300u);
  EXPECT_EQ(disorder.load(), 0u);
}

// ---- Messengers ---------------------------------------------------------------------------------

// Calls fill all chunks several times: plain calls, batches and overflow, with pushed and pulled
// consumption.
TEST_P(MessengerJob, CallsArriveInOrder) {
  constexpr uint64_t kCalls = 300;
  const auto expect_order = [&](auto& calls, RDMAMessenger& messenger) {
    for (uint64_t i = 0; i < kCalls; ++i) must(calls.call([i] { note(i); }).status());
    must(calls.flush());
    must(job->detector->wait(soon()));
    EXPECT_EQ(ran.load(), kCalls);
    EXPECT_EQ(disorder.load(), 0u);
    EXPECT_GT(messenger.statistics().chunks_filled, 0u);
    must(messenger.shutdown(soon()));
    begin_together();
  };
  for (const Consumption consumption : {Consumption::kPush, Consumption::kPull}) {
    options_.consumption = consumption;
    RDMAMessenger plain(*job->self, job->next(), options_);
    expect_order(plain, plain);
    RDMAMessenger under_batches(*job->self, job->next(), options_);
    RDMAAggregator batches(under_batches);
    expect_order(batches, under_batches);
    RDMAMessenger under_overflow(*job->self, job->next(), options_);
    RDMAOverflowAggregator overflow(under_overflow);
    expect_order(overflow, under_overflow);
  }
}

TEST_P(MessengerJob, CallsReturnNotifyAndThrow) {
  RDMAMessenger messenger(*job->self, job->next(), options_);
  Synchronizer run(2);
  must(messenger.call<RemoteNotify>([] { ++ran; }, run).status());
  std::string answer;
  must(messenger
           .call_return(
               [](const std::string& text, int more) { return text + std::to_string(more); },
               answer, run, std::string("4"), 2)
           .status());
  await(run);
  EXPECT_EQ(answer, "42");
  auto written = must(RemoteObject<Synchronizer>::create(*job->fabric));
  must(messenger.call<RemoteNotify>([] { ++ran; }, written).status());
  EXPECT_EQ(written.wait(soon()), absl::OkStatus());
  const auto thrown =
      messenger.async_call([]() -> int { throw std::runtime_error("not today"); }).get(soon());
  EXPECT_NE(thrown.status().message().find("not today"), std::string::npos) << thrown.status();
  must(messenger.shutdown(soon()));
  must(job->detector->wait(soon()));
  EXPECT_EQ(ran.load(), 2u);
}

TEST_P(MessengerJob, BuffersArriveByEveryForm) {
  RDMAMessenger messenger(*job->self, job->next(), options_);
  expect_buffers_to_arrive(
      {.side =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(messenger.call_buffer<RemoteNotify>(taker(3, size), source, 0, size, done)
                      .status());
           },
       .sync =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(messenger.call_buffer<Sync, RemoteNotify>(taker(3, size), source, 0, size, done)
                      .status());
           },
       .async =
           [&](RDMAMemory* source, uint64_t size, Synchronizer& done) {
             must(messenger.call_buffer<Async, RemoteNotify>(taker(3, size), source, 0, size, done)
                      .status());
           },
       .placed =
           [&](RDMAMemory* source, uint64_t size, const RemoteMemoryLocator& there,
               Synchronizer& done) {
             must(messenger.call_buffer<RemoteNotify>(taker(3, size), source, 0, size, there, done)
                      .status());
           },
       .lent =
           [&](std::span<const std::byte> data, Synchronizer& done) {
             must(messenger.call_buffer<Sync, RemoteNotify>(taker(3, data.size()), data, done)
                      .status());
           }});
  must(messenger.shutdown(soon()));
}

// The receiver does not poll: the channel grows up to max_chunks, and then a call with Fail is
// refused. Deferred calls are sent without a further step of their thread, and no call overtakes
// them.
TEST_P(MessengerJob, GrowsWithoutItsReceiverThenDefersCalls) {
  static std::atomic<bool> waits, may_run;
  waits = may_run = false;
  options_.chunks_per_request = 1;
  options_.max_chunks = 3;
  options_.chunk_bytes = 1024;
  must(job->all->barrier(soon()));
  for (uint32_t sender = 0; sender < job->size(); ++sender) {
    if (job->before() == sender) {  // the receiver: runs no calls before `may_run` is set
      must(service_call(*job->fabric, sender, [] { waits = true; }));
      ASSERT_TRUE(wait_until([] { return may_run.load(); }, soon()));
      EXPECT_EQ(ran.load(), 0u);
    }
    uint64_t sent = 0;
    if (job->me() == sender) {
      ASSERT_TRUE(wait_until([] { return waits.load(); }, soon()));
      RDMAMessenger messenger(*job->self, job->next(), options_);
      const auto numbered = [&sent] { return [i = sent] { note(i); }; };
      CallResult last;
      while ((last = messenger.call<Fail>(numbered())).ok()) ASSERT_LT(++sent, 10'000u);
      EXPECT_TRUE(absl::IsResourceExhausted(last.status())) << last.status();
      EXPECT_EQ(messenger.statistics().chunks, 3u);
      EXPECT_EQ(messenger.statistics().requests, 3u);  // for 1, 1 and 1 chunks
      for (int i = 0; i < 100; ++i, ++sent) must(messenger.call<RetryAsync>(numbered()).status());
      EXPECT_EQ(messenger.statistics().deferred, 100u);
      EXPECT_FALSE(messenger.call<Fail>([] {}).ok());
      must(service_call(*job->fabric, job->next(), [] { may_run = true; }));
      must(messenger.call<Retry>(numbered()).status());  // behind the deferred calls
      ++sent;
      must(messenger.shutdown(soon()));
      EXPECT_EQ(messenger.statistics().chunks, 3u);
    }
    must(job->detector->wait(soon()));
    must(job->all->broadcast(sent, sender, soon()));
    if (job->before() == sender) {
      EXPECT_EQ(ran.load(), sent);
      EXPECT_EQ(disorder.load(), 0u);
    }
  }
}

TEST_P(MessengerJob, CallsMayCallBackAndFlood) {
  static RDMAMessenger* back;
  RDMAMessenger messenger(*job->self, job->before(), options_);
  must(messenger.setup());
  back = &messenger;
  must(job->all->barrier(soon()));
  RDMAMessenger forth(*job->self, job->next(), options_);
  must(forth.call([] { throw 17; }).status());
  must(forth
           .call([] {
             for (uint64_t i = 0; i < 400; ++i) {
               if (!back->call([i] { note(i); })) std::abort();
             }
           })
           .status());
  must(job->detector->wait(soon()));
  EXPECT_EQ(ran.load(), 400u);
  EXPECT_EQ(disorder.load(), 0u);
  must(forth.shutdown(soon()));
  must(messenger.shutdown(soon()));
  must(job->all->barrier(soon()));
}

// The processes send to each other in turn; each may sleep while it waits and must be woken.
TEST_P(MessengerJob, NoWakeUpIsLost) {
  constexpr uint64_t kRounds = 100;
  RDMAMessenger messenger(*job->self, job->next(), options_);
  for (uint64_t i = 0; i < kRounds; ++i) {
    if (job->me() == 0) must(messenger.call([] { ++ran; }).status());
    ASSERT_TRUE(job->fabric->wait([&] { return ran.load() > i; }, soon())) << i;
    if (job->me() != 0) must(messenger.call([] { ++ran; }).status());
  }
  must(messenger.shutdown(soon()));
}

// ---- All together -------------------------------------------------------------------------------

TEST_F(JobTest, BroadcastsReachEveryProcessOnce) {
  Fabric& fabric = *job->fabric;
  RDMAMemory source = must(fabric.memory().allocate(kPulled));
  const std::vector<std::byte> data = bytes_of(3, kPulled);
  std::memcpy(source.get_buffer(), data.data(), kPulled);
  RDMAMemory place = must(fabric.memory().allocate(kPulled));
  std::vector<RemoteMemoryLocator> targets;
  for (const auto& name : must(job->all->all_gather(
           place.locator(fabric.domain(job->before()), fabric.rank()).slice(0, kPulled), soon()))) {
    targets.push_back(*name);
  }
  for (uint32_t root = 0; root < job->size(); ++root) {
    if (root == job->me()) {
      Synchronizer done(3);
      must(broadcast<RemoteNotify>(
               fabric, [] { ++ran; }, done)
               .status());
      must(broadcast_buffer<RemoteNotify>(fabric, taker(3, kPulled), &source, 0, kPulled, done)
               .status());
      must(broadcast_buffer<RemoteNotify>(fabric, taker(3, kPulled), &source, 0, kPulled, targets,
                                          done)
               .status());
      await(done);
    }
    must(job->detector->wait(soon()));
    EXPECT_EQ(ran.load(), root + 1);
    EXPECT_EQ(good_buffers.load(), 2 * (root + 1));
    must(job->all->barrier(soon()));  // all processes check before the next round begins
  }
  EXPECT_EQ(bad_buffers.load(), 0u);
  must(fabric.memory().free(std::move(source)));
  must(fabric.memory().free(std::move(place)));
}

TEST_F(JobTest, CollectivesAgree) {
  const uint32_t size = job->size();
  const auto sum = must(job->all->all_reduce(
      uint64_t{job->me()} + 1, [](uint64_t a, uint64_t b) { return a + b; }, soon()));
  EXPECT_EQ(sum, uint64_t{size} * (size + 1) / 2);
  for (uint32_t root = 0; root < size; ++root) {
    uint64_t value = job->me() == root ? 1000 + root : 0;
    must(job->all->broadcast(value, root, soon()));
    EXPECT_EQ(value, 1000 + root);
  }
}

// Calls that send further calls around the ring of processes: the detector reports termination only
// after the last call has run.
void hand_on(uint64_t left) {
  ++ran;
  if (left == 0) return;
  Fabric& fabric = *running_fabric();
  if (!call(fabric, fabric.thread_of((fabric.rank() + 1) % fabric.size()), [left] {
         hand_on(left - 1);
       }).ok()) {
    std::abort();
  }
}
TEST_F(JobTest, QuiescenceWaitsForTheLastCall) {
  constexpr uint64_t kHops = 50;
  must(call(*job->fabric, job->next(), [] { hand_on(kHops - 1); }));
  must(job->detector->wait(soon()));
  const auto sum = must(job->all->all_reduce(
      ran.load(), [](uint64_t a, uint64_t b) { return a + b; }, soon()));
  EXPECT_EQ(sum, kHops * job->size());
}

TEST_F(JobTest, GlobalMemoryLosesNoUpdate) {
  const auto memory = must(GlobalMemory::create(*job->fabric));
  global_ptr<uint64_t> words;
  if (job->me() == 0) words = must(memory->allocate<uint64_t>(0, 64, soon()));
  must(job->all->broadcast(words, 0, soon()));
  constexpr uint64_t kAdds = 50;
  DistributedLock lock(*memory, words + 1);
  for (uint64_t i = 0; i < kAdds; ++i) {
    static_cast<void>(must(memory->fetch_add(words, 1).wait(soon())));
  }
  for (int i = 0; i < 10; ++i) {
    must(lock.acquire(soon()));
    // Not atomic: only the lock protects this update.
    const uint64_t value = must(memory->rget(words + 2).wait(soon()));
    must(memory->rput(value + 1, words + 2).wait(soon()));
    must(lock.release(soon()));
  }
  must(memory->rput(uint64_t{100} + job->me(), words + 8 + static_cast<int>(job->me()))
           .wait(soon()));
  must(job->all->barrier(soon()));
  EXPECT_EQ(must(memory->load(words).wait(soon())), kAdds * job->size());
  EXPECT_EQ(must(memory->rget(words + 2).wait(soon())), 10u * job->size());
  for (uint32_t rank = 0; rank < job->size(); ++rank) {
    EXPECT_EQ(must(memory->rget(words + 8 + static_cast<int>(rank)).wait(soon())), 100u + rank);
  }
  must(job->all->barrier(soon()));
  if (job->me() == 0) memory->free(words);
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  bool faults = false;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    faults = faults || std::string_view(argv[i]) == "--faults";
    list = list || std::string_view(argv[i]) == "--gtest_list_tests";
    if (std::string_view(argv[i]) == "--trust-bytes") setenv("CARIAMA_VERBS_IN_ORDER", "within", 1);
  }
  if (!list) {
    if (const auto code = cariama::launch_self({.processes = 2}, argc, argv)) return *code;
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (!list) ::testing::AddGlobalTestEnvironment(new cariama::JobOfTheTests(faults));
  return RUN_ALL_TESTS();
}
