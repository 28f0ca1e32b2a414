// The conditions under which a thread may sleep if it cannot arm the doorbell of a ringer.
// (contract/ covers the doorbells that can be armed, on every transport.)
#include "dtutils/remote_doorbell.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"

namespace cariama {
namespace {

class SleeperWithoutPath final : public RemoteSleeper {
 public:
  explicit SleeperWithoutPath(absl::Status why) : RemoteSleeper({}), why_(std::move(why)) {}

 private:
  absl::StatusOr<Transmitter*> path() override { return why_; }
  RDMAMemory& scratch() override { return scratch_; }
  uint64_t scratch_offset() const override { return 0; }
  uint64_t consumed() const override { return 0; }

  absl::Status why_;
  RDMAMemory scratch_;
};

// The ringer does not know of the sleeper, and would not wake it.
TEST(RemoteSleeper, StaysAwakeIfItHasNoTransmitter) {
  SleeperWithoutPath sleeper(absl::ResourceExhaustedError("too many transmitters"));
  sleeper.arm();
  EXPECT_TRUE(sleeper.recheck());
}
class SleeperWithoutMemory final : public RemoteSleeper {
 public:
  SleeperWithoutMemory() : RemoteSleeper({}) {}

 private:
  absl::StatusOr<Transmitter*> path() override { throw std::bad_alloc(); }
  RDMAMemory& scratch() override { return scratch_; }
  uint64_t scratch_offset() const override { return 0; }
  uint64_t consumed() const override { return 0; }

  RDMAMemory scratch_;
};

// An exception would leave the calls of the worker in use by this thread.
TEST(RemoteSleeper, StaysAwakeIfItHasNoMemory) {
  SleeperWithoutMemory sleeper;
  for (int i = 0; i < 2; ++i) {
    EXPECT_NO_THROW(sleeper.arm());
    EXPECT_TRUE(sleeper.recheck());
  }
}
TEST(RemoteSleeper, SleepsIfTheRingerCannotSendEither) {
  SleeperWithoutPath sleeper(absl::UnavailableError("the connection has failed"));
  sleeper.arm();
  EXPECT_FALSE(sleeper.recheck());
}

}  // namespace
}  // namespace cariama
