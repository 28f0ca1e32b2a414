// Answer slots: if a thread polls the slot, the callee stores the result there; otherwise it must
// send a message.
#include "dsfabric/peers/answer_slots.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dsfabric/calls/pending_calls.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace internal {
namespace {

class Nothing final : public PendingCall {
 public:
  void complete(const absl::Status&, std::span<const std::byte>) override {}
};

class AnswerSlotsTest : public ::testing::Test {
 protected:
  [[nodiscard]] uint64_t add() { return calls_.add(1, std::make_unique<Nothing>(), &slots_); }
  // Stores a result as the process that ran the call of that handle. Returns false if a message is
  // needed.
  [[nodiscard]] bool answer(uint64_t handle, const std::string& result) {
    return memory_[PendingCalls::slot_of(handle) - 1].answer(handle,
                                                             std::as_bytes(std::span(result)));
  }
  // Takes the results that have arrived, each as text, and completes their calls.
  [[nodiscard]] std::vector<std::string> take(PollerId poller = nullptr) {
    std::vector<std::string> results;
    slots_.take(poller, [&](const AnswerSlots::Answer& answer) {
      results.emplace_back(reinterpret_cast<const char*>(answer.result.data()), answer.bytes);
      EXPECT_NE(calls_.take(answer.handle, 1), nullptr);
    });
    return results;
  }

  std::array<AnswerSlot, AnswerSlots::kCount> memory_;
  AnswerSlots slots_{memory_.data(), false};
  PendingCalls calls_;
};

TEST_F(AnswerSlotsTest, OnlyPolledSlotsAreAnswered) {
  const uint64_t handle = add();
  EXPECT_FALSE(answer(handle, "nobody"));
  EXPECT_TRUE(take().empty());
  slots_.start_polling(this_poller());
  EXPECT_TRUE(answer(handle, "somebody"));
  EXPECT_EQ(take(this_poller()), std::vector<std::string>{"somebody"});
  EXPECT_FALSE(calls_.any_in_slots());
}

TEST_F(AnswerSlotsTest, AfterPollingStopsEarlierAnswersCanBeTaken) {
  const uint64_t before = add();
  const uint64_t after = add();
  slots_.start_polling(this_poller());
  EXPECT_TRUE(answer(before, "before"));
  slots_.stop_polling(this_poller());
  EXPECT_FALSE(answer(after, "after"));
  EXPECT_EQ(take(), std::vector<std::string>{"before"});
}

TEST_F(AnswerSlotsTest, EachThreadPollsItsOwnSlots) {
  uint64_t others = 0;
  std::thread([&] { others = add(); }).join();
  const uint64_t own = add();
  slots_.start_polling(this_poller());
  EXPECT_FALSE(answer(others, "others"));
  EXPECT_TRUE(answer(own, "own"));
  EXPECT_EQ(take(this_poller()), std::vector<std::string>{"own"});
}

TEST_F(AnswerSlotsTest, ALongResultDoesNotFit) {
  const uint64_t handle = add();
  slots_.start_polling(this_poller());
  EXPECT_FALSE(answer(handle, std::string(AnswerSlot::kMostBytes + 1, 'x')));
  EXPECT_TRUE(answer(handle, std::string(AnswerSlot::kMostBytes, 'x')));
  EXPECT_EQ(take(), std::vector<std::string>{std::string(AnswerSlot::kMostBytes, 'x')});
}

TEST_F(AnswerSlotsTest, WithoutAFreeSlotAHandleNamesNone) {
  std::vector<uint64_t> handles;
  for (uint32_t i = 0; i < AnswerSlots::kCount; ++i) {
    handles.push_back(add());
    EXPECT_EQ(PendingCalls::slot_of(handles.back()), i + 1);
  }
  EXPECT_EQ(PendingCalls::slot_of(add()), 0u);
  // A slot is free again once its call has been taken, whether it was answered by a message or
  // never sent.
  EXPECT_NE(calls_.take(handles[5], 1), nullptr);
  EXPECT_EQ(PendingCalls::slot_of(add()), 6u);
}

// A dead process may still be writing to its slots.
TEST_F(AnswerSlotsTest, SlotsOfAFailedPeerAreNotReused) {
  static_cast<void>(add());
  PendingCalls::Cursor from;
  EXPECT_NE(calls_.take_failed(1, from), nullptr);
  EXPECT_EQ(calls_.take_failed(1, from), nullptr);
  EXPECT_FALSE(calls_.any_in_slots());
  EXPECT_EQ(PendingCalls::slot_of(add()), 2u);
}

// The destination lives: it may still run the call and store the result, which must be taken.
TEST_F(AnswerSlotsTest, ACallWhoseRouterFailedKeepsItsSlot) {
  const uint64_t handle = calls_.add(1, std::make_unique<Nothing>(), &slots_, 2);
  slots_.start_polling(this_poller());
  PendingCalls::Cursor from;
  EXPECT_NE(calls_.take_routed(1, 2, from), nullptr);
  EXPECT_TRUE(calls_.any_in_slots());
  EXPECT_EQ(PendingCalls::slot_of(add()), 2u);
  EXPECT_TRUE(answer(handle, "late"));
  size_t taken = 0;
  slots_.take(nullptr, [&](const AnswerSlots::Answer& answer) {
    ++taken;
    EXPECT_EQ(answer.handle, handle);
    EXPECT_EQ(calls_.take(answer.handle, 1), nullptr);
  });
  EXPECT_EQ(taken, 1u);
}

TEST_F(AnswerSlotsTest, DataWrittenByThePeerIsValidated) {
  const uint64_t handle = add();
  slots_.start_polling(this_poller());
  AnswerSlot& slot = memory_[PendingCalls::slot_of(handle) - 1];
  slot.handle = handle + 1;
  slot.bytes = 1 << 20;
  slot.state = AnswerSlot::kAnswered;
  size_t count = 0;
  slots_.take(nullptr, [&](const AnswerSlots::Answer& answer) {
    ++count;
    EXPECT_EQ(answer.handle, 0u);
    EXPECT_EQ(answer.bytes, 0u);
  });
  EXPECT_EQ(count, 1u);
}

// One thread answers while another starts and stops polling. Each result arrives once: in the slot,
// or in `message`, which represents a message in this test. The operating system chooses the
// schedule. answer_slots_interleavings_test.cc explores every schedule of the same code.
TEST_F(AnswerSlotsTest, NoResultIsLostBetweenPolls) {
  // Beside other programs, a call takes as long as a thread waits for a core.
  constexpr uint64_t kCalls = 1'000;
  std::atomic<uint64_t> handle{0};
  std::atomic<uint64_t> message{0};
  std::thread answering([&] {
    uint64_t last = 0;
    for (uint64_t i = 0; i < kCalls; ++i) {
      uint64_t now = 0;
      while ((now = handle.load(std::memory_order_acquire)) == last) std::this_thread::yield();
      last = now;
      if (!answer(now, std::to_string(now))) message.store(now, std::memory_order_release);
    }
  });
  for (uint64_t i = 0; i < kCalls; ++i) {
    const uint64_t mine = add();
    handle.store(mine, std::memory_order_release);
    bool came = false;
    for (uint64_t round = 0; !came; ++round) {
      if ((i + round) % 3 == 0) {
        slots_.stop_polling(this_poller());
      } else {
        slots_.start_polling(this_poller());
      }
      for (const std::string& result : take(this_poller())) {
        EXPECT_EQ(result, std::to_string(mine));
        came = true;
      }
      if (message.load(std::memory_order_acquire) == mine) {
        EXPECT_FALSE(came);
        EXPECT_NE(calls_.take(mine, 1), nullptr);
        came = true;
      }
      if (!came) std::this_thread::yield();
    }
  }
  answering.join();
}

}  // namespace
}  // namespace internal

namespace testing {
namespace {

// Without service threads all waiting threads poll: every short result comes into its slot; every
// long one and every exception comes by a message.
TEST(AnswerTest, ShortResultsCostNoMessage) {
  FabricOptions options;
  options.service_threads = 0;
  run_process_job(2, options, [](Fabric& fabric) {
    static std::atomic<bool> finished;
    constexpr uint64_t kCalls = 100;
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return finished.load(); }, soon()));
      return;
    }
    const auto sends_there = [&] {  // its answer is short, so it needs no message
      return must(
          async_call(fabric, 1, [] { return running_fabric()->statistics().sends; }).get(soon()));
    };
    static_cast<void>(sends_there());  // connects; this call had no slot
    const uint64_t before = sends_there();
    for (uint64_t i = 0; i < kCalls; ++i) {
      uint64_t result = 0;
      Synchronizer done;
      must(call_return(
          fabric, 1, [](uint64_t x) { return x * x; }, result, done, i));
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(result, i * i);
    }
    EXPECT_EQ(sends_there(), before);
    // the serialized length takes 8 more bytes
    for (size_t size : {size_t{39}, size_t{41}, size_t{200}}) {
      EXPECT_EQ(must(async_call(
                         fabric, 1, [](size_t size) { return std::string(size, 'a'); }, size)
                         .get(soon())),
                std::string(size, 'a'));
    }
    const auto thrown = async_call(fabric, 1, []() -> int {
                          throw std::runtime_error("no answer today");
                        }).get(soon());
    EXPECT_TRUE(absl::IsInternal(thrown.status())) << thrown.status();
    EXPECT_EQ(sends_there(), before + 3);
    must(call(fabric, 1, [] { finished = true; }));
  });
}

// More calls are pending than there are slots, and the waiting threads sleep: only an answer can
// wake them.
TEST(AnswerTest, ManyAtOnceAndSleepers) {
  FabricOptions options;
  options.threads = 2;
  options.heartbeat = std::chrono::hours(1);
  run_process_job(2, options, [](Fabric& fabric) {
    const auto ask = [&](uint64_t salt) {
      for (uint64_t round = 0; round < 20; ++round) {
        std::vector<Future<uint64_t>> results;
        for (uint64_t i = 0; i < 3 * internal::AnswerSlots::kCount; ++i) {
          results.push_back(async_call(
              fabric, 2 * (1 - fabric.rank()) + static_cast<uint32_t>(i % 2),
              [](uint64_t x) {
                // Sometimes the caller has time to fall asleep.
                if (x % 97 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                return x + 1;
              },
              salt + round * 1000 + i));
        }
        for (uint64_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(must(results[i].get(soon())), salt + round * 1000 + i + 1);
        }
      }
    };
    static std::atomic<int> finished;
    const auto tell_and_stay = [&] {
      for (uint32_t thread : {0u, 2u}) must(call(fabric, thread, [] { ++finished; }));
      EXPECT_TRUE(fabric.wait([] { return finished.load() == 4; }, soon()));
    };
    std::thread other([&] {
      auto place = must(fabric.init_thread(1));
      ask(1'000'000);
      tell_and_stay();
    });
    ask(5);
    tell_and_stay();
    other.join();
  });
}

// The calling thread waits for another event, or blocks; another thread waits for the result,
// outside of the fabric.
TEST(AnswerTest, AnotherThreadWaitsForTheResult) {
  run_process_job(2, {}, [](Fabric& fabric) {
    static std::atomic<bool> finished;
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return finished.load(); }, soon()));
      return;
    }
    EXPECT_EQ(must(async_call(fabric, 1, [] { return 1; }).get(soon())), 1);  // connects
    for (int i = 0; i < 50; ++i) {
      int result = 0;
      Synchronizer done;
      must(call_return(
          fabric, 1, [](int x) { return x + 1; }, result, done, i));
      std::atomic<bool> told{false};
      std::thread waits([&] {
        EXPECT_TRUE(wait_until([&] { return done.done(); }, soon()));
        EXPECT_EQ(result, i + 1);
        told = true;
        fabric.wake(0);  // a plain store does not wake the waiting thread
      });
      // Every other time only the service thread polls.
      const bool told_here = i % 2 != 0 || fabric.wait([&] { return told.load(); }, soon());
      EXPECT_TRUE(told_here);
      waits.join();
    }
    must(call(fabric, 1, [] { finished = true; }));
  });
}

}  // namespace
}  // namespace testing
}  // namespace cariama
