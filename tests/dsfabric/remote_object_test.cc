#include "dsfabric/remote_object.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dsfabric/call_encoding.h"
#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dtutils/internal/peer_remedy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// Resets the object while the failure of a peer is being reported, before that report reaches the
// object's own operation.
class ResettingCall final : public internal::PendingCall {
 public:
  explicit ResettingCall(RemoteObject<Synchronizer>& object) : object_(object) {}
  void complete(const absl::Status&, std::span<const std::byte>) override {
    EXPECT_TRUE(object_.done());
    object_.reset();
    EXPECT_TRUE(internal::RemoteObjectAccess::expect(object_, 0).ok());
  }

 private:
  RemoteObject<Synchronizer>& object_;
};

TEST(RemoteObject, FailureFromBeforeAResetDoesNotEndALaterOperation) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    auto object = RemoteObject<Synchronizer>::create(fabric);
    ASSERT_TRUE(object.ok()) << object.status();
    internal::Answers& answers = internal::answers_of(fabric);
    static_cast<void>(answers.pending().add(0, std::make_unique<ResettingCall>(*object)));
    const auto place = internal::RemoteObjectAccess::expect(*object, 0);
    ASSERT_TRUE(place.ok()) << place.status();
    // The process that ran the call writes its outcome.
    std::atomic_ref(*reinterpret_cast<uint64_t*>(place->handle))
        .store(1 + static_cast<uint64_t>(CallOutcome::kDone), std::memory_order_release);
    answers.fail(0, absl::UnavailableError("the peer is dead"));
    EXPECT_EQ(object->operations_left(), 1u);
    EXPECT_TRUE(object->status().ok()) << object->status();
    EXPECT_TRUE(internal::RemoteObjectAccess::forget(*object));
  });
}

TEST(RemoteObject, ADeadlineNamesTheProcessesThatAreWaitedFor) {
  LocalJob job({.processes = 3});
  job.run([](Fabric& fabric, uint32_t rank) {
    if (rank != 0) return;
    auto object = RemoteObject<Synchronizer>::create(fabric, 2);
    ASSERT_TRUE(object.ok()) << object.status();
    const auto wait = [&] { return std::string(object->wait(Deadline()).message()); };
    EXPECT_THAT(wait(), HasSubstr("make a call with this object for each of its operations"));
    // Calls that no process runs.
    ASSERT_TRUE(internal::RemoteObjectAccess::expect(*object, 2).ok());
    EXPECT_THAT(wait(), HasSubstr("2 operation(s) not finished in time: calls to rank 2"));
    EXPECT_THAT(wait(), HasSubstr(internal::peer_remedy(internal::PeerRemedy::kSilent)));
    EXPECT_TRUE(internal::RemoteObjectAccess::forget(*object));
  });
}

}  // namespace
}  // namespace cariama::testing
