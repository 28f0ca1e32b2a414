#include "dsfabric/remote_object.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "dsfabric/call_encoding.h"
#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/fabric_parts.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

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

}  // namespace
}  // namespace cariama::testing
