// Two connected verbs queue pairs of one process, for tests of properties of verbs. The contract
// suite tests the properties that every transport must have.
#ifndef CARIAMA_TESTS_DTUTILS_VERBS_VERBS_PAIR_H_
#define CARIAMA_TESTS_DTUTILS_VERBS_VERBS_PAIR_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/verbs/verbs_device.h"
#include "gtest/gtest.h"

namespace cariama::testing {

template <typename T>
[[nodiscard]] T value_of(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}

// Registered memory of this process.
struct VerbsBuffer {
  VerbsBuffer(ProtectionDomain& domain, size_t bytes)
      : bytes(bytes),
        region(value_of(domain.register_memory({.address = this->bytes.data(), .length = bytes},
                                               Access::kAll))) {}
  [[nodiscard]] Segment segment(size_t offset, size_t length) {
    return {bytes.data() + offset, static_cast<uint32_t>(length), region->local_key()};
  }

  std::vector<std::byte> bytes;
  std::shared_ptr<MemoryRegion> region;
};

// Takes `count` completions, or fewer if ten seconds pass without them. Yields while it polls,
// because in a guest with few processors soft-RoCE runs in kernel threads.
inline std::vector<Completion> take_completions(CompletionQueue& queue, size_t count) {
  std::vector<Completion> taken(count);
  size_t got = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (got < count && std::chrono::steady_clock::now() < deadline) {
    const size_t more = queue.poll(std::span(taken).subspan(got));
    if (more == 0) std::this_thread::yield();
    got += more;
  }
  taken.resize(got);
  return taken;
}

// Returns true if the queue is empty and stays empty for 20 ms.
inline bool stays_empty(CompletionQueue& queue) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Completion completion;
  return queue.poll({&completion, 1}) == 0;
}

struct VerbsEnd {
  std::shared_ptr<CompletionQueue> sends;
  std::shared_ptr<CompletionQueue> receives;
  std::unique_ptr<QueuePair> pair;
};

class VerbsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = open_verbs_device({});
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
    domain_ = value_of(device_->create_domain());
  }

  [[nodiscard]] VerbsEnd make_end(QueuePairOptions options = {.send_depth = 16,
                                                              .receive_depth = 16}) {
    VerbsEnd end;
    if (!options.send_completions) {
      options.send_completions = value_of(domain_->create_completion_queue({.depth = 64}));
    }
    if (!options.receive_completions) {
      options.receive_completions = value_of(domain_->create_completion_queue({.depth = 64}));
    }
    end.sends = options.send_completions;
    end.receives = options.receive_completions;
    end.pair = value_of(domain_->create_queue_pair(options));
    return end;
  }

  static void connect(VerbsEnd& near, VerbsEnd& far, ConnectOptions options = {}) {
    options.peer = "the far end";
    const absl::Status one = near.pair->connect(far.pair->address(), options);
    ASSERT_TRUE(one.ok()) << one;
    options.peer = "the near end";
    const absl::Status two = far.pair->connect(near.pair->address(), options);
    ASSERT_TRUE(two.ok()) << two;
  }

  static void repair(VerbsEnd& near, VerbsEnd& far) {
    const absl::Status one = near.pair->repair();
    ASSERT_TRUE(one.ok()) << one;
    const absl::Status two = far.pair->repair();
    ASSERT_TRUE(two.ok()) << two;
  }

  // Checks that a WRITE of `length` bytes by `near` into memory of the test arrives completely.
  void expect_write_arrives(VerbsEnd& near, size_t length, int seed) {
    VerbsBuffer from(*domain_, length);
    VerbsBuffer to(*domain_, length);
    for (size_t i = 0; i < length; ++i) {
      from.bytes[i] = static_cast<std::byte>(static_cast<size_t>(seed) * 31 + i * 7 + i / 251);
    }
    const Segment segment = from.segment(0, length);
    const PostResult posted =
        near.pair->post_send(WorkRequest{.id = 4711,
                                         .opcode = Opcode::kWrite,
                                         .flags = kSignaled,
                                         .segment_count = 1,
                                         .segments = &segment,
                                         .remote_address = to.region->locator().address,
                                         .remote_key = to.region->remote_key()});
    ASSERT_TRUE(posted.ok()) << to_status(posted, near.pair->peer());
    const std::vector<Completion> completions = take_completions(*near.sends, 1);
    ASSERT_EQ(completions.size(), 1U);
    EXPECT_EQ(completions[0].id, 4711U);
    EXPECT_TRUE(to_status(completions[0], near.pair->peer()).ok());
    EXPECT_TRUE(from.bytes == to.bytes);
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<ProtectionDomain> domain_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_VERBS_VERBS_PAIR_H_
