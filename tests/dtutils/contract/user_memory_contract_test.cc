// Memory that the user did not register, as the local side of transfers, over every transport:
// bounced or registered through the cache, and never transferred through a stale key.
#include "dtutils/registration/user_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/registration/helper_thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/registration/pinning_domain.h"
#include "tests/dtutils/testing/transmit_line.h"

namespace cariama {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;
using testing::must;
using testing::pattern;
using testing::soon;
using testing::TransmitLine;

constexpr size_t kThreshold = size_t{16} << 10;

std::atomic<int64_t> virtual_time{0};

class UserMemoryContract : public testing::ContractTest {
 protected:
  // Makes a queue that lends user memory, with a cache of that policy.
  TransmitLine make_line(std::string_view policy) {
    return make_line([policy] {
      RegistrationOptions cache;
      cache.max_bytes = size_t{1} << 28;
      cache.policy = must(make_registration_policy(policy));
      return cache;
    });
  }
  TransmitLine make_line(std::function<RegistrationOptions()> registration,
                         std::shared_ptr<Pinner> pinner = nullptr) {
    allocator_ = must(RDMAAllocator::create({near_domain_}, kAnyNode, {}));
    bounce_ = must(GeneralAllocator::create(allocator_, {}));
    UserMemoryOptions options;
    options.registration = std::move(registration);
    options.pinner = std::move(pinner);
    user_ = std::make_shared<UserMemory>(near_domain_, *bounce_, options);
    return testing::make_transmit_line(*near_domain_, *far_domain_, 64, {.user_memory = user_}, {},
                                       kFarLabel);
  }
  // Makes such a queue whose policy is a helper that the test steps. Cache and helper run on
  // virtual_time, which begins at 0.
  std::pair<TransmitLine, std::shared_ptr<HelperPolicy>> make_line(HelperOptions options) {
    virtual_time = 0;
    options.own_thread = false;
    auto helper = std::make_shared<HelperPolicy>(options);
    TransmitLine line = make_line([helper] {
      RegistrationOptions cache;
      cache.max_bytes = size_t{1} << 28;
      cache.policy = helper;
      cache.clock = [] { return virtual_time.load(); };
      return cache;
    });
    return {std::move(line), std::move(helper)};
  }
  [[nodiscard]] RegistrationStatistics statistics() { return must(user_->cache())->statistics(); }

  std::shared_ptr<RDMAAllocator> allocator_;
  std::unique_ptr<GeneralAllocator> bounce_;
  std::shared_ptr<UserMemory> user_;
};

TEST_P(UserMemoryContract, WritesAndReads) {
  const TransmitLine line = make_line("on-demand");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kMost = 150'000;
  testing::Buffer there(*far_domain_, kMost);
  uint64_t registrations = 0;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{5000}, kThreshold, kThreshold + 1, kMost}) {
    SCOPED_TRACE(bytes);
    const Bytes data = pattern(bytes, bytes);
    there.clear();
    Synchronizer written;
    must(transmitter.write(std::span(data), there.locator(0, bytes), written));
    EXPECT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
    EXPECT_TRUE(testing::holds(there, 0, data));
    EXPECT_TRUE(testing::untouched(there, bytes, kMost - bytes));
    Bytes back(bytes);
    Synchronizer read;
    must(transmitter.read(std::span(back), there.locator(), read));
    EXPECT_EQ(transmitter.wait(read, soon()), absl::OkStatus());
    EXPECT_EQ(back, data);
    // Nothing stays registered when the transfers have ended.
    if (bytes > kThreshold) registrations += 2;
    EXPECT_EQ(statistics().registrations, registrations);
    EXPECT_EQ(statistics().registered_bytes, 0u);
    EXPECT_EQ(bounce_->statistics().allocations, 0u);
  }
}

TEST_P(UserMemoryContract, Sends) {
  TransmitLine line = make_line("lru");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 2 * kThreshold;
  testing::Buffer there(*far_domain_, kBytes);
  for (const size_t bytes : {kThreshold, kBytes}) {
    there.clear();
    testing::post_receive(line.far, 1, {there.segment()});
    const Bytes data = pattern(bytes, bytes);
    Synchronizer sent;
    must(transmitter.send(std::span(data), sent));
    EXPECT_EQ(transmitter.wait(sent, soon()), absl::OkStatus());
    EXPECT_EQ(testing::take(*line.far.receives, 1).size(), 1u);
    EXPECT_TRUE(testing::holds(there, 0, data));
  }
}

TEST_P(UserMemoryContract, ABouncedSourceMayBeReusedAtOnce) {
  const TransmitLine line = make_line("lru");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  testing::Buffer there(*far_domain_, kThreshold);
  const Bytes expected = pattern(1, kThreshold);
  Bytes data = expected;
  Synchronizer written;
  must(transmitter.write(std::span<const std::byte>(data), there.locator(), written));
  std::memset(data.data(), 0, data.size());
  EXPECT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
  EXPECT_TRUE(testing::holds(there, 0, expected));
}

TEST_P(UserMemoryContract, RegistersInPiecesIfThePolicySaysSo) {
  const TransmitLine line = make_line("pipeline");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = (size_t{3} << 20) + 4321;
  testing::Buffer there(*far_domain_, kBytes);
  const Bytes data = pattern(7, kBytes);
  Synchronizer written;
  must(transmitter.write(std::span(data), there.locator(), written));
  EXPECT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
  EXPECT_TRUE(testing::holds(there, 0, data));
  Bytes back(kBytes);
  Synchronizer read;
  must(transmitter.read(std::span(back), there.locator(), read));
  EXPECT_EQ(transmitter.wait(read, soon()), absl::OkStatus());
  EXPECT_EQ(back, data);
  const RegistrationStatistics now = statistics();
  EXPECT_EQ(now.registrations, 8u - 2) << "the remainder of 4321 bytes is bounced";
  EXPECT_EQ(now.registered_bytes, 0u);
  EXPECT_LE(now.peak_bytes, (size_t{2} << 20) + 2 * 4096);
}

// The helper registers the first two pieces ahead. The others are registered for their transfer
// alone.
TEST_P(UserMemoryContract, TwoPiecesOfALongMessageStayRegisteredWithAHelper) {
  constexpr size_t kPiece = size_t{1} << 20;
  constexpr size_t kSlack = 2 * 4096;  // two pieces that do not begin at a page
  HelperOptions options = HelperOptions::improved();
  options.piece_from = 0;
  const auto [line, helper] = make_line(options);
  if (!must(user_->cache())->watches()) {
    GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  }
  Transmitter transmitter = must(Transmitter::create(*line.near));
  const Bytes data = pattern(9, 4 * kPiece);
  testing::Buffer there(*far_domain_, data.size());
  for (int round = 0; round < 4; ++round) {
    there.clear();
    Synchronizer written;
    must(transmitter.write(std::span(data), there.locator(), written));
    ASSERT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
    EXPECT_TRUE(testing::holds(there, 0, data));
    EXPECT_GE(statistics().registered_bytes, 2 * kPiece) << "the helper has not run yet";
    EXPECT_LE(statistics().registered_bytes, 2 * kPiece + kSlack);
    virtual_time += 20'000'000;
    while (helper->step() <= virtual_time) {
    }
  }
  EXPECT_EQ(statistics().registrations, statistics().misses + statistics().registered_ahead);
  EXPECT_LE(statistics().peak_bytes, 4 * (kPiece + 4096));
}

TEST_P(UserMemoryContract, ReadOnlyMemoryCanBeWrittenFrom) {
  const TransmitLine line = make_line("lru");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 2 * kThreshold;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const Bytes data = pattern(3, kBytes);
  std::memcpy(memory, data.data(), kBytes);
  ASSERT_EQ(mprotect(memory, kBytes, PROT_READ), 0);
  testing::Buffer there(*far_domain_, kBytes);
  Synchronizer written;
  must(transmitter.write(std::span(static_cast<const std::byte*>(memory), kBytes), there.locator(),
                         written));
  EXPECT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
  EXPECT_TRUE(testing::holds(there, 0, data));
  // As the target of a READ it is an error, until the program may write it.
  const std::span<std::byte> target(static_cast<std::byte*>(memory), kBytes);
  Synchronizer read;
  const absl::Status refused = transmitter.read(target, there.locator(), read);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("read-only"));
  ASSERT_EQ(mprotect(memory, kBytes, PROT_READ | PROT_WRITE), 0);
  must(transmitter.read(target, there.locator(), read));
  EXPECT_EQ(transmitter.wait(read, soon()), absl::OkStatus());
  munmap(memory, kBytes);
}

TEST_P(UserMemoryContract, ErrorsPostNothing) {
  const TransmitLine line = make_line("lru");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  testing::Buffer there(*far_domain_, 100);
  const Bytes data(2 * kThreshold);
  Synchronizer done;
  EXPECT_EQ(transmitter.write(std::span(data), there.locator(), done).code(),
            absl::StatusCode::kInvalidArgument);
  const std::span<const std::byte> null(static_cast<const std::byte*>(nullptr), 8);
  EXPECT_EQ(transmitter.write(null, there.locator(), done).code(),
            absl::StatusCode::kInvalidArgument);
  const TransmitLine plain = testing::make_transmit_line(*near_domain_, *far_domain_, 64);
  Transmitter without = must(Transmitter::create(*plain.near));
  const absl::Status refused = without.write(std::span(data).first(8), there.locator(), done);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("TransmitOptions::user_memory"));
  EXPECT_EQ(done.operations_left(), 1u);
  EXPECT_EQ(line.near->statistics().operations, 0u);
}

// A transfer that a destroyed queue drops releases its memory, too.
TEST_P(UserMemoryContract, ADestroyedQueueReleasesTheMemory) {
  TransmitLine line = make_line("on-demand");
  constexpr size_t kBytes = 2 * kThreshold;
  testing::Buffer there(*far_domain_, kBytes);
  const Bytes data = pattern(1, kBytes);
  Synchronizer done(2);
  {
    Transmitter transmitter = must(Transmitter::create(*line.near));
    must(transmitter.write(std::span(data), there.locator(), done));
    must(transmitter.write(std::span(data).first(100), there.locator(), done));
  }
  line.near.reset();
  EXPECT_TRUE(done.done());
  EXPECT_EQ(statistics().registered_bytes, 0u);
  EXPECT_EQ(bounce_->statistics().allocations, 0u);
}

// A program that writes from malloc'ed memory again and again, with no hint: the helper registers
// each buffer before its third use. The helper's steps and the cache run on a virtual clock, the
// transfers and registrations are real.
TEST_P(UserMemoryContract, ALoopIsLateInItsFirstTwoRoundsOnly) {
  constexpr size_t kBytes = 400'000;  // long enough for a mapping of its own, with every malloc()
  constexpr size_t kRounds = 10;
  const auto [line, helper] = make_line(HelperOptions::improved());
  if (!must(user_->cache())->watches()) {
    GTEST_SKIP() << "without userfaultfd no registration outlives its use";
  }
  Transmitter transmitter = must(Transmitter::create(*line.near));
  testing::Buffer there(*far_domain_, kBytes);
  std::vector<Bytes> buffers(3, Bytes(kBytes));
  int64_t due = 0;
  uint64_t seed = 0;
  std::vector<uint64_t> late;  // after each round
  for (size_t round = 0; round < kRounds; ++round) {
    for (Bytes& buffer : buffers) {
      const Bytes data = pattern(++seed, kBytes);
      std::copy(data.begin(), data.end(), buffer.begin());
      Synchronizer written;
      must(transmitter.write(std::span(buffer), there.locator(), written));
      ASSERT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
      EXPECT_TRUE(testing::holds(there, 0, data));
      // 20 ms of computation, during which the helper works.
      const int64_t until = virtual_time + 20'000'000;
      while (due <= until) {
        virtual_time = std::max(virtual_time.load(), due);
        due = helper->step();
      }
      virtual_time = until;
    }
    late.push_back(statistics().misses);
  }
  EXPECT_EQ(late[0], 3u);
  EXPECT_LE(late[1], 6u);
  EXPECT_EQ(late.back(), late[1]) << "of " << kRounds * buffers.size() << " writes";
  // Not because everything stayed registered.
  EXPECT_LE(statistics().peak_bytes, kBytes + 3 * 4096);
}

// Records the call stacks of uses, and leaves nothing registered.
class RecordingPolicy final : public RegistrationPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "recording"; }
  [[nodiscard]] bool records_uses() const override { return true; }
  [[nodiscard]] bool ended(const RegionUse& use) override {
    stacks.push_back(use.stack);
    return false;
  }
  [[nodiscard]] size_t piece_bytes(size_t /*message_bytes*/) const override { return piece; }

  size_t piece = 0;
  std::vector<CallStack> stacks;
};

// The first address distinguishes the calls of a program, also without frame pointers.
TEST_P(UserMemoryContract, EachCallSiteHasACallStackOfItsOwn) {
  const auto policy = std::make_shared<RecordingPolicy>();
  TransmitLine line = make_line([policy] {
    RegistrationOptions cache;
    cache.policy = policy;
    return cache;
  });
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 4 * kThreshold;
  testing::Buffer there(*far_domain_, kBytes);
  Bytes data = pattern(1, kBytes);
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    testing::post_receive(line.far, 1, {there.segment()});
    policy->piece = round == kRounds - 1 ? 2 * kThreshold : 0;
    Synchronizer done(4);
    must(transmitter.write(std::span<const std::byte>(data), there.locator(), done));
    must(transmitter.write(std::span<const std::byte>(data), there.locator(), done));
    must(transmitter.read(std::span(data), there.locator(), done));
    must(transmitter.send(std::span<const std::byte>(data), done));
    ASSERT_EQ(transmitter.wait(done, soon()), absl::OkStatus());
  }
  constexpr size_t kSites = 4;
  // In the last round each message but that of send() is two pieces.
  ASSERT_EQ(policy->stacks.size(), kSites * kRounds + kSites - 1);
  std::vector<uintptr_t> sites;
  for (size_t use = 0; use < kSites; ++use) sites.push_back(policy->stacks[use][0]);
  for (size_t use = 0; use < kSites * 2; ++use) {
    EXPECT_EQ(policy->stacks[use], policy->stacks[use % kSites]) << use;
  }
  for (size_t use = kSites * 2; use < policy->stacks.size(); ++use) {
    EXPECT_EQ(policy->stacks[use][0], sites[(use - kSites * 2) / 2]) << use;
  }
  std::vector<CallStack> stacks(policy->stacks.begin(), policy->stacks.begin() + kSites);
  std::sort(stacks.begin(), stacks.end());
  EXPECT_EQ(std::unique(stacks.begin(), stacks.end()), stacks.end());
  std::sort(sites.begin(), sites.end());
  EXPECT_EQ(std::unique(sites.begin(), sites.end()), sites.end());
  EXPECT_NE(sites.front(), 0u);
}

// A transport that pins nothing, over which a program pins its memory all the same.
TEST_P(UserMemoryContract, AnotherPinnerPinsForTheTimeOfTheRegistration) {
  const auto pinner = std::make_shared<testing::CountingPinner>();
  TransmitLine line = make_line([] { return RegistrationOptions{}; }, pinner);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kBytes = 4 * kThreshold;
  testing::Buffer there(*far_domain_, kBytes);
  const Bytes data = pattern(1, kBytes);
  Synchronizer written;
  must(transmitter.write(std::span(data), there.locator(), written));
  ASSERT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
  EXPECT_TRUE(testing::holds(there, 0, data));
  EXPECT_EQ(pinner->counts->pinned, 1u);
  must(user_->cache())->forget(data.data(), data.size());
  EXPECT_EQ(pinner->counts->unpinned, 1u);
}

// Thousands of rounds of unmapping, discarding and moving memory between transfers. Each WRITE must
// carry what the program wrote at the address, and each READ must arrive where the program looks.
TEST_P(UserMemoryContract, NoStaleKeyIsEverUsed) {
  const TransmitLine line = make_line("lru");
  Transmitter transmitter = must(Transmitter::create(*line.near));
  constexpr size_t kPage = 4096;
  constexpr size_t kPages = 64;
  constexpr size_t kUsed = 5;  // pages of a transfer: above the threshold
  static_assert(kUsed * kPage > kThreshold);
  testing::Buffer there(*far_domain_, kUsed * kPage);
  const auto map_at = [](std::byte* address, size_t bytes) {
    return mmap(address, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | (address != nullptr ? MAP_FIXED : 0), -1, 0);
  };
  auto* const arena = static_cast<std::byte*>(map_at(nullptr, kPages * kPage));
  std::mt19937 random(23);
  uint64_t word = 0;
  uint64_t stale = 0;
  for (int round = 0; round < 2500; ++round) {
    const size_t first = 8 + random() % (kPages - 16);
    const size_t count = 1 + random() % 8;
    std::byte* const start = arena + first * kPage;
    switch (random() % 6) {
      case 0:
        munmap(start, count * kPage);
        ASSERT_NE(map_at(start, count * kPage), MAP_FAILED);
        break;
      case 1:
        madvise(start, count * kPage, MADV_DONTNEED);
        break;
      case 2:
        ASSERT_NE(map_at(start, count * kPage), MAP_FAILED);
        break;
      case 3:  // the pages move over those at the start of the arena
        // The kernel unmaps the destination first, and then refuses a source of several mappings:
        // monitored and unmonitored pages are different mappings.
        if (mremap(start, count * kPage, count * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, arena) ==
            MAP_FAILED) {
          ASSERT_NE(map_at(arena, count * kPage), MAP_FAILED);
        }
        ASSERT_NE(map_at(start, count * kPage), MAP_FAILED);
        break;
      default:
        break;
    }
    std::byte* const used = arena + random() % (kPages - kUsed) * kPage;
    for (size_t i = 0; i < kUsed; ++i) {
      ++word;
      std::memcpy(used + i * kPage, &word, sizeof word);
    }
    Synchronizer written;
    must(transmitter.write(std::span<const std::byte>(used, kUsed * kPage), there.locator(),
                           written));
    ASSERT_EQ(transmitter.wait(written, soon()), absl::OkStatus());
    for (size_t i = 0; i < kUsed; ++i) stale += there.word(i * kPage) != word - kUsed + 1 + i;
    for (size_t i = 0; i < kUsed; ++i) there.set_word(i * kPage, ~(word + i));
    Synchronizer read;
    must(transmitter.read(std::span(used, kUsed * kPage), there.locator(), read));
    ASSERT_EQ(transmitter.wait(read, soon()), absl::OkStatus());
    for (size_t i = 0; i < kUsed; ++i) {
      uint64_t got = 0;
      std::memcpy(&got, used + i * kPage, sizeof got);
      stale += got != ~(word + i);
    }
  }
  EXPECT_EQ(stale, 0u);
  const RegistrationStatistics now = statistics();
  EXPECT_GT(now.hits, 1000u);
  EXPECT_GT(now.registrations, 100u);
  munmap(arena, kPages * kPage);
}

INSTANTIATE_TEST_SUITE_P(On, UserMemoryContract, ::testing::ValuesIn(testing::every_transport()),
                         testing::transport_of);

}  // namespace
}  // namespace cariama
