// The errors of send-based calls name the destination, the limits, the exception.
#include <atomic>
#include <span>
#include <string>
#include <string_view>

#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

class CallErrors : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static LocalJobOptions job_of(uint32_t processes, uint32_t threads = 1) {
    return {.processes = processes,
            .transport = transport_case(GetParam()),
            .fabric = {.threads = threads}};
  }
};

TEST_P(CallErrors, NameTheDestinationAndTheRange) {
  LocalJob job(job_of(2, 2));
  job.run([](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() != 0 || thread != 0) return;
    Synchronizer done;
    const std::byte byte{};
    // Each error names what the caller gave: a thread or a rank.
    const auto text = [](const CallResult& refused) { return refused.status().ToString(); };
    EXPECT_THAT(text(call(fabric, kNoThread, [] {})), HasSubstr("there is no thread 4294967295: "));
    EXPECT_THAT(text(service_call(fabric, kNoRank, [] {})),
                HasSubstr("there is no rank 4294967295: the job has 2 processes, 0 to 1"));
    EXPECT_THAT(text(service_call<RemoteNotify>(
                    fabric, 7, [] {}, done)),
                HasSubstr("there is no rank 7: "));
    EXPECT_THAT(text(call_buffer<Sync>(
                    fabric, 9, [](void*, uint64_t) {}, std::span(&byte, 1))),
                HasSubstr("there is no thread 9: the job has 4 threads, 0 to 3"));
    EXPECT_THAT(fabric.peer_status(5).ToString(), HasSubstr("there is no rank 5: "));
    // A range that leaves its memory.
    RDMAMemory memory = must(fabric.memory().allocate(64));
    for (const uint32_t to : {0u, 2u}) {
      const std::string range = text(call_buffer(
          fabric, to, [](void*, uint64_t) {}, &memory, memory.size() - 8, 9));
      EXPECT_THAT(range, HasSubstr("9 bytes at offset " + std::to_string(memory.size() - 8)));
      EXPECT_THAT(range, HasSubstr("which has " + std::to_string(memory.size()) + " bytes"));
      EXPECT_THAT(text(call_buffer<Sync>(
                      fabric, to, [](void*, uint64_t) {}, nullptr, 0, 9)),
                  HasSubstr("which is nullptr"));
    }
    must(fabric.memory().free(std::move(memory)));
    // Impossible lengths of a buffer that travels with its call do not overflow.
    for (const uint32_t to : {1u, 2u}) {
      for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 39, SIZE_MAX / 2 + 1}) {
        EXPECT_THAT(text(call_buffer(
                        fabric, to, [](void*, uint64_t) {}, std::span(&byte, bytes))),
                    HasSubstr("longer than"))
            << to << ' ' << bytes;
      }
    }
  });
}

// A Future whose deadline passes names the call that it waits for.
TEST_P(CallErrors, AFutureThatIsLateNamesItsCall) {
  LocalJobOptions options = job_of(2, 2);
  LocalJob job(options);
  static std::atomic<bool> go;
  go = false;
  job.run([](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() != 0 || thread != 0) return;
    const auto late = [](const absl::Status& status) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      return std::string(status.message());
    };
    const auto wait_for_go = [] {
      static_cast<void>(running_fabric()->wait_polling([] { return go.load(); }, soon()));
      return 1;
    };
    Future<int> result = async_call(fabric, 3, wait_for_go);
    Future<void> run;
    must(call(
        fabric, 3, [] {}, on_consumed(run)));
    EXPECT_THAT(late(result.get(Deadline::min()).status()),
                HasSubstr("a call to thread 3 of " + fabric.label(1) + " has not completed"));
    EXPECT_THAT(late(run.get(Deadline::min())),
                HasSubstr("a call to thread 3 of " + fabric.label(1) + " has not completed"));
    go = true;
    EXPECT_EQ(must(result.get(soon())), 1);
    must(run.get(soon()));
  });
}

// An exception of any type that the loading of a result throws ends the call.
struct Unloadable {
  void save(ArgumentWriter& archive) const { archive(1); }
  void load(ArgumentReader&) { throw 5; }
  std::string text;
};

TEST_P(CallErrors, AResultWhoseLoadingThrows) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    for (uint32_t to : {0u, 1u}) {
      const auto make = [] { return Unloadable(); };
      Synchronizer done;
      Unloadable result;
      must(call_return(fabric, to, make, result, done));
      for (const absl::Status& status :
           {fabric.wait(done, soon()), async_call(fabric, to, make).get(soon()).status()}) {
        EXPECT_TRUE(absl::IsInternal(status)) << status;
        EXPECT_THAT(status.ToString(), HasSubstr("the result of a call could not be read: int"));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, CallErrors, ::testing::Values("shm", "sim"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace cariama::testing
