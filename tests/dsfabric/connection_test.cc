// One connection: credits, receive units, deferred messages, and the maximum size of a message.
#include "dsfabric/peers/connection.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/fabric.h"
#include "dtutils/error.h"
#include "dtutils/sim/sim_fabric.h"
#include "dtutils/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama::internal {
namespace {

using ::testing::HasSubstr;
using testing::must;
using ::testing::Not;

// A further domain with which an allocator registers its memory.
class WatchedDomain final : public ProtectionDomain {
 public:
  explicit WatchedDomain(std::shared_ptr<ProtectionDomain> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override {
    if (on_registration) on_registration();
    return inner_->register_memory(source, access);
  }
  bool pins_memory() const override { return inner_->pins_memory(); }
  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override {
    return inner_->create_channel();
  }
  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) override {
    return inner_->create_completion_queue(options);
  }
  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions& options) override {
    return inner_->create_shared_receive_queue(options);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) override {
    return inner_->create_queue_pair(options);
  }

  std::function<void()> on_registration;  // called while memory is registered, if set

 private:
  const std::shared_ptr<ProtectionDomain> inner_;
};

// Two ends on a simulated fabric, which advances only when the test requests it.
class ConnectionTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kUnits = 2;
  static constexpr uint32_t kUnitBytes = 512;

  struct End {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<WatchedDomain> watched;
    std::shared_ptr<CompletionChannel> channel;
    std::shared_ptr<CompletionQueue> receives;
    std::shared_ptr<RDMAAllocator> allocator;
    std::unique_ptr<GeneralAllocator> memory;
    std::unique_ptr<UnitBudget> budget;
    std::unique_ptr<Connection> connection;
  };

  explicit ConnectionTest(const ReceiveUnitLimits& limits = {.bytes = kUnitBytes,
                                                             .reserved = kUnits,
                                                             .most = kUnits},
                          uint64_t budget = 0, uint32_t send_depth = 16, const SimOptions& sim = {})
      : sim_(sim) {
    for (End* end : {&near_, &far_}) {
      end->device = sim_.create_endpoint();
      end->domain = must(end->device->create_domain());
      end->watched = std::make_shared<WatchedDomain>(must(end->device->create_domain()));
      end->channel = must(end->domain->create_channel());
      end->receives =
          must(end->domain->create_completion_queue({.depth = 64, .channel = end->channel}));
      end->allocator = must(RDMAAllocator::create({end->domain, end->watched}, kAnyNode,
                                                  {.chunk_bytes = size_t{64} << 10}));
      end->memory = must(GeneralAllocator::create(end->allocator, {}));
      end->budget = std::make_unique<UnitBudget>(budget);
      end->connection =
          must(Connection::create(end == &near_ ? 1 : 0, *end->domain, end->receives, end->channel,
                                  end->allocator, *end->memory, *end->budget, limits, send_depth));
    }
    must(near_.connection->connect(far_.connection->offer(), "the far end",
                                   FabricOptions().ack_timeout));
    must(far_.connection->connect(near_.connection->offer(), "the near end",
                                  FabricOptions().ack_timeout));
  }
  ~ConnectionTest() override {
    near_.connection.reset();
    far_.connection.reset();
  }

  // A message whose only content is a number.
  struct Number {
    uint64_t value;
    [[nodiscard]] OutgoingCall call() const {
      OutgoingCall out;
      out.id = {1};
      out.closure_bytes = sizeof value;
      out.call = &value;
      out.write_call = [](const void* value, std::byte* at) { std::memcpy(at, value, 8); };
      return out;
    }
  };
  Connection::Sent send(uint64_t number) {
    const Number what{number};
    return near_.connection->send({0, 0}, what.call());
  }
  void defer(uint64_t number) {
    const Number what{number};
    EXPECT_EQ(near_.connection->defer({0, 0}, what.call()), 24u);
  }
  // Returns the messages that have arrived, without finishing them.
  std::vector<ArrivedMessage*> arrived() {
    EXPECT_TRUE(sim_.run_until_idle());
    std::vector<ArrivedMessage*> messages;
    Completion completion;
    while (far_.receives->poll(std::span(&completion, 1)) == 1) {
      EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
      messages.push_back(far_.connection->unit_of(completion));
    }
    return messages;
  }
  static uint64_t number_in(const ArrivedMessage& message) {
    uint64_t number = 0;
    std::memcpy(&number, message.bytes + sizeof(MessageHeader) + sizeof(CallHeader), 8);
    return number;
  }
  void finish(const std::vector<ArrivedMessage*>& messages) {
    for (ArrivedMessage* message : messages) EXPECT_TRUE(far_.connection->finish(message));
    EXPECT_TRUE(sim_.run_until_idle());
  }

  SimFabric sim_;
  End near_, far_;
};

// Each sign differs from the one before, also when the number of signs wraps.
TEST_F(ConnectionTest, ASignOfLifeIsNewWhenTheirNumberWraps) {
  near_.connection->set_signs(UINT64_MAX - 3);
  for (int beat = 0; beat < 8; ++beat) {
    static_cast<void>(near_.connection->exchange_signs(true));
    EXPECT_TRUE(sim_.run_until_idle());
    EXPECT_EQ(far_.connection->exchange_signs(false), 0u) << beat;
  }
  for (uint64_t silent = 1; silent < 4; ++silent) {
    EXPECT_EQ(far_.connection->exchange_signs(false), silent);
  }
}

TEST_F(ConnectionTest, AtMostOneMessagePerReceiveUnit) {
  uint64_t next = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = next;
    while (send(next) == Connection::Sent::kPosted) ++next;
    EXPECT_EQ(next - first, kUnits);
    EXPECT_EQ(near_.connection->unfinished(), kUnits);
    const auto messages = arrived();
    ASSERT_EQ(messages.size(), kUnits);
    for (uint32_t i = 0; i < kUnits; ++i) EXPECT_EQ(number_in(*messages[i]), first + i);
    // An arrived message returns no credit before it is finished.
    EXPECT_EQ(send(99), Connection::Sent::kNoCredit);
    finish(messages);
  }
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

// The count of finished messages has 40 bits in the credit word.
TEST_F(ConnectionTest, CreditsReturnWhenTheCountOfMessagesWraps) {
  for (const uint64_t wrap : {uint64_t{1} << 39, uint64_t{1} << 40, uint64_t{1} << 41}) {
    near_.connection->set_messages(wrap - 5);
    far_.connection->set_messages(wrap - 5);
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(send(1), Connection::Sent::kPosted);
      EXPECT_EQ(send(2), Connection::Sent::kPosted);
      EXPECT_EQ(send(3), Connection::Sent::kNoCredit);
      const auto messages = arrived();
      ASSERT_EQ(messages.size(), kUnits);
      finish(messages);
    }
    EXPECT_EQ(send(4), Connection::Sent::kPosted);
    EXPECT_EQ(near_.connection->unfinished(), 1u);
    finish(arrived());
  }
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

// A connection with 2 reserved units, and a budget of 10 more.
class SharedUnitsTest : public ConnectionTest {
 protected:
  static constexpr uint64_t kBudget = 10;
  static constexpr std::chrono::seconds kAfter{10};

  explicit SharedUnitsTest(const SimOptions& sim = {})
      : ConnectionTest({.bytes = kUnitBytes, .reserved = kUnits, .most = 16}, kBudget, 64, sim) {}

  // Sends as many messages as there are credits, and finishes them. Returns their number.
  uint64_t exchange() {
    const uint64_t first = next_;
    while (send(next_) == Connection::Sent::kPosted) ++next_;
    const auto messages = arrived();
    EXPECT_EQ(messages.size(), next_ - first);
    for (uint64_t i = 0; i < messages.size(); ++i) EXPECT_EQ(number_in(*messages[i]), first + i);
    finish(messages);
    return next_ - first;
  }
  void take_all_units() {
    for (int round = 0; round < 8; ++round) exchange();
    ASSERT_EQ(units(), kUnits + kBudget);
  }
  [[nodiscard]] uint64_t units() const { return far_.connection->receive_bytes() / kUnitBytes; }
  // Takes the rest of the receiver's budget. Returns its number of units.
  uint64_t left() {
    uint64_t taken = 0;
    while (far_.budget->take()) ++taken;
    return taken;
  }
  // Calls return_idle_units() at `time`. Returns the number of units that arrive.
  uint64_t returned_at(Deadline time) {
    far_.connection->repeat_credits();
    EXPECT_TRUE(sim_.run_until_idle());
    near_.connection->return_idle_units(time, kAfter);
    EXPECT_TRUE(sim_.run_until_idle());
    uint64_t count = 0;
    Completion completion;
    while (far_.receives->poll(std::span(&completion, 1)) == 1) {
      EXPECT_EQ(completion.kind, CompletionKind::kReceiveImmediate);
      EXPECT_EQ(completion.immediate, Connection::kReturnsUnit);
      EXPECT_TRUE(far_.connection->finish(far_.connection->unit_of(completion), true));
      ++count;
    }
    return count;
  }

  uint64_t next_ = 0;
};

TEST_F(SharedUnitsTest, MessagesTakeUnitsUntilTheBudgetIsUsedUp) {
  EXPECT_EQ(units(), kUnits);
  for (int round = 0; round < 8; ++round) {
    const uint64_t before = units();
    EXPECT_LE(exchange(), before);
    EXPECT_GE(units(), before);
    EXPECT_LE(units(), kUnits + kBudget);
  }
  EXPECT_EQ(units(), kUnits + kBudget);
  EXPECT_EQ(exchange(), kUnits + kBudget);
  EXPECT_EQ(left(), 0u);
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

TEST_F(SharedUnitsTest, WithoutBudgetTheReservedUnitsRemain) {
  EXPECT_EQ(left(), kBudget);
  for (int round = 0; round < 8; ++round) EXPECT_EQ(exchange(), kUnits);
  EXPECT_EQ(units(), kUnits);
}

TEST_F(SharedUnitsTest, AnIdleSenderReturnsTheUnits) {
  take_all_units();
  const Deadline start{};
  EXPECT_EQ(returned_at(start), 0u);  // finds that messages were sent
  EXPECT_EQ(returned_at(start + kAfter - std::chrono::seconds(1)), 0u);
  EXPECT_EQ(returned_at(start + kAfter), kBudget);
  EXPECT_EQ(units(), kUnits);
  EXPECT_EQ(returned_at(start + 2 * kAfter), 0u);
  // The credits for the reserved units are left, and messages take units again.
  EXPECT_EQ(exchange(), kUnits);
  take_all_units();
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

TEST_F(SharedUnitsTest, ASenderWithAnUnfinishedMessageReturnsNoUnits) {
  take_all_units();
  EXPECT_EQ(send(next_++), Connection::Sent::kPosted);
  const auto messages = arrived();
  ASSERT_EQ(messages.size(), 1u);
  const Deadline start{};
  EXPECT_EQ(returned_at(start), 0u);
  EXPECT_EQ(returned_at(start + kAfter), 0u);
  finish(messages);
  EXPECT_EQ(returned_at(start + 2 * kAfter), kBudget);
}

TEST_F(SharedUnitsTest, AFailedConnectionReturnsTheUnits) {
  take_all_units();
  EXPECT_EQ(send(next_++), Connection::Sent::kPosted);
  const auto messages = arrived();
  ASSERT_EQ(messages.size(), 1u);
  const auto drop_flushed = [&] {
    EXPECT_TRUE(sim_.run_until_idle());
    uint64_t count = 0;
    Completion completion;
    while (far_.receives->poll(std::span(&completion, 1)) == 1) {
      EXPECT_EQ(completion.status, CompletionStatus::kFlushed);
      far_.connection->drop(reinterpret_cast<ArrivedMessage*>(completion.id));
      ++count;
    }
    return count;
  };
  far_.connection->cut();
  EXPECT_EQ(drop_flushed(), kUnits + kBudget - 1);
  finish(messages);
  EXPECT_LE(drop_flushed(), 1u);  // a transport may refuse a receive after the failure
  EXPECT_EQ(units(), kUnits);
  EXPECT_EQ(left(), kBudget);
}

// Units whose posting has found no memory are not in the receive queue, so no completion of it
// returns them.
TEST_F(SharedUnitsTest, AFailedConnectionReturnsTheUnitsThatAreNotPosted) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  take_all_units();
  while (send(next_) == Connection::Sent::kPosted) ++next_;
  const auto messages = arrived();
  ASSERT_EQ(messages.size(), kUnits + kBudget);
  for (ArrivedMessage* message : messages) {
    const testing::FailAllocation fail(1);
    EXPECT_FALSE(far_.connection->finish(message));
  }
  EXPECT_EQ(units(), kUnits + kBudget);
  far_.connection->cut();
  EXPECT_EQ(units(), kUnits);
  EXPECT_EQ(left(), kBudget);
}

TEST_F(SharedUnitsTest, ADestroyedConnectionReturnsTheUnits) {
  take_all_units();
  far_.connection.reset();
  EXPECT_EQ(left(), kBudget);
}

// Units may leave in any order, also those that came first.
TEST_F(SharedUnitsTest, EachUnitThatIsNotReservedCanBeRemoved) {
  ReceiveUnits units(*near_.connection, 1, *near_.memory, *near_.budget,
                     {.bytes = kUnitBytes, .reserved = kUnits, .most = 16});
  std::vector<ArrivedMessage*> added;
  while (units.count() < kUnits) added.push_back(must(units.add_reserved()));
  while (units.count() < 8) added.push_back(units.add(units.create_shared()));
  for (const size_t at : {0U, 7U, 3U, 6U, 1U}) EXPECT_TRUE(units.remove(added[at]));
  added.push_back(units.add(units.create_shared()));
  EXPECT_EQ(units.count(), 4u);
  for (const size_t at : {8U, 2U}) EXPECT_TRUE(units.remove(added[at]));
  for (const size_t at : {4U, 5U}) EXPECT_FALSE(units.remove(added[at])) << "reserved";
  EXPECT_EQ(units.count(), kUnits);
}

TEST_F(SharedUnitsTest, AUnitThatIsNotAddedReturnsToTheBudget) {
  ReceiveUnits units(*near_.connection, 1, *near_.memory, *near_.budget,
                     {.bytes = kUnitBytes, .reserved = kUnits, .most = 16});
  for (uint64_t i = 0; i < 2 * kBudget; ++i) EXPECT_TRUE(units.create_shared() != nullptr);
}

// A device that grants a receive queue of 4.
class ShortQueueTest : public SharedUnitsTest {
 protected:
  static constexpr uint32_t kDepth = 4;
  static SimOptions short_queues() {
    SimOptions options;
    options.limits.max_receive_depth = kDepth;
    return options;
  }
  ShortQueueTest() : SharedUnitsTest(short_queues()) {}
};

TEST_F(ShortQueueTest, TakesNoUnitForWhichItHasNoRoom) {
  for (int round = 0; round < 8; ++round) exchange();
  EXPECT_EQ(units(), kDepth);
  EXPECT_EQ(left(), kBudget - (kDepth - kUnits));
  const GeneralAllocatorStatistics memory = far_.memory->statistics();
  EXPECT_EQ(memory.bytes_in_use_high_water, memory.bytes_in_use);
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

TEST_F(ShortQueueTest, IsFilledIfMoreUnitsAreReserved) {
  const auto connection = must(
      Connection::create(0, *far_.domain, far_.receives, far_.channel, far_.allocator, *far_.memory,
                         *far_.budget, {.bytes = kUnitBytes, .reserved = 8, .most = 16}, 64));
  EXPECT_EQ(connection->receive_bytes(), kDepth * kUnitBytes);
  EXPECT_EQ(connection->offer().receive_units, kDepth);
  EXPECT_EQ(left(), kBudget);
}

// Units of 64 KiB, for which memory is registered again and again.
class LargeUnitsTest : public ConnectionTest {
 protected:
  LargeUnitsTest() : ConnectionTest({.bytes = 64 << 10, .reserved = kUnits, .most = 64}, 62, 256) {}
};

// Registration takes long. The connection must not be locked meanwhile.
TEST_F(LargeUnitsTest, TheConnectionIsUsedWhileMemoryForItsUnitsIsRegistered) {
  std::thread other;
  std::atomic<bool> used{false};
  far_.watched->on_registration = [&] {
    if (other.joinable()) return;
    other = std::thread([&] {
      static_cast<void>(far_.connection->unfinished());
      used = true;
    });
    EXPECT_TRUE(wait_until([&] { return used.load(); },
                           std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  };
  for (int round = 0; round < 8; ++round) {
    while (send(1) == Connection::Sent::kPosted) {
    }
    finish(arrived());
  }
  EXPECT_EQ(far_.connection->receive_bytes(), 64U * (64U << 10));
  ASSERT_TRUE(other.joinable()) << "no memory was registered";
  other.join();
}

// A destructor must not throw.
TEST_F(ConnectionTest, TheEndOfReceiveUnitsNeedsNoMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  auto units = std::make_unique<ReceiveUnits>(
      *near_.connection, 1, *near_.memory, *near_.budget,
      ReceiveUnitLimits{.bytes = kUnitBytes, .reserved = kUnits, .most = kUnits});
  while (units->count() < kUnits) static_cast<void>(must(units->add_reserved()));
  const testing::FailAllocation fail(1);
  units.reset();
  EXPECT_EQ(testing::failing_bytes, 0u) << "the test has failed no allocation";
}

TEST_F(ConnectionTest, DeferredMessagesKeepTheirOrder) {
  EXPECT_EQ(send(0), Connection::Sent::kPosted);
  EXPECT_EQ(send(1), Connection::Sent::kPosted);
  defer(2);
  defer(3);
  defer(4);
  EXPECT_EQ(near_.connection->send_deferred(), 0u);  // no credit
  std::vector<ArrivedMessage*> messages = arrived();
  finish(messages);
  // There are credits, but deferred messages come first.
  EXPECT_EQ(send(5), Connection::Sent::kNoCredit);
  EXPECT_EQ(near_.connection->send_deferred(), 2 * 24u);
  messages = arrived();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(number_in(*messages[0]), 2u);
  EXPECT_EQ(number_in(*messages[1]), 3u);
  finish(messages);
  EXPECT_EQ(near_.connection->drop_deferred(), 24u);
  EXPECT_EQ(send(6), Connection::Sent::kPosted);
  messages = arrived();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(number_in(*messages[0]), 6u);
}

TEST_F(ConnectionTest, WakingTakesACreditToo) {
  EXPECT_EQ(near_.connection->wake(7), Connection::Sent::kPosted);
  EXPECT_EQ(near_.connection->wake(7), Connection::Sent::kPosted);
  EXPECT_EQ(near_.connection->wake(7), Connection::Sent::kNoCredit);
  EXPECT_EQ(send(1), Connection::Sent::kNoCredit);
  finish(arrived());
  EXPECT_EQ(send(1), Connection::Sent::kPosted);
  EXPECT_EQ(sim_.statistics().receiver_not_ready, 0u);
}

TEST_F(ConnectionTest, UpToHalfOfTheUnitsMayWait) {
  EXPECT_EQ(send(1), Connection::Sent::kPosted);
  EXPECT_EQ(send(2), Connection::Sent::kPosted);
  const auto messages = arrived();
  EXPECT_FALSE(far_.connection->mark_waiting(messages[0]));
  // more than half of the units wait: copy this message
  EXPECT_TRUE(far_.connection->mark_waiting(messages[1]));
  EXPECT_TRUE(far_.connection->finish(messages[1]));
  EXPECT_TRUE(far_.connection->finish(messages[0]));
  EXPECT_FALSE(far_.connection->mark_waiting(messages[0]));
}

// The sender has used up its credits, and sends nothing whose arrival would trigger another credit
// write.
TEST_F(ConnectionTest, CreditsWithoutSendQueueRoomAreWrittenLater) {
  EXPECT_EQ(send(1), Connection::Sent::kPosted);
  EXPECT_EQ(send(2), Connection::Sent::kPosted);
  const auto messages = arrived();
  ASSERT_EQ(messages.size(), 2u);
  RDMAMemory source = must(far_.memory->allocate(64));
  RDMAMemory target = must(near_.memory->allocate(64));
  const RemoteMemoryLocator name = target.locator(near_.domain.get(), 0);
  uint32_t writes = 0;
  while (far_.connection->write(source, 0, 64, name, nullptr) == Connection::Sent::kPosted) {
    ASSERT_LT(++writes, 1000u);
  }
  EXPECT_FALSE(far_.connection->finish(messages[0]));
  EXPECT_FALSE(far_.connection->finish(messages[1]));
  far_.connection->repeat_credits();
  EXPECT_FALSE(far_.connection->return_credits());
  EXPECT_EQ(send(3), Connection::Sent::kNoCredit);
  EXPECT_TRUE(sim_.run_until_idle());
  EXPECT_EQ(send(3), Connection::Sent::kNoCredit);  // the credits have not been written yet
  EXPECT_TRUE(far_.connection->return_credits());
  EXPECT_TRUE(sim_.run_until_idle());
  EXPECT_EQ(send(3), Connection::Sent::kPosted);
  EXPECT_EQ(send(4), Connection::Sent::kPosted);
  EXPECT_EQ(arrived().size(), 2u);
  must(far_.memory->free(std::move(source)));
  must(near_.memory->free(std::move(target)));
}

TEST_F(ConnectionTest, ALostPeerFailsTheSender) {
  EXPECT_EQ(near_.connection->max_call(), kUnitBytes - sizeof(MessageHeader));
  sim_.kill(1);
  EXPECT_EQ(send(1), Connection::Sent::kPosted);
  EXPECT_EQ(send(2), Connection::Sent::kPosted);
  EXPECT_TRUE(sim_.run_until_idle());
  EXPECT_EQ(send(3), Connection::Sent::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(near_.connection->status()));
  EXPECT_THAT(near_.connection->status().ToString(),
              HasSubstr("the far end is dead or unreachable: it has not acknowledged a transfer"));
}

// The text names the process, the failed operation and the remedy. Codes and scopes are those of
// dtutils.
TEST(ConnectionFailures, SpeakToUsersOfCalls) {
  const auto text = [](CompletionStatus status, CompletionKind kind) {
    const Completion completion{.status = status, .kind = kind};
    const absl::Status failure = connection_failure(completion, "rank 1");
    EXPECT_EQ(failure.code(), to_status(completion, "rank 1").code());
    EXPECT_EQ(error_scope(failure), error_scope(to_status(completion, "rank 1")));
    EXPECT_THAT(failure.ToString(), HasSubstr("rank 1"));
    for (const char* word : {"queue pair", "RECEIVE", "repair", "receive"}) {
      EXPECT_THAT(failure.ToString(), Not(HasSubstr(word)));
    }
    return std::string(failure.message());
  };
  constexpr CompletionStatus kEvery[] = {
      CompletionStatus::kLocalLength,      CompletionStatus::kLocalOperation,
      CompletionStatus::kLocalProtection,  CompletionStatus::kFlushed,
      CompletionStatus::kRemoteAccess,     CompletionStatus::kRemoteInvalid,
      CompletionStatus::kRemoteOperation,  CompletionStatus::kRetryExceeded,
      CompletionStatus::kReceiverNotReady, CompletionStatus::kPeerDied,
      CompletionStatus::kUnknown};
  for (const CompletionStatus status : kEvery) {
    for (const CompletionKind kind : {CompletionKind::kSend, CompletionKind::kReceive}) {
      EXPECT_THAT(text(status, kind), HasSubstr(": "));
    }
  }
  EXPECT_EQ(text(CompletionStatus::kPeerDied, CompletionKind::kReceive),
            "rank 1 is dead: the transport reports that its process has ended: look at its output "
            "for the reason");
  EXPECT_THAT(text(CompletionStatus::kRemoteAccess, CompletionKind::kWrite),
              HasSubstr("a transfer to rank 1 failed: remote access error: check that each "
                        "RemoteMemoryLocator"));
}

}  // namespace
}  // namespace cariama::internal
