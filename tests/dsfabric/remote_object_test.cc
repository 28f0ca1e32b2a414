#include "dsfabric/remote_object.h"

#include <cstdint>
#include <memory>
#include <span>

#include "dsfabric/fabric/fabric_core.h"
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
    EXPECT_TRUE(object_.expect(0).ok());
  }

 private:
  RemoteObject<Synchronizer>& object_;
};

TEST(RemoteObject, FailureFromBeforeAResetDoesNotEndALaterOperation) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    auto object = RemoteObject<Synchronizer>::create(fabric);
    ASSERT_TRUE(object.ok()) << object.status();
    internal::Replies& replies = fabric.core().replies();
    static_cast<void>(replies.pending().add(0, std::make_unique<ResettingCall>(*object)));
    ASSERT_TRUE(object->expect(0).ok());
    object->transmitted();
    replies.fail(0, absl::UnavailableError("the peer is dead"));
    EXPECT_EQ(object->operations_left(), 1u);
    EXPECT_TRUE(object->status().ok()) << object->status();
    EXPECT_TRUE(object->forget());
  });
}

}  // namespace
}  // namespace cariama::testing
