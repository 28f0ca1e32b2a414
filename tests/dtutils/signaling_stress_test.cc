// The accounting of a shared send queue with real threads and real atomics, mainly for
// ThreadSanitizer.
//
// The model device reads a buffer as late as possible: when a completion that covers its operation
// is polled. Threads overwrite a buffer as soon as it is reported free. So a buffer that is
// reported free too early is a data race, which ThreadSanitizer reports, and has wrong contents,
// which the device finds.
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/memory.h"
#include "dtutils/signaling.h"
#include "dtutils/wait.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

template <typename T>
using Atomic = std::atomic<T>;
using Signaling = internal::Signaling<Atomic>;
using internal::Proof;

struct Message {
  std::array<uint64_t, 4> words{};

  static Message of(uint64_t name) { return {{name, name * 3, ~name, name ^ 0x5555}}; }
  bool operator==(const Message&) const = default;
};

// An in-order queue. Its mutex orders posts, as QueuePair's contract promises.
class ModelDevice {
 public:
  explicit ModelDevice(uint64_t depth) : depth_(depth) {}

  bool post(const Message* buffer, uint64_t name, const Proof* proof) {
    const std::lock_guard lock(mutex_);
    if (queue_.size() == depth_) {
      ++overflows_;
      return false;
    }
    queue_.push_back({buffer, name, proof != nullptr ? std::optional(*proof) : std::nullopt});
    ++posted_;
    return true;
  }

  // Takes the next completion, and executes all operations that it covers.
  std::optional<Proof> poll() {
    const std::lock_guard lock(mutex_);
    size_t signaled = 0;
    while (signaled < queue_.size() && !queue_[signaled].proof) ++signaled;
    if (signaled == queue_.size()) return std::nullopt;
    const std::optional<Proof> proof = queue_[signaled].proof;
    for (size_t i = 0; i <= signaled; ++i) {
      const Operation& operation = queue_.front();
      if (operation.buffer != nullptr && *operation.buffer != Message::of(operation.name)) {
        ++corrupted_;
      }
      queue_.pop_front();
    }
    return proof;
  }

  uint64_t posted() const { return posted_; }
  uint64_t overflows() const { return overflows_; }
  uint64_t corrupted() const { return corrupted_; }
  size_t queued() const { return queue_.size(); }

 private:
  struct Operation {
    const Message* buffer;
    uint64_t name;
    std::optional<Proof> proof;
  };
  const uint64_t depth_;
  std::mutex mutex_;
  std::deque<Operation> queue_;
  uint64_t posted_ = 0;
  uint64_t overflows_ = 0;
  uint64_t corrupted_ = 0;
};

struct Shape {
  uint64_t depth;
  size_t threads;
  uint64_t operations;  // of each thread
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.threads << "_threads_depth_" << shape.depth;
}

class SignalingStress : public ::testing::TestWithParam<Shape> {
 protected:
  // The work of one thread: posts, polls and gives back credits, at random.
  void run(Signaling& signaling, ModelDevice& device, FlushCell& cell, uint64_t thread) {
    constexpr size_t kBuffers = 3;
    struct Buffer {
      Message message;
      RDMAMemory memory;
    };
    std::array<Buffer, kBuffers> buffers;
    for (Buffer& buffer : buffers) {
      buffer.memory =
          RDMAMemory(reinterpret_cast<std::byte*>(&buffer.message), sizeof(Message), nullptr);
    }
    Signaling::Lane lane;
    signaling.add_lane();
    std::minstd_rand random(static_cast<uint32_t>(thread + 1));
    const auto one_in = [&](uint32_t n) { return random() % n == 0; };
    const auto progress = [&] {
      while (const std::optional<Proof> proof = device.poll()) {
        if (one_in(8)) std::this_thread::yield();
        signaling.retire(*proof, cell.flushed);
      }
    };
    const auto post = [&](const Message* message, uint64_t name, bool signaled) {
      if (lane.credits == 0 && !signaling.acquire(lane)) {
        const bool acquired = wait_until(
            [&] {
              progress();
              return signaling.acquire(lane);
            },
            deadline_after(std::chrono::seconds(60)));
        ASSERT_TRUE(acquired) << "the queue stays full, and no completion arrives";
      }
      const bool refused = one_in(50);  // like an invalid request
      const bool posted = signaling.post(lane, signaled, [&](const Proof* proof) {
        if (one_in(16)) std::this_thread::yield();
        const bool taken = !refused && device.post(message, name, proof);
        if (one_in(16)) std::this_thread::yield();
        return taken;
      });
      ASSERT_NE(posted, refused) << "the device refused a request because its queue is full";
      if (refused) post_again_ = true;
    };
    for (uint64_t i = 0; i < operations(); ++i) {
      Buffer& buffer = buffers[i % kBuffers];
      if (!buffer.memory.is_free()) {
        // No later signaled operation may follow that frees the buffer: flush, as
        // Transmitter::acquire does.
        signal_all(signaling, device, lane, progress);
        ASSERT_TRUE(wait_until(
            [&] {
              progress();
              return buffer.memory.is_free();
            },
            deadline_after(std::chrono::seconds(60))))
            << "a buffer was never freed";
      }
      const uint64_t name = thread << 32 | i;
      buffer.message = Message::of(name);
      const uint64_t before = lane.posted.load(std::memory_order_relaxed);
      post(&buffer.message, name, one_in(5));
      if (::testing::Test::HasFatalFailure()) return;
      if (lane.posted.load(std::memory_order_relaxed) != before) {
        buffer.memory.set_last_use(&cell, signaling.tag());
      }
      if (one_in(10)) progress();
      if (one_in(100)) signaling.give_back(lane);
    }
    signal_all(signaling, device, lane, progress);
    for (Buffer& buffer : buffers) {
      ASSERT_TRUE(wait_until(
          [&] {
            progress();
            return buffer.memory.is_free();
          },
          deadline_after(std::chrono::seconds(60))));
    }
    signaling.give_back(lane);
  }

  template <typename Progress>
  void signal_all(Signaling& signaling, ModelDevice& device, Signaling::Lane& lane,
                  const Progress& progress) {
    if (lane.credits == 0 && !signaling.acquire(lane)) {
      ASSERT_TRUE(wait_until(
          [&] {
            progress();
            return signaling.acquire(lane);
          },
          deadline_after(std::chrono::seconds(60))))
          << "the queue stays full, and no completion arrives";
    }
    ASSERT_TRUE(signaling.post(lane, true,
                               [&](const Proof* proof) { return device.post(nullptr, 0, proof); }));
  }

  static uint64_t operations() { return GetParam().operations; }

  std::atomic<bool> post_again_{false};
};

TEST_P(SignalingStress, KeepsEveryInvariant) {
  const Shape shape = GetParam();
  Signaling signaling(shape.depth);
  ModelDevice device(shape.depth);
  FlushCell cell;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < shape.threads; ++i) {
    threads.emplace_back([&, i] { run(signaling, device, cell, i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device.overflows(), 0U);
  EXPECT_EQ(device.corrupted(), 0U);
  EXPECT_EQ(device.queued(), 0U);  // each thread ended with signal_all()
  EXPECT_TRUE(post_again_) << "no request was refused: the test does not cover refusals";
  EXPECT_GE(device.posted(), shape.threads * shape.operations * 9 / 10);
  // Every credit is back: one lane can take batches until it has taken the whole depth.
  Signaling::Lane lane;
  uint64_t credits = 0;
  while (signaling.acquire(lane)) credits += std::exchange(lane.credits, 0);
  EXPECT_EQ(credits, shape.depth);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SignalingStress,
                         ::testing::Values(Shape{1, 2, 10'000}, Shape{1, 4, 3000},
                                           Shape{2, 2, 10'000}, Shape{3, 3, 10'000},
                                           Shape{4, 16, 2000}, Shape{8, 1, 10'000},
                                           Shape{16, 4, 10'000}, Shape{64, 3, 20'000},
                                           Shape{1024, 2, 50'000}, Shape{1024, 16, 5000}),
                         ::testing::PrintToStringParamName());

// A bound that the proof needs: the credits that idle lanes can hold leave room in a queue of any
// depth.
TEST(Signaling, LanesNeverKeepTheWholeQueue) {
  for (uint64_t depth = 1; depth <= 100'000; depth += depth < 2000 ? 1 : 997) {
    uint64_t lane_credits = 0;
    for (uint64_t lane = 1; lane <= 64; ++lane) {
      const uint64_t batch = internal::batch_size(depth, lane);
      ASSERT_GE(batch, 1U);
      if (batch > 1) lane_credits += batch;  // a batch of one credit is spent immediately
    }
    ASSERT_LT(lane_credits, depth);
    ASSERT_LE(lane_credits, depth * 72 / 100 + 1);
  }
}

}  // namespace
}  // namespace cariama
