// Broadcasts to a failed process: every form reports the failure to the caller.
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "gtest/gtest.h"
#include "riutils/broadcast.h"
#include "riutils/internal/broadcast_wire.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;
using testing::transport_case;

TEST(BroadcastFaults, ALostChildIsReportedByEveryForm) {
  LocalJobOptions options{.processes = 3, .transport = transport_case("fault_shm")};
  options.finalize = false;
  LocalJob job(options);
  static std::atomic<bool> finished;
  finished = false;
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      must(call(fabric, 1, [] {}));
      must(call(fabric, 2, [] {}));
      job.faults(0)->lose_peer(fabric.label(2));
      // The loss is known once an operation has failed.
      Synchronizer never;
      const CallResult lost_call = call<RemoteNotify>(
          fabric, 2, [] {}, never);
      EXPECT_TRUE(
          absl::IsUnavailable(lost_call.ok() ? fabric.wait(never, soon()) : lost_call.status()));
      EXPECT_TRUE(fabric.wait_polling([&] { return !fabric.peer_status(2).ok(); }, soon()));
      const auto nothing = [] {};
      Synchronizer sent, run;
      const CallResult plain = broadcast(fabric, nothing);
      EXPECT_TRUE(absl::IsUnavailable(plain.status())) << plain.status();
      const CallResult local = broadcast<LocalNotify>(fabric, nothing, sent);
      EXPECT_TRUE(absl::IsUnavailable(local.status())) << local.status();
      EXPECT_FALSE(sent.done());
      const CallResult remote = broadcast<RemoteNotify>(fabric, nothing, run);
      EXPECT_TRUE(remote.ok()) << remote.status();
      EXPECT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      EXPECT_TRUE(absl::IsUnavailable(run.status())) << run.status();
      finished = true;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
  });
}

// The tree from rank 0: 4 is the parent of 6, so the failure is two steps below the root.
TEST(BroadcastFaults, ALossDeepInTheTreeReachesTheCallerUnchanged) {
  LocalJobOptions options{.processes = 8, .transport = transport_case("fault_shm")};
  options.finalize = false;
  LocalJob job(options);
  static std::atomic<bool> lost;
  static std::atomic<bool> finished;
  lost = finished = false;
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 4) {
      must(call(fabric, 6, [] {}));
      job.faults(4)->lose_peer(fabric.label(6));
      Synchronizer never;
      const CallResult lost_call = call<RemoteNotify>(
          fabric, 6, [] {}, never);
      EXPECT_TRUE(
          absl::IsUnavailable(lost_call.ok() ? fabric.wait(never, soon()) : lost_call.status()));
      EXPECT_TRUE(fabric.wait_polling([&] { return !fabric.peer_status(6).ok(); }, soon()));
      lost = true;
    }
    if (fabric.rank() == 0) {
      EXPECT_TRUE(fabric.wait_polling([] { return lost.load(); }, soon()));
      Synchronizer run;
      EXPECT_TRUE(broadcast<RemoteNotify>(
          fabric, [] {}, run));
      EXPECT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
      EXPECT_TRUE(absl::IsUnavailable(run.status())) << run.status();
      EXPECT_NE(run.status().message().find(fabric.label(6)), std::string::npos) << run.status();
      EXPECT_EQ(run.status().message().find("threw"), std::string::npos) << run.status();
      finished = true;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
  });
}

TEST(BroadcastFaults, ABufferWithoutMemoryIsRefused) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    const auto function = [](void*, uint64_t) {};
    Synchronizer done;
    const std::vector<RemoteMemoryLocator> targets(1);
    for (const CallResult& refused :
         {broadcast_buffer<RemoteNotify>(fabric, function, nullptr, 0, 8, done),
          broadcast_buffer<LocalNotify>(fabric, function, nullptr, 0, 8, done),
          broadcast_buffer<RemoteNotify>(fabric, function, nullptr, 0, 8, targets, done)}) {
      EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    }
    EXPECT_FALSE(done.done());
  });
}

TEST(BroadcastFaults, AnAnswerThatNamesNoErrorIsMalformed) {
  using internal::decode_broadcast_answer;
  const auto decode = [](std::string_view bytes) {
    return decode_broadcast_answer(std::as_bytes(std::span(bytes)));
  };
  const absl::Status lost = make_error(absl::StatusCode::kAborted, ErrorScope::kPeer, "lost");
  const absl::Status arrived = decode(internal::encode_broadcast_answer(lost, 3));
  EXPECT_TRUE(absl::IsAborted(arrived)) << arrived;
  EXPECT_EQ(arrived.message(), "los");
  EXPECT_EQ(error_scope(arrived), ErrorScope::kPeer);
  EXPECT_TRUE(decode({}).ok());
  using std::string_view_literals::operator""sv;
  for (const std::string_view bytes : {"\x05"sv, "\x00\x01text"sv, "\x11\x01"sv, "\x05\x05"sv}) {
    EXPECT_TRUE(absl::IsDataLoss(decode(bytes))) << decode(bytes);
  }
}

}  // namespace
}  // namespace cariama
