// Creating, connecting and destroying objects.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/sim/sim_fabric.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class SetupContract : public ContractTest {
 protected:
  // Checks that `status` has this code, an error scope, and `mention` in its text.
  static ::testing::AssertionResult refused(const absl::Status& status, absl::StatusCode code,
                                            const std::string& mention) {
    if (status.code() == code && error_scope(status) != ErrorScope::kNone &&
        std::string(status.message()).find(mention) != std::string::npos) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << status.ToString() << " (scope " << scope_name(error_scope(status)) << ")";
  }

  static constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
};

TEST_P(SetupContract, InvalidAddressesAreRefused) {
  LinkOptions options;
  options.connected = false;
  Link link = make_link(options);
  const std::string good = link.far->address();
  ASSERT_FALSE(good.empty());
  EXPECT_EQ(good, link.far->address());

  std::vector<std::string> bad = {"",
                                  "x",
                                  std::string(good.size(), '\0'),
                                  std::string(good.size(), '\xff'),
                                  std::string(1 << 20, 'x'),
                                  good + "x",
                                  good + good};
  for (size_t length = 1; length < good.size(); ++length) bad.push_back(good.substr(0, length));
  std::string other = good;
  other[0] = static_cast<char>(other[0] ^ 1);
  bad.push_back(other);
  for (const std::string& address : bad) {
    ASSERT_TRUE(refused(link.near->connect(address, {.peer = kFarLabel}), kInvalid, kFarLabel))
        << "of " << address.size() << " bytes";
    EXPECT_EQ(link.near->state(), QueuePairState::kUnconnected);
  }
  connect(link);
  expect_flow(link);
}

// Any change of an address leads to an error or to a connection that transfers nothing. It never
// affects other queue pairs.
TEST_P(SetupContract, ADamagedAddressDoesNoHarm) {
  Link neighbour = make_link();
  LinkOptions options;
  options.connected = false;
  Link reference = make_link(options);
  const std::string good = reference.far->address();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    Link link = make_link(options);
    const absl::Status status = link.near->connect(damaged, {.peer = kFarLabel});
    EXPECT_EQ(status.ok(), error_scope(status) == ErrorScope::kNone) << status;
  }
  expect_flow(neighbour);
  connect(reference);
  expect_flow(reference);
}

TEST_P(SetupContract, AnAddressOfAnotherTransportIsRefused) {
  LinkOptions options;
  options.connected = false;
  Link link = make_link(options);
  // Uses an address of sim; or of shm, if this transport is sim.
  std::vector<std::string> others;
  const auto add = [&](const std::shared_ptr<Device>& device) {
    const auto domain = must(device->create_domain());
    QueuePairOptions wanted;
    wanted.send_completions = must(domain->create_completion_queue({}));
    wanted.receive_completions = wanted.send_completions;
    others.push_back(must(domain->create_queue_pair(wanted))->address());
  };
  if (GetParam().base == Transport::kSim) {
    add(must(open_device({.transport = Transport::kShm})));
  } else {
    SimFabric fabric;
    add(fabric.create_endpoint());
  }
  for (const std::string& address : others) {
    EXPECT_TRUE(refused(link.near->connect(address, {.peer = kFarLabel}), kInvalid, kFarLabel));
    EXPECT_EQ(link.near->state(), QueuePairState::kUnconnected);
  }
  connect(link);
  expect_flow(link);
}

TEST_P(SetupContract, ConnectingTwiceIsRefusedWithoutEffect) {
  Link link = make_link();
  EXPECT_TRUE(refused(link.near->connect(link.far->address(), {.peer = "somebody else"}),
                      absl::StatusCode::kFailedPrecondition, ""));
  EXPECT_EQ(link.near->peer(), kFarLabel);
  expect_flow(link);
}

TEST_P(SetupContract, ConnectOptionsOutOfRangeAreRefused) {
  LinkOptions options;
  options.connected = false;
  Link link = make_link(options);
  for (const uint32_t count : {7U, 8U, 0xffffffffU}) {
    EXPECT_TRUE(refused(link.near->connect(link.far->address(), {.retry_count = count}), kInvalid,
                        "retry_count"));
  }
  EXPECT_TRUE(refused(link.near->connect(link.far->address(), {.receiver_retry_count = 8}),
                      kInvalid, "receiver_retry_count"));
  EXPECT_EQ(link.near->state(), QueuePairState::kUnconnected);
  connect(link);
  expect_flow(link);
}

TEST_P(SetupContract, QueuePairOptionsOutOfRangeAreRefused) {
  const auto queue = must(near_domain_->create_completion_queue({}));
  const auto alien_device = GetParam().base == Transport::kSim
                                ? must(open_device({.transport = Transport::kShm}))
                                : SimFabric().create_endpoint();
  const auto alien = must(must(alien_device->create_domain())->create_completion_queue({}));
  const auto alien_pool =
      must(must(alien_device->create_domain())->create_shared_receive_queue({}));
  const QueuePairOptions good{.send_completions = queue, .receive_completions = queue};
  EXPECT_TRUE(near_domain_->create_queue_pair(good).ok());

  std::vector<QueuePairOptions> bad(7, good);
  bad[0].send_completions = nullptr;
  bad[1].receive_completions = nullptr;
  bad[2].send_completions = alien;
  bad[3].receive_completions = alien;
  bad[4].send_depth = 0;
  bad[5].receive_depth = 0;
  bad[6].shared_receives = alien_pool;
  for (const QueuePairOptions& options : bad) {
    EXPECT_TRUE(refused(near_domain_->create_queue_pair(options).status(), kInvalid, ""))
        << "case " << &options - bad.data();
  }
  EXPECT_TRUE(refused(near_domain_->create_completion_queue({.depth = 0}).status(), kInvalid, ""));
  EXPECT_TRUE(
      refused(near_domain_->create_shared_receive_queue({.depth = 0}).status(), kInvalid, ""));
}

// Requested sizes above the device's limits are reduced to these limits, and limits() returns the
// result.
TEST_P(SetupContract, RequestsAboveTheDeviceLimitsAreReduced) {
  const DeviceLimits& device = near_device_->limits();
  const auto queue = must(near_domain_->create_completion_queue({}));
  constexpr uint32_t kMuch = 0xffffffff;
  QueuePairOptions options{.send_completions = queue,
                           .receive_completions = queue,
                           .send_depth = 4,
                           .receive_depth = 4,
                           .max_send_segments = kMuch,
                           .max_receive_segments = kMuch,
                           .max_inline = kMuch};
  const auto wide = must(near_domain_->create_queue_pair(options));
  EXPECT_LE(wide->limits().max_send_segments, device.max_segments);
  EXPECT_LE(wide->limits().max_receive_segments, device.max_segments);
  EXPECT_LE(wide->limits().max_inline, device.max_inline);

  options = {.send_completions = queue,
             .receive_completions = queue,
             .send_depth = kMuch,
             .receive_depth = kMuch,
             .max_send_segments = 1,
             .max_receive_segments = 1,
             .max_inline = 0};
  const auto deep = near_domain_->create_queue_pair(options);
  if (deep.ok()) {
    EXPECT_LE((*deep)->limits().send_depth, device.max_send_depth);
    EXPECT_LE((*deep)->limits().receive_depth, device.max_receive_depth);
  } else {  // the device allows more than the memory of this machine
    EXPECT_TRUE(refused(deep.status(), absl::StatusCode::kResourceExhausted, ""));
  }
  // A completion queue that is smaller than requested would lose completions, so it is refused.
  if (device.max_completions < kMuch) {
    const auto too_large =
        near_domain_->create_completion_queue({.depth = device.max_completions + 1});
    EXPECT_FALSE(too_large.ok());
    EXPECT_NE(error_scope(too_large.status()), ErrorScope::kNone) << too_large.status();
  }
}

TEST_P(SetupContract, EmptyMemoryIsRefused) {
  std::byte some[64];
  for (const MemorySource& source :
       {MemorySource{}, MemorySource{nullptr, 64}, MemorySource{some, 0}}) {
    EXPECT_TRUE(
        refused(near_domain_->register_memory(source, Access::kAll).status(), kInvalid, ""));
  }
}

TEST_P(SetupContract, RegionsReportTheirProperties) {
  Buffer one(*near_domain_, 4096, Access::kRemoteRead | Access::kLocalWrite);
  Buffer two(*near_domain_, 4096);
  EXPECT_EQ(one.region().address(), one.data());
  EXPECT_EQ(one.region().length(), 4096U);
  EXPECT_EQ(one.region().access(), Access::kRemoteRead | Access::kLocalWrite);
  EXPECT_NE(one.region().local_key(), two.region().local_key());
  EXPECT_NE(one.region().remote_key(), two.region().remote_key());
  const RemoteMemoryLocator part = one.region().locator(100, 50, 7);
  EXPECT_EQ(part.length, 50U);
  EXPECT_EQ(part.owner, 7U);
  EXPECT_EQ(part.address, one.locator().address + 100);
  EXPECT_EQ(part.key, one.region().remote_key());
}

// Overlapping registrations of the same memory are independent.
TEST_P(SetupContract, MemoryMayBeRegisteredSeveralTimes) {
  Link link = make_link();
  Buffer from(*near_domain_, 64);
  Buffer to(*far_domain_, 64);
  auto second = must(far_domain_->register_memory({to.data(), 32}, Access::kRemoteWrite));
  from.fill(1);
  const Segments source = {from.segment(0, 32)};
  post(link.near, to_remote(Opcode::kWrite, 1, source, second->locator()));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  EXPECT_TRUE(holds(to, 0, std::span(from.data(), 32)));
  second.reset();
  from.fill(2);
  post(link.near, to_remote(Opcode::kWrite, 2, source, to.locator(0, 32)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kWrite));
  EXPECT_TRUE(holds(to, 0, std::span(from.data(), 32)));
}

TEST_P(SetupContract, ManyRegionsComeAndGo) {
  Link link = make_link();
  Buffer from(*near_domain_, 64);
  const Segments source = {from.segment()};
  std::vector<std::unique_ptr<Buffer>> targets;
  std::set<uint64_t> keys;
  for (uint64_t i = 0; i < 300; ++i) {
    targets.push_back(std::make_unique<Buffer>(*far_domain_, 64));
    EXPECT_TRUE(keys.insert(targets.back()->locator().key.value).second);
    from.fill(i);
    post(link.near, to_remote(Opcode::kWrite, i, source, targets.back()->locator()));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), i, CompletionKind::kWrite));
  }
  for (uint64_t i = 0; i < targets.size(); ++i) {
    EXPECT_TRUE(holds(*targets[i], 0, pattern(i, 64)));
  }
  // Every second region is deregistered. The others and new ones can be accessed.
  for (uint64_t i = 0; i < targets.size(); i += 2) targets[i].reset();
  for (uint64_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == nullptr) targets[i] = std::make_unique<Buffer>(*far_domain_, 64);
    from.fill(1000 + i);
    post(link.near, to_remote(Opcode::kWrite, i, source, targets[i]->locator()));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), i, CompletionKind::kWrite));
    EXPECT_TRUE(holds(*targets[i], 0, pattern(1000 + i, 64)));
  }
}

// Objects keep the objects alive from which they were created. Traffic needs only queue pairs,
// completion queues and regions.
TEST_P(SetupContract, TrafficOutlivesTheHandlesOfDevicesAndDomains) {
  Link link = make_link();
  Buffer from(*near_domain_, 64);
  Buffer to(*far_domain_, 64);
  near_device_.reset();
  far_domain_.reset();
  near_domain_.reset();
  far_device_.reset();
  fabric_.reset();
  from.fill(1);
  const Segments source = {from.segment()};
  post_receive(link.far, 1, {to.segment()});
  post(link.near, to_peer(Opcode::kSend, 2, source));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 1, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kSend));
  EXPECT_TRUE(holds(to, 0, pattern(1, 64)));
}

// Any order of destruction is safe, with operations outstanding in both directions.
TEST_P(SetupContract, EverythingMayBeDestroyedInAnyOrder) {
  Link neighbour = make_link();
  // The parts are destroyed in the order of `order`. The loop uses all rotations, forwards and
  // backwards.
  enum Part { kPair, kSends, kReceives, kMemory, kDomain, kPool, kChannel, kParts };
  std::vector<int> order;
  for (int i = 0; i < kParts; ++i) order.push_back(i);
  for (int turn = 0; turn < 2 * kParts; ++turn) {
    std::rotate(order.begin(), order.begin() + 1, order.end());
    if (turn == kParts) std::reverse(order.begin(), order.end());

    auto domain = must(far_device_->create_domain());
    auto channel = must(domain->create_channel());
    auto pool = must(domain->create_shared_receive_queue({}));
    LinkOptions options;
    options.connect.ack_timeout = std::chrono::milliseconds(1);
    options.connect.retry_count = 1;
    options.connected = false;
    Link link = make_link(options);
    // Creates the far end here, from parts that this test owns.
    link.far.sends = must(domain->create_completion_queue({.depth = 256, .channel = channel}));
    link.far.receives = must(domain->create_completion_queue({.depth = 256, .channel = channel}));
    link.far.pair = must(domain->create_queue_pair({.send_completions = link.far.sends,
                                                    .receive_completions = link.far.receives,
                                                    .shared_receives = pool,
                                                    .send_depth = 16}));
    connect(link, options.connect);
    Buffer near(*near_domain_, 4096);
    auto far = std::make_unique<Buffer>(*domain, 4096);
    const Segments near_piece = {near.segment(0, 64)};
    const Segments far_piece = {far->segment(0, 64)};
    // One of these receives is consumed and one stays. The far end's SENDs wait for a receive.
    for (uint64_t id = 0; id < 2; ++id) {
      const ReceiveRequest request{id, far_piece.data(), 1};
      EXPECT_TRUE(pool->post_receive(request).ok());
    }
    EXPECT_TRUE(link.far.receives->arm().ok());
    post(link.near, to_peer(Opcode::kSend, 1, near_piece));
    post(link.near, to_remote(Opcode::kWrite, 2, near_piece, far->locator(64, 64)));
    post(link.near, to_remote(Opcode::kRead, 3, near_piece, far->locator(64, 64)));
    post(link.far, to_peer(Opcode::kSend, 4, far_piece));
    post(link.far, to_peer(Opcode::kSend, 5, far_piece));

    for (const int part : order) {
      switch (part) {
        case kPair:
          link.far.pair.reset();
          break;
        case kSends:
          link.far.sends.reset();
          break;
        case kReceives:
          link.far.receives.reset();
          break;
        case kMemory:
          far.reset();
          break;
        case kDomain:
          domain.reset();
          break;
        case kPool:
          pool.reset();
          break;
        case kChannel:
          channel.reset();
          break;
        default:
          break;
      }
    }
  }
  expect_flow(neighbour);
}

TEST_P(SetupContract, ManyQueuePairsComeAndGo) {
  Link neighbour = make_link();
  for (int i = 0; i < 30; ++i) {
    Link link = make_link();
    expect_flow(link);
  }
  std::vector<Link> links;
  for (int i = 0; i < 20; ++i) links.push_back(make_link());
  for (Link& link : links) expect_flow(link);
  expect_flow(neighbour);
}

INSTANTIATE_TEST_SUITE_P(On, SetupContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
