// Unregistered buffers as arguments of call_buffer, send-based and one-sided: short ones are copied
// into registered memory (bounced), long ones are registered through a RegistrationCache, and both
// are released when the call has ended.
#include "dsfabric/user_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dtutils/registration/policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using ::testing::HasSubstr;
using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

constexpr size_t kShort = 1000;
constexpr size_t kLong = 100'000;
constexpr uint64_t kBounce = 4096;

// Counts the registrations of user memory. Requires one device, so one cache.
struct Registrations {
  std::atomic<int> made{0};
  std::atomic<uint64_t> bytes{0};  // registered now

  [[nodiscard]] RegistrationOptions options(std::string_view policy) {
    RegistrationOptions options;
    options.max_bytes = size_t{1} << 30;
    options.policy = must(make_registration_policy(policy));
    options.on_change = [this](int64_t, uint64_t now) {
      if (now > bytes.exchange(now)) ++made;
    };
    return options;
  }
};

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + 1);
  return data;
}

std::atomic<int> right;
// The function of the calls: counts the buffers that contain the whole pattern.
const auto look = [](void* buffer, uint64_t size) {
  const auto* const bytes = static_cast<const unsigned char*>(buffer);
  for (uint64_t i = 0; i < size; ++i) {
    if (bytes[i] != static_cast<unsigned char>(i * 7 + 1)) return;
  }
  ++right;
};

class UserBuffer : public ::testing::TestWithParam<ChannelCase> {
 protected:
  void SetUp() override { right = 0; }
  [[nodiscard]] static testing::LocalJobOptions job(Registrations& registrations,
                                                    std::string_view policy = "on-demand") {
    testing::LocalJobOptions options = testing::job_on(GetParam());
    options.fabric.bounce_bytes = kBounce;
    options.fabric.registration = [&registrations, policy] {
      return registrations.options(policy);
    };
    return options;
  }
  [[nodiscard]] static MessengerOptions channel() {
    MessengerOptions options;
    options.arrival = GetParam().arrival;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(On, UserBuffer,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"sim", Arrival::kAuto},
                                           ChannelCase{"fault_shm", Arrival::kPolled}),
                         testing::channel_case_name);

TEST_P(UserBuffer, IsReadByTheDestination) {
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    const auto run = [&](size_t bytes, int registered, const auto& send) {
      SCOPED_TRACE(bytes);
      registrations.made = 0;
      right = 0;
      std::vector<std::byte> data = pattern(bytes);
      Synchronizer done;
      EXPECT_EQ(send(std::span<const std::byte>(data), done), absl::OkStatus());
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status(), absl::OkStatus());
      EXPECT_EQ(right.load(), 1);
      // When `done` is counted down, the buffer is not registered any more and may be freed.
      EXPECT_EQ(registrations.made.load(), registered);
      EXPECT_EQ(registrations.bytes.load(), 0u);
    };
    for (const auto& [bytes, registered] :
         {std::pair(size_t{0}, 0), std::pair(kShort, 0), std::pair(size_t{kBounce}, 0),
          std::pair(size_t{kBounce} + 1, 1), std::pair(kLong, 1)}) {
      run(bytes, registered, [&](std::span<const std::byte> data, Synchronizer& done) {
        return call_buffer<Sync, RemoteNotify>(fabric, 1, look, data, done);
      });
      run(bytes, registered, [&](std::span<const std::byte> data, Synchronizer& done) {
        return call_buffer<Async, RemoteNotify>(fabric, 1, look, data, done);
      });
      run(bytes, registered, [&](std::span<const std::byte> data, Synchronizer& done) {
        return messenger.call_buffer<Sync, RemoteNotify>(look, data, done).status();
      });
      run(bytes, registered, [&](std::span<const std::byte> data, Synchronizer& done) {
        return messenger.call_buffer<RemoteNotify, Async>(look, data, done).status();
      });
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

TEST_P(UserBuffer, IsWrittenIntoTheTarget) {
  static RemoteMemoryLocator place;
  static std::atomic<bool> named;
  static std::atomic<int> expected;
  named = false;
  expected = 0;
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      RDMAMemory memory = must(fabric.memory().allocate(kLong));
      place = must(internal::locate_for(fabric, 0, memory, 0, kLong));
      named = true;
      must(call(fabric, 0, [] {}));
      EXPECT_TRUE(fabric.wait([] { return right.load() == 4; }, soon()));
      must(fabric.memory().free(std::move(memory)));
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return named.load(); }, soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    for (const size_t bytes : {kShort, kLong}) {
      for (const bool one_sided : {false, true}) {
        std::vector<std::byte> data = pattern(bytes);
        Synchronizer done;
        if (one_sided) {
          EXPECT_TRUE(messenger.call_buffer<RemoteNotify>(look, std::span<const std::byte>(data),
                                                          place, done));
        } else {
          must(call_buffer<RemoteNotify>(fabric, 1, look, std::span<const std::byte>(data), place,
                                         done));
        }
        // The buffer is not registered any more and may be reused.
        EXPECT_EQ(registrations.bytes.load(), 0u);
        std::memset(data.data(), 0, data.size());
        EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      }
    }
    EXPECT_EQ(registrations.made.load(), 2);
    const std::vector<std::byte> longer = pattern(kLong + 1);
    EXPECT_TRUE(absl::IsInvalidArgument(
        call_buffer(fabric, 1, look, std::span<const std::byte>(longer), place)));
    EXPECT_TRUE(absl::IsInvalidArgument(
        messenger.call_buffer(look, std::span<const std::byte>(longer), place).status()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(right.load(), 4);
}

// The policy registers each buffer anew. No key of an earlier registration may be used.
TEST_P(UserBuffer, ManyCallsInTurn) {
  static RemoteMemoryLocator place;
  static std::atomic<bool> named;
  named = false;
  constexpr int kCalls = 12;
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      RDMAMemory memory = must(fabric.memory().allocate(kLong));
      place = must(internal::locate_for(fabric, 0, memory, 0, kLong));
      named = true;
      must(call(fabric, 0, [] {}));
      EXPECT_TRUE(fabric.wait([] { return right.load() == 3 * kCalls; }, soon()));
      must(fabric.memory().free(std::move(memory)));
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return named.load(); }, soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    for (int i = 0; i < kCalls; ++i) {
      const std::vector<std::byte> data = pattern(kLong - static_cast<size_t>(i));
      for (const int form : {0, 1, 2}) {
        Synchronizer done;
        const absl::Status sent =
            form == 0
                ? messenger.call_buffer<RemoteNotify>(look, std::span(data), place, done).status()
            : form == 1
                ? call_buffer<RemoteNotify>(fabric, 1, look, std::span(data), place, done).status()
                : messenger.call_buffer<RemoteNotify, Sync>(look, std::span(data), done).status();
        ASSERT_EQ(sent, absl::OkStatus());
        EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
        ASSERT_EQ(done.status(), absl::OkStatus());
      }
    }
    EXPECT_EQ(registrations.made.load(), 3 * kCalls);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(right.load(), 3 * kCalls);
}

TEST_P(UserBuffer, WithinTheProcessNothingIsRegistered) {
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const std::vector<std::byte> data = pattern(kLong);
    RDMAMessenger messenger(*fabric.this_thread(), 0, {});
    Synchronizer done(2);
    must(call_buffer<Sync, RemoteNotify>(fabric, 0, look, std::span(data), done));
    EXPECT_TRUE((messenger.call_buffer<Async, RemoteNotify>(look, std::span(data), done)));
    EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    EXPECT_EQ(done.status(), absl::OkStatus());
    EXPECT_EQ(right.load(), 2);
    EXPECT_EQ(registrations.made.load(), 0);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Memory is unmapped and mapped at the same address between calls: each call must carry what the
// address names when it is made.
TEST_P(UserBuffer, StaysRegisteredOnlyWhileItIsMapped) {
  static std::atomic<int> changes;
  changes = 0;
  testing::LocalJobOptions options = testing::job_on(GetParam());
  options.fabric.bounce_bytes = kBounce;
  options.fabric.registration = [] {
    RegistrationOptions cache;
    cache.max_bytes = size_t{1} << 30;
    cache.on_change = [](int64_t, uint64_t) { ++changes; };
    return cache;
  };
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    void* address = nullptr;
    int expected = 0;
    for (int round = 0; round < 20; ++round) {
      address = mmap(address, kLong, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | (address != nullptr ? MAP_FIXED : 0), -1, 0);
      ASSERT_NE(address, MAP_FAILED);
      const std::vector<std::byte> data = pattern(kLong);
      std::memcpy(address, data.data(), data.size());
      const std::span<const std::byte> buffer(static_cast<const std::byte*>(address), kLong);
      for (int use = 0; use < 2; ++use) {
        Synchronizer done;
        must(call_buffer<Sync, RemoteNotify>(fabric, 1, look, buffer, done));
        EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
        EXPECT_EQ(done.status(), absl::OkStatus());
        EXPECT_EQ(right.load(), ++expected) << "round " << round;
      }
    }
    munmap(address, kLong);
  });
  // One registration for two uses. Each registration and each deregistration is a change; the last
  // registration does not end before this line.
  EXPECT_GE(changes.load(), 20);
  EXPECT_LE(changes.load(), 41);
}

TEST_P(UserBuffer, CallsReturnTheErrorsOfTheCache) {
  testing::LocalJobOptions options;
  options.transport = transport_case(GetParam().transport);
  options.fabric.bounce_bytes = kBounce;
  options.fabric.registration = [] { return RegistrationOptions{.max_bytes = kLong / 2}; };
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const std::vector<std::byte> data = pattern(kLong);
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    Synchronizer done;
    const auto expect_refused = [](const absl::Status& status) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("RegistrationOptions::max_bytes"));
    };
    expect_refused(
        call_buffer<Sync, RemoteNotify>(fabric, 1, look, std::span(data), done).status());
    expect_refused(messenger.call_buffer<Sync, RemoteNotify>(look, std::span(data), done).status());
    EXPECT_EQ(done.operations_left(), 1u);
    EXPECT_TRUE(absl::IsOutOfRange(call_buffer<Sync>(fabric, 99, look, std::span(data))));
    EXPECT_TRUE(
        absl::IsOutOfRange(call_buffer(fabric, 99, look, std::span(data), RemoteMemoryLocator{})));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(right.load(), 0);
}

TEST_P(UserBuffer, OfAnImpossibleLengthIsRefused) {
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    const std::byte byte{};
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 39, SIZE_MAX / 2 + 1}) {
      const CallResult refused = messenger.call_buffer(look, std::span(&byte, bytes));
      EXPECT_THAT(refused.status().ToString(), HasSubstr("longer than a chunk")) << bytes;
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Without any option a long buffer goes through a cache, too, and stays registered.
TEST_P(UserBuffer, StaysRegisteredByDefault) {
  testing::LocalJobOptions options = testing::job_on(GetParam());
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const std::vector<std::byte> data = pattern(kLong);
    UserMemory& user = *internal::memory_of(fabric).user_memory(fabric.domain(1));
    for (uint64_t use = 0; use < 3; ++use) {
      Synchronizer done;
      must(call_buffer<Sync, RemoteNotify>(fabric, 1, look, std::span(data), done));
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(must(user.cache())->statistics().registrations, 1u);
      EXPECT_EQ(must(user.cache())->statistics().hits, use);
    }
  });
  EXPECT_EQ(right.load(), 3);
}

// A policy may register the buffer that this process WRITEs in pieces, two at a time.
TEST_P(UserBuffer, IsWrittenInPieces) {
  static RemoteMemoryLocator place;
  static std::atomic<bool> named;
  named = false;
  constexpr size_t kBytes = (size_t{5} << 20) + 12345;
  Registrations registrations;
  std::atomic<uint64_t> peak{0};
  testing::LocalJobOptions options = job(registrations, "pipeline");
  options.fabric.registration = [&] {
    RegistrationOptions cache = registrations.options("pipeline");
    cache.on_change = [&, count = cache.on_change](int64_t time, uint64_t now) {
      count(time, now);
      peak = std::max(peak.load(), now);
    };
    return cache;
  };
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      RDMAMemory memory = must(fabric.memory().allocate(kBytes));
      place = must(internal::locate_for(fabric, 0, memory, 0, kBytes));
      named = true;
      EXPECT_TRUE(fabric.wait([] { return right.load() == 1; }, soon()));
      must(fabric.memory().free(std::move(memory)));
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return named.load(); }, soon()));
    const std::vector<std::byte> data = pattern(kBytes);
    Synchronizer done;
    must(call_buffer<RemoteNotify>(fabric, 1, look, std::span(data), place, done));
    EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
  });
  EXPECT_EQ(right.load(), 1);
  EXPECT_EQ(registrations.made.load(), 6);
  EXPECT_EQ(registrations.bytes.load(), 0u);
  EXPECT_LE(peak.load(), (size_t{2} << 20) + 2 * 4096);
}

// A registration does not outlive its call, even if the call throws.
TEST_P(UserBuffer, ACallThatThrowsReleasesTheRegistration) {
  Registrations registrations;
  LocalJob local(job(registrations));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const std::vector<std::byte> data = pattern(kLong);
    RDMAMessenger messenger(*fabric.this_thread(), 1, channel());
    Synchronizer done;
    EXPECT_TRUE((messenger.call_buffer<Sync, RemoteNotify>(
        [](void*, uint64_t) { throw std::runtime_error("not this one"); }, std::span(data), done)));
    EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
    EXPECT_THAT(std::string(done.status().message()), HasSubstr("not this one"));
    EXPECT_EQ(registrations.made.load(), 1);
    EXPECT_EQ(registrations.bytes.load(), 0u);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

}  // namespace
}  // namespace cariama
