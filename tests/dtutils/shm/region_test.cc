// Which memory shm registers, and how memory that cannot be mapped is accessed.
#include <cstdio>
#include <fstream>
#include <set>

#include "dtutils/allocators/superpages.h"
#include "dtutils/internal/page_query.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/region_table.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama {
namespace {

absl::Status registered(const MemorySource& source) {
  auto device = must(open_device({.transport = Transport::kShm}));
  auto domain = must(device->create_domain());
  return domain->register_memory(source, Access::kAll).status();
}

TEST(ShmRegion, UnsealedDescriptorsAreRefused) {
  for (int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW}) {
    const Memfd memory(4096, seals);
    const absl::Status status = registered(memory.source());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("F_SEAL_SHRINK | F_SEAL_GROW"), std::string::npos) << status;
  }
}

// With such an offset peers would map other bytes than those of the region, and words would not be
// aligned.
TEST(ShmRegion, OffsetsThatNoMappingCanHaveAreRefused) {
  const Memfd memory(8192);
  MemorySource source = memory.source();
  source.length = 4096;
  source.descriptor_offset = 8;
  const absl::Status status = registered(source);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("descriptor_offset"), std::string::npos) << status;
}

TEST(ShmRegion, ShortDescriptorsAreRefused) {
  const Memfd memory(8192);
  MemorySource source = memory.source();
  source.descriptor_offset = 4096;
  const absl::Status status = registered(source);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("8192 bytes"), std::string::npos) << status;
}

TEST(ShmRegion, LocalAndRemoteKeysNeverAgree) {
  ShmNode node;
  const Segment confused{node.memory.data(), 8, LocalKey{node.region->remote_key().value}};
  ShmNode target;
  connect_pair(*node.queue_pair, *target.queue_pair);
  const RemoteMemoryLocator remote = target.region->locator();
  EXPECT_EQ(node.run(remote_request(Opcode::kWrite, confused, remote)),
            CompletionStatus::kLocalProtection);
}

// A stale key stays invalid after its table entry was given to another region.
TEST(ShmRegion, AStaleKeyIsRefusedAfterItsEntryWasReused) {
  const shm::Uuid uuid{};
  auto control = must(shm::ControlSegment::create(uuid));
  auto table = must(shm::RegionTable::create(control));
  std::vector<char> memory(64);
  const MemorySource source{memory.data(), memory.size()};
  const shm::RegionTable::Keys first = must(table->add(source, Access::kAll, 1));
  table->remove(first);
  // Entries are used in turn: every entry is used once before the first one is used again.
  shm::RegionTable::Keys again = first;
  for (uint32_t i = 0; i < 2 * shm::kMaxRegions; ++i) {
    again = must(table->add(source, Access::kAll, 1));
    if (shm::key_index(again.remote.value) == shm::key_index(first.remote.value)) break;
    table->remove(again);
  }
  ASSERT_EQ(shm::key_index(again.remote.value), shm::key_index(first.remote.value));
  EXPECT_NE(again.remote.value, first.remote.value);
  const uint32_t index = shm::key_index(first.local.value);
  EXPECT_FALSE(table->local()[index].allows(first.local, memory.data(), 8, 1));
  EXPECT_TRUE(table->local()[index].allows(again.local, memory.data(), 8, 1));
}

// Returns the number of the kernel's mappings that contain one of these addresses.
size_t mappings_of(const std::set<uint64_t>& addresses) {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &start, &end) != 2) continue;
    const auto first = addresses.lower_bound(start);
    count += first != addresses.end() && *first < end ? 1 : 0;
  }
  return count;
}

// A peer registers and deregisters memory repeatedly. The same memory is mapped at the same address
// again. Other memory is mapped at new addresses, whose mappings the kernel merges into one after
// the regions were closed. Each region is usable while it exists, and its pages are released
// afterwards.
void register_again_and_again(bool same_memory) {
  constexpr uint64_t kRounds = 60;
  constexpr size_t kBytes = 4 << 20;
  testing::run_test_processes(2, [=](Exchange& exchange) {
    ShmNode node;
    connect_to(exchange, *node.queue_pair, 1 - exchange.rank());
    if (exchange.rank() == 1) {
      auto memory = std::make_unique<Memfd>(kBytes);
      for (uint64_t round = 0; round < kRounds; ++round) {
        if (!same_memory && round != 0) memory = std::make_unique<Memfd>(kBytes);
        auto region = must(node.domain->register_memory(memory->source(), Access::kAll));
        put_plain(exchange, "region" + std::to_string(round), region->locator());
        static_cast<void>(must(exchange.get(0, "written" + std::to_string(round), soon())));
        EXPECT_EQ(memory->word(0), round + 1);
      }
      static_cast<void>(must(exchange.get(0, "done", soon())));
      return;
    }
    std::set<uint64_t> places;
    std::byte* before = nullptr;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const auto remote =
          get_plain<RemoteMemoryLocator>(exchange, 1, "region" + std::to_string(round));
      node.memory.word(0) = round + 1;
      EXPECT_EQ(node.run(remote_request(Opcode::kWrite, node.segment(0, 8), remote.slice(0, 8))),
                CompletionStatus::kSuccess);
      std::byte* const mapped = node.queue_pair->direct_access(remote);
      ASSERT_NE(mapped, nullptr);
      // Reads the address of the previous region: it may still be accessed, and contains none of
      // its data.
      if (before != nullptr && before != mapped) {
        EXPECT_EQ(*reinterpret_cast<volatile uint64_t*>(before), 0u);
      }
      places.insert(reinterpret_cast<uint64_t>(mapped));
      before = mapped;
      must(exchange.put("written" + std::to_string(round), ""));
    }
    if (same_memory) {
      EXPECT_EQ(places.size(), 1u);
    } else {
      EXPECT_EQ(places.size(), kRounds);
      EXPECT_LE(mappings_of(places), 8u);
    }
    must(exchange.put("done", ""));
  });
}

// A peer maps memory at an address at which the kernel can map its large pages, and with them where
// the owner has them.
TEST(ShmRegion, APeerMapsMemoryWithTheOwnersPages) {
  static constexpr size_t kBytes = 4 << 20;
  testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    connect_to(exchange, *node.queue_pair, 1 - exchange.rank());
    if (exchange.rank() == 1) {
      const Superpage memory =
          must(Superpage::obtain({.bytes = kBytes, .largest_page = PageKind::kTransparent}));
      auto region = must(node.domain->register_memory(memory.source(), Access::kAll));
      put_plain(exchange, "kind", memory.page_kind());
      put_plain(exchange, "region", region->locator());
      static_cast<void>(must(exchange.get(0, "done", soon())));
      return;
    }
    const auto kind = get_plain<PageKind>(exchange, 1, "kind");
    const auto remote = get_plain<RemoteMemoryLocator>(exchange, 1, "region");
    // A transfer waits until the region is known here, direct_access() does not.
    EXPECT_EQ(node.run(remote_request(Opcode::kWrite, node.segment(0, 8), remote.slice(0, 8))),
              CompletionStatus::kSuccess);
    std::byte* const mapped = node.queue_pair->direct_access(remote);
    ASSERT_NE(mapped, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped) % (2 << 20), 0u);
    for (size_t at = 0; at < kBytes; at += 4096) mapped[at] = std::byte{1};
    const auto pages = cariama::internal::query_mapping(mapped);
    ASSERT_TRUE(pages.has_value());
    if (kind == PageKind::kTransparent) {
      EXPECT_EQ(pages->shared_huge_mapped, kBytes);
    }
    must(exchange.put("done", ""));
  });
}

TEST(ShmRegion, TheSameMemoryRegisteredAgainTakesNoMoreAddressSpace) {
  register_again_and_again(true);
}
TEST(ShmRegion, ChangingMemoryLeavesFewMappings) { register_again_and_again(false); }

// Memory without a descriptor is written and read through the kernel. Atomics on it complete with
// an error and change nothing, and the connection works again after repair. Access with a revoked
// key fails and is repaired in the same way.
TEST(ShmRegion, UserMemoryOfAnotherProcess) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    const int peer = 1 - exchange.rank();
    std::vector<uint64_t> user(1 << 20, 0);  // 8 MiB
    auto region = must(node.domain->register_memory({user.data(), user.size() * 8}, Access::kAll));
    Memfd extra(4096);
    auto revoked = must(node.domain->register_memory(extra.source(), Access::kAll));
    put_plain(exchange, "user", region->locator());
    put_plain(exchange, "revoked", revoked->locator());
    put_plain(exchange, "mapped", node.region->locator());
    connect_to(exchange, *node.queue_pair, peer);
    if (exchange.rank() == 1) {
      const Segment buffer{user.data() + 1000, 64, region->local_key()};
      ASSERT_TRUE(node.queue_pair->post_receive({.segments = &buffer, .segment_count = 1}).ok());
      must(exchange.put("posted", ""));
      static_cast<void>(must(exchange.get(0, "written", soon())));
      EXPECT_EQ(user[3], 11u);
      EXPECT_EQ(user[user.size() - 1], 12u);
      ASSERT_EQ(node.poll_for(1).size(), 1u);
      EXPECT_EQ(user[1000], 13u);
      revoked.reset();
      must(exchange.put("deregistered", ""));
      // Each round, the connection fails at both ends and both repair it.
      for (int round = 0; round < 2; ++round) {
        static_cast<void>(must(exchange.get(0, "broken" + std::to_string(round), soon())));
        EXPECT_EQ(node.queue_pair->state(), QueuePairState::kError);
        must(node.queue_pair->repair());
        must(exchange.put("repaired" + std::to_string(round), ""));
      }
      static_cast<void>(must(exchange.get(0, "done", soon())));
      EXPECT_EQ(user[3], 11u);
      EXPECT_EQ(extra.word(0), 0u);
      EXPECT_EQ(node.memory.word(5), 14u);
      return;
    }
    const auto remote = get_plain<RemoteMemoryLocator>(exchange, 1, "user");
    EXPECT_EQ(node.queue_pair->direct_access(remote), nullptr);
    const Segment word = node.segment(0, 8);
    const auto write = [&](uint64_t index, uint64_t value) {
      node.memory.word(0) = value;
      return node.run(remote_request(Opcode::kWrite, word, remote.slice(8 * index, 8)));
    };
    ASSERT_EQ(write(3, 11), CompletionStatus::kSuccess);
    ASSERT_EQ(write((1 << 20) - 1, 12), CompletionStatus::kSuccess);
    node.memory.word(0) = 0;
    EXPECT_EQ(node.run(remote_request(Opcode::kRead, word, remote.slice(24, 8))),
              CompletionStatus::kSuccess);
    EXPECT_EQ(node.memory.word(0), 11u);
    static_cast<void>(must(exchange.get(1, "posted", soon())));
    node.memory.word(0) = 13;  // a message into user memory
    EXPECT_EQ(node.run({.opcode = Opcode::kSend, .segment_count = 1, .segments = &word}),
              CompletionStatus::kSuccess);
    must(exchange.put("written", ""));

    const auto gone = get_plain<RemoteMemoryLocator>(exchange, 1, "revoked");
    static_cast<void>(must(exchange.get(1, "deregistered", soon())));
    WorkRequest add = remote_request(Opcode::kFetchAdd, word, remote.slice(24, 8));
    add.operand = 1;
    for (int round = 0; round < 2; ++round) {
      if (round == 0) {
        EXPECT_EQ(node.run(add), CompletionStatus::kRemoteInvalid);
      } else {
        EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, gone.slice(0, 8))),
                  CompletionStatus::kRemoteAccess);
      }
      must(exchange.put("broken" + std::to_string(round), ""));
      must(node.queue_pair->repair());
      static_cast<void>(must(exchange.get(1, "repaired" + std::to_string(round), soon())));
    }
    ASSERT_EQ(write(5000, 15), CompletionStatus::kSuccess);
    node.memory.word(0) = 14;
    const auto mapped = get_plain<RemoteMemoryLocator>(exchange, 1, "mapped");
    EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, mapped.slice(40, 8))),
              CompletionStatus::kSuccess);
    must(exchange.put("done", ""));
  });
}

}  // namespace
}  // namespace cariama
