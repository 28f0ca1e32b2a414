// Every operation moves exactly the bytes that it names, for any size and number of segments.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class TransferContract : public ContractTest {
 protected:
  // Sizes around relevant limits: zero, words, cache lines, packets, and several megabytes.
  [[nodiscard]] static std::vector<size_t> sizes(const End& end) {
    const size_t mtu = end->limits().mtu;
    const size_t large = std::min<uint64_t>(end->limits().max_message, (3U << 20) + 5);
    std::vector<size_t> sizes = {0, 1, 7, 8, 9, 63, 64, 65, mtu - 1, mtu, mtu + 1, 3 * mtu + 17};
    sizes.push_back(large);
    return sizes;
  }
};

// Bytes around the target, to check that nothing is written there.
constexpr size_t kMargin = 64;

TEST_P(TransferContract, SendFillsThePostedBuffer) {
  Link link = make_link();
  uint64_t id = 1ULL << 40;  // a value that needs more than 32 bits
  for (const size_t bytes : sizes(link.near)) {
    SCOPED_TRACE(bytes);
    Buffer from(*near_domain_, bytes);
    Buffer to(*far_domain_, bytes + kMargin);
    from.fill(++id);
    const Segments source = {from.segment()};
    const Segments target = {to.segment()};
    post_receive(link.far, id + 7, target);
    post(link.near, to_peer(Opcode::kSend, id, source));

    const Completion received = take_one(*link.far.receives);
    EXPECT_TRUE(succeeded(received, id + 7, CompletionKind::kReceive));
    EXPECT_EQ(received.bytes, bytes);
    EXPECT_FALSE(received.has_immediate);
    EXPECT_EQ(received.queue_pair, link.far->number());
    EXPECT_TRUE(holds(to, 0, pattern(id, bytes)));
    EXPECT_TRUE(untouched(to, bytes, kMargin));

    const Completion sent = take_one(*link.near.sends);
    EXPECT_TRUE(succeeded(sent, id, CompletionKind::kSend));
    EXPECT_EQ(sent.queue_pair, link.near->number());
  }
}

TEST_P(TransferContract, SendsInBothDirectionsAtOnce) {
  Link link = make_link();
  constexpr size_t kBytes = 10'000;
  Buffer near_out(*near_domain_, kBytes), near_in(*near_domain_, kBytes);
  Buffer far_out(*far_domain_, kBytes), far_in(*far_domain_, kBytes);
  near_out.fill(1);
  far_out.fill(2);
  const Segments sources[] = {{near_out.segment()}, {far_out.segment()}};
  post_receive(link.near, 3, {near_in.segment()});
  post_receive(link.far, 4, {far_in.segment()});
  post(link.near, to_peer(Opcode::kSend, 1, sources[0]));
  post(link.far, to_peer(Opcode::kSend, 2, sources[1]));
  EXPECT_TRUE(succeeded(take_one(*link.near.receives), 3, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 4, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kSend));
  EXPECT_TRUE(succeeded(take_one(*link.far.sends), 2, CompletionKind::kSend));
  EXPECT_TRUE(holds(near_in, 0, pattern(2, kBytes)));
  EXPECT_TRUE(holds(far_in, 0, pattern(1, kBytes)));
}

TEST_P(TransferContract, SendCarriesItsImmediate) {
  Link link = make_link();
  for (const size_t bytes : {0, 5, 5000}) {
    SCOPED_TRACE(bytes);
    Buffer from(*near_domain_, bytes);
    Buffer to(*far_domain_, bytes);
    from.fill(bytes);
    const Segments source = {from.segment()};
    post_receive(link.far, 1, {to.segment()});
    post(link.near, to_peer(Opcode::kSendImmediate, 2, source, kSignaled, 0x80c0ffeeU));
    const Completion received = take_one(*link.far.receives);
    EXPECT_TRUE(succeeded(received, 1, CompletionKind::kReceive));
    EXPECT_EQ(received.bytes, bytes);
    EXPECT_TRUE(received.has_immediate);
    EXPECT_EQ(received.immediate, 0x80c0ffeeU);
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kSend));
    EXPECT_TRUE(holds(to, 0, pattern(bytes, bytes)));
  }
}

TEST_P(TransferContract, WriteChangesExactlyItsTarget) {
  Link link = make_link();
  uint64_t id = 0;
  for (const size_t bytes : sizes(link.near)) {
    SCOPED_TRACE(bytes);
    Buffer from(*near_domain_, bytes);
    Buffer to(*far_domain_, bytes + 2 * kMargin);
    from.fill(++id);
    const Segments source = {from.segment()};
    const RemoteMemoryLocator target = to.locator().slice(kMargin - 1, bytes);  // not aligned
    post(link.near, to_remote(Opcode::kWrite, id, source, target));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kWrite));
    EXPECT_TRUE(untouched(to, 0, kMargin - 1));
    EXPECT_TRUE(holds(to, kMargin - 1, pattern(id, bytes)));
    EXPECT_TRUE(untouched(to, kMargin - 1 + bytes, kMargin + 1));
    EXPECT_TRUE(holds(from, 0, pattern(id, bytes)));
  }
  EXPECT_TRUE(quiet(*link.far.receives));  // no completion at the target
  EXPECT_TRUE(quiet(*link.far.sends));
}

TEST_P(TransferContract, WriteWithImmediateIsAnEventAfterItsData) {
  Link link = make_link();
  uint64_t id = 0;
  Buffer unused(*far_domain_, 64);
  for (const size_t bytes : sizes(link.near)) {
    SCOPED_TRACE(bytes);
    Buffer from(*near_domain_, bytes);
    Buffer to(*far_domain_, bytes + kMargin);
    from.fill(++id);
    const Segments source = {from.segment()};
    // The operation consumes a receive, with or without a buffer, but does not write to its buffer.
    post_receive(link.far, id + 7, id % 2 == 0 ? Segments{} : Segments{unused.segment()});
    WorkRequest request =
        to_remote(Opcode::kWriteImmediate, id, source, to.locator().slice(0, bytes));
    request.immediate = static_cast<uint32_t>(0xff000000U + id);
    post(link.near, request);

    const Completion received = take_one(*link.far.receives);
    EXPECT_TRUE(succeeded(received, id + 7, CompletionKind::kReceiveImmediate));
    EXPECT_EQ(received.bytes, bytes);
    EXPECT_TRUE(received.has_immediate);
    EXPECT_EQ(received.immediate, 0xff000000U + id);
    EXPECT_TRUE(holds(to, 0, pattern(id, bytes)));
    EXPECT_TRUE(untouched(to, bytes, kMargin));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kWrite));
  }
  EXPECT_TRUE(untouched(unused, 0, unused.size()));
}

// Zero-byte operations are used to probe idle connections.
TEST_P(TransferContract, OperationsOnZeroBytesNeedNoMemory) {
  Link link = make_link();
  const Segments none;
  post_receive(link.far, 10);
  post_receive(link.far, 11);
  post(link.near, to_remote(Opcode::kWrite, 1, none, {}));
  post(link.near, to_remote(Opcode::kRead, 2, none, {}));
  post(link.near, to_remote(Opcode::kWriteImmediate, 3, none, {}));
  post(link.near, to_peer(Opcode::kSend, 4, none));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kRead));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kWrite));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 4, CompletionKind::kSend));
  const std::vector<Completion> received = take(*link.far.receives, 2);
  EXPECT_TRUE(succeeded(received[0], 10, CompletionKind::kReceiveImmediate));
  EXPECT_TRUE(succeeded(received[1], 11, CompletionKind::kReceive));
  EXPECT_EQ(received[0].bytes, 0U);
  EXPECT_EQ(received[1].bytes, 0U);
}

TEST_P(TransferContract, ReadFetchesExactlyItsSource) {
  Link link = make_link();
  uint64_t id = 0;
  for (const size_t bytes : sizes(link.near)) {
    SCOPED_TRACE(bytes);
    Buffer from(*far_domain_, bytes + kMargin);
    Buffer to(*near_domain_, bytes + 2 * kMargin);
    from.fill(++id);
    const Segments target = {to.segment(kMargin, bytes)};
    post(link.near, to_remote(Opcode::kRead, id, target, from.locator().slice(0, bytes)));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kRead));
    EXPECT_TRUE(untouched(to, 0, kMargin));
    EXPECT_TRUE(holds(to, kMargin, pattern(id, bytes)));
    EXPECT_TRUE(untouched(to, kMargin + bytes, kMargin));
    EXPECT_TRUE(holds(from, 0, pattern(id, bytes + kMargin)));
  }
  EXPECT_TRUE(quiet(*link.far.receives));
}

TEST_P(TransferContract, PiecesAreGatheredAndScatteredInOrder) {
  LinkOptions options;
  options.near.max_send_segments = 4;
  options.far.max_receive_segments = 3;
  Link link = make_link(options);
  ASSERT_GE(link.near->limits().max_send_segments, 3U);
  ASSERT_GE(link.far->limits().max_receive_segments, 2U);
  constexpr size_t kBytes = 9000;
  Buffer near(*near_domain_, 3 * kBytes);
  Buffer more(*near_domain_, kBytes);  // memory of another region
  Buffer far(*far_domain_, 3 * kBytes);
  const Bytes all = pattern(5, kBytes);

  // 9000 bytes in three segments. The middle one is empty.
  const Segments pieces = {near.segment(100, 4001), more.segment(0, 0), more.segment(7, 4999)};
  const auto set_pieces = [&] {
    std::copy_n(all.begin(), 4001, near.data() + 100);
    std::copy_n(all.begin() + 4001, 4999, more.data() + 7);
  };

  set_pieces();
  post(link.near, to_remote(Opcode::kWrite, 1, pieces, far.locator(11, kBytes)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  EXPECT_TRUE(holds(far, 11, all));

  far.clear();
  // The receive is larger than the message, which ends within its second segment.
  post_receive(link.far, 2, {far.segment(0, 5000), far.segment(10'000, 5000)});
  post(link.near, to_peer(Opcode::kSend, 3, pieces));
  const Completion received = take_one(*link.far.receives);
  EXPECT_TRUE(succeeded(received, 2, CompletionKind::kReceive));
  EXPECT_EQ(received.bytes, kBytes);
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 3, CompletionKind::kSend));
  EXPECT_TRUE(holds(far, 0, std::span(all).first(5000)));
  EXPECT_TRUE(untouched(far, 5000, 5000));
  EXPECT_TRUE(holds(far, 10'000, std::span(all).subspan(5000)));
  EXPECT_TRUE(untouched(far, 14'000, 1000));

  near.clear();
  more.clear();
  far.fill(9);
  post(link.near, to_remote(Opcode::kRead, 4, pieces, far.locator(0, kBytes)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 4, CompletionKind::kRead));
  const Bytes source = pattern(9, 3 * kBytes);
  EXPECT_TRUE(untouched(near, 0, 100));
  EXPECT_TRUE(holds(near, 100, std::span(source).first(4001)));
  EXPECT_TRUE(untouched(near, 4101, 100));
  EXPECT_TRUE(untouched(more, 0, 7));
  EXPECT_TRUE(holds(more, 7, std::span(source).subspan(4001, 4999)));
}

TEST_P(TransferContract, FetchAddReturnsTheOldValueAndWraps) {
  Link link = make_link();
  ASSERT_TRUE(near_device_->limits().atomics);
  Buffer result(*near_domain_, 16);
  Buffer counter(*far_domain_, 64);
  const Segments into = {result.segment(8, 8)};
  uint64_t expected = 0xfffffffffffffff0U;
  counter.set_word(16, expected);
  for (const uint64_t addend :
       {uint64_t{1}, uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{0x20}}) {
    post(link.near, fetch_add(1, into, counter.locator(16, 8), addend));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kFetchAdd));
    EXPECT_EQ(result.word(8), expected);
    expected += addend;
    EXPECT_EQ(counter.word(16), expected);
  }
  EXPECT_TRUE(untouched(counter, 0, 16));
  EXPECT_TRUE(untouched(counter, 24, 40));
  EXPECT_TRUE(untouched(result, 0, 8));
}

TEST_P(TransferContract, CompareSwapSwapsOnlyWhenEqual) {
  Link link = make_link();
  Buffer result(*near_domain_, 8);
  Buffer cell(*far_domain_, 24);
  const Segments into = {result.segment()};
  constexpr uint64_t kOld = 0x1122334455667788;
  constexpr uint64_t kNew = 0x99aabbccddeeff00;
  cell.set_word(8, kOld);

  post(link.near, compare_swap(1, into, cell.locator(8, 8), kOld + 1, kNew));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kCompareSwap));
  EXPECT_EQ(result.word(0), kOld);
  EXPECT_EQ(cell.word(8), kOld);

  post(link.near, compare_swap(2, into, cell.locator(8, 8), kOld, kNew));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 2, CompletionKind::kCompareSwap));
  EXPECT_EQ(result.word(0), kOld);
  EXPECT_EQ(cell.word(8), kNew);

  EXPECT_TRUE(untouched(cell, 0, 8));
  EXPECT_TRUE(untouched(cell, 16, 8));
}

// Two queue pairs change the same two words. Each queue pair is used by its own thread.
TEST_P(TransferContract, AtomicsOfSeveralQueuePairsLoseNothing) {
  constexpr int kThreads = 2;
  constexpr uint64_t kRounds = 200;
  Buffer words(*far_domain_, 16);
  words.set_word(0, 0);
  words.set_word(8, 0);
  std::vector<std::vector<uint64_t>> tickets(kThreads);
  std::vector<Link> links;
  for (int i = 0; i < kThreads; ++i) links.push_back(make_link());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Link& link = links[i];
      Buffer result(*near_domain_, 8);
      const Segments into = {result.segment()};
      uint64_t seen = 0;
      for (uint64_t round = 0; round < kRounds; ++round) {
        post(link.near, fetch_add(round, into, words.locator(0, 8), 3));
        if (take_one(*link.near.sends).status != CompletionStatus::kSuccess) return;
        tickets[i].push_back(result.word(0));
        while (true) {  // until the second word is incremented
          post(link.near, compare_swap(round, into, words.locator(8, 8), seen, seen + 1));
          if (take_one(*link.near.sends).status != CompletionStatus::kSuccess) return;
          if (result.word(0) == seen) break;
          seen = result.word(0);
        }
        ++seen;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(words.word(0), 3 * kThreads * kRounds);
  EXPECT_EQ(words.word(8), kThreads * kRounds);
  std::set<uint64_t> distinct;
  for (const std::vector<uint64_t>& mine : tickets) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    distinct.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(distinct.size(), kThreads * kRounds);
}

TEST_P(TransferContract, InlineDataMayBeOverwrittenAtOnce) {
  Link link = make_link();
  const size_t most = link.near->limits().max_inline;
  Buffer to(*far_domain_, 4096);
  std::vector<std::byte> plain(most + 1);  // not registered: inline data needs no key
  const Segments none;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, most / 2, most}) {
    if (bytes > most) continue;
    SCOPED_TRACE(bytes);
    const Bytes data = pattern(bytes + 1, bytes);
    const Segments source = {
        {plain.data(), static_cast<uint32_t>(bytes / 2), {}},
        {plain.data() + bytes / 2, static_cast<uint32_t>(bytes - bytes / 2), {}}};
    for (const Opcode opcode : {Opcode::kSend, Opcode::kWrite, Opcode::kWriteImmediate}) {
      SCOPED_TRACE(static_cast<int>(opcode));
      to.clear();
      if (opcode != Opcode::kWrite) post_receive(link.far, 1, {to.segment()});
      std::copy(data.begin(), data.end(), plain.begin());
      post(link.near, to_remote(opcode, 2, source, to.locator(0, bytes), kSignaled | kInline));
      std::fill(plain.begin(), plain.end(), std::byte{0x3c});
      EXPECT_EQ(take_one(*link.near.sends).status, CompletionStatus::kSuccess);
      if (opcode != Opcode::kWrite) {
        EXPECT_EQ(take_one(*link.far.receives).bytes, bytes);
      }
      EXPECT_TRUE(holds(to, 0, data));
      EXPECT_TRUE(untouched(to, bytes, 64));
    }
  }
}

// Inline data is copied when the request is posted, even if the SEND has to wait for a receive.
TEST_P(TransferContract, InlineDataSurvivesAWaitForTheReceiver) {
  Link link = make_link();
  const size_t bytes = std::min<size_t>(8, link.near->limits().max_inline);
  Buffer to(*far_domain_, 64);
  std::byte plain[8];
  const Bytes data = pattern(3, bytes);
  std::copy(data.begin(), data.end(), plain);
  const Segments source = {{plain, static_cast<uint32_t>(bytes), {}}};
  post(link.near, to_peer(Opcode::kSend, 1, source, kSignaled | kInline));
  std::fill_n(plain, 8, std::byte{0x3c});
  EXPECT_TRUE(quiet(*link.near.sends));
  post_receive(link.far, 2, {to.segment()});
  EXPECT_TRUE(succeeded(take_one(*link.far.receives), 2, CompletionKind::kReceive));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kSend));
  EXPECT_TRUE(holds(to, 0, data));
}

// Memory without a descriptor, allocated by the user, at either end and at both.
TEST_P(TransferContract, UserMemoryIsReachable) {
  Link link = make_link();
  using Backing = Buffer::Backing;
  const std::pair<Backing, Backing> backings[] = {{Backing::kShared, Backing::kUser},
                                                  {Backing::kUser, Backing::kShared},
                                                  {Backing::kUser, Backing::kUser}};
  uint64_t id = 0;
  for (const auto& [near_backing, far_backing] : backings) {
    for (const size_t bytes : sizes(link.near)) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes, case " << id % 3);
      ++id;
      Buffer near(*near_domain_, bytes + kMargin, Access::kAll, near_backing);
      Buffer far(*far_domain_, bytes + kMargin, Access::kAll, far_backing);
      const Segments local = {near.segment(0, bytes)};
      const RemoteMemoryLocator remote = far.locator().slice(0, bytes);

      near.fill(id);
      post(link.near, to_remote(Opcode::kWrite, id, local, remote));
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kWrite));
      const Bytes written = pattern(id, bytes + kMargin);
      EXPECT_TRUE(holds(far, 0, std::span(written).first(bytes)));
      EXPECT_TRUE(untouched(far, bytes, kMargin));

      far.fill(id + 1000);
      near.clear();
      post(link.near, to_remote(Opcode::kRead, id, local, remote));
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kRead));
      const Bytes read = pattern(id + 1000, bytes + kMargin);
      EXPECT_TRUE(holds(near, 0, std::span(read).first(bytes)));
      EXPECT_TRUE(untouched(near, bytes, kMargin));

      far.clear();
      post_receive(link.far, id, {far.segment()});
      post(link.near, to_peer(Opcode::kSend, id, local));
      EXPECT_EQ(take_one(*link.far.receives).bytes, bytes);
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kSend));
      EXPECT_TRUE(holds(far, 0, std::span(read).first(bytes)));
      EXPECT_TRUE(untouched(far, bytes, kMargin));
    }
  }
}

// A transfer that exceeds the largest message is posted as several requests.
TEST_P(TransferContract, ALargeTransferSplitsExactly) {
  Link link = make_link();
  constexpr size_t kBytes = (5U << 20) + 13;
  const size_t piece = std::min<uint64_t>(link.near->limits().max_message, 1U << 20);
  Buffer from(*near_domain_, kBytes);
  Buffer to(*far_domain_, kBytes + kMargin);
  from.fill(77);
  uint64_t id = 0;
  uint64_t completed = 0;
  const uint64_t depth = link.near->limits().send_depth;
  for (size_t offset = 0; offset < kBytes; offset += piece) {
    const size_t bytes = std::min(piece, kBytes - offset);
    const Segments source = {from.segment(offset, bytes)};
    if (id - completed == depth) {
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), completed++, CompletionKind::kWrite));
    }
    post(link.near, to_remote(Opcode::kWrite, id++, source, to.locator(offset, bytes)));
  }
  for (; completed < id; ++completed) {
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), completed, CompletionKind::kWrite));
  }
  EXPECT_TRUE(holds(to, 0, pattern(77, kBytes)));
  EXPECT_TRUE(untouched(to, kBytes, kMargin));
}

TEST_P(TransferContract, DirectAccessReachesTheSameBytes) {
  Link link = make_link();
  Buffer to(*far_domain_, 4096);
  Buffer near(*near_domain_, 64);
  std::byte* direct = link.near->direct_access(to.locator(64, 128));
  if (direct == nullptr) {
    // A transport may return nullptr. shm must not, because its fast path depends on direct access.
    EXPECT_NE(GetParam().name, "shm") << "shm maps sealed memfds";
    return;
  }
  const Bytes data = pattern(1, 64);
  std::copy(data.begin(), data.end(), direct);
  EXPECT_TRUE(holds(to, 64, data));
  const Segments target = {near.segment()};
  post(link.near, to_remote(Opcode::kRead, 1, target, to.locator(64, 64)));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kRead));
  EXPECT_TRUE(holds(near, 0, data));

  Buffer read_only(*far_domain_, 64, Access::kRemoteRead);
  EXPECT_EQ(link.near->direct_access(read_only.locator()), nullptr)
      << "direct access needs remote read and write access";
  EXPECT_EQ(link.near->direct_access(to.locator(4090, 7)), nullptr)
      << "the range exceeds the region";
  RemoteMemoryLocator wrong = to.locator();
  wrong.key.value ^= 0x5a5a5a5a;
  EXPECT_EQ(link.near->direct_access(wrong), nullptr);
}

// Successive WRITEs become visible in the order that write_order() promises, on which code that
// polls memory relies. If it promises no order, an immediate after the data orders them.
TEST_P(TransferContract, WritesArriveInThePromisedOrder) {
  Link link = make_link();
  constexpr size_t kBytes = 2048;
  Buffer from(*near_domain_, kBytes + 8);
  Buffer to(*far_domain_, kBytes + 8);
  const bool polled = orders_writes(link.near->write_order());
  for (uint64_t round = 1; round <= 50; ++round) {
    // The data is the pattern of the round, and the flag behind it is the number of the round.
    const Bytes data = pattern(round, kBytes);
    std::copy(data.begin(), data.end(), from.data());
    from.set_word(kBytes, round);
    const Segments source = {from.segment(0, kBytes)};
    const Segments flag = {from.segment(kBytes, 8)};
    if (!polled) post_receive(link.far, round);
    const WorkRequest list[] = {
        to_remote(Opcode::kWrite, round, source, to.locator(0, kBytes), 0),
        to_remote(polled ? Opcode::kWrite : Opcode::kWriteImmediate, round, flag,
                  to.locator(kBytes, 8)),
    };
    ASSERT_TRUE(link.near->post_send(list).ok());
    if (polled) {
      std::atomic_ref<uint64_t> arrived(*reinterpret_cast<uint64_t*>(to.data() + kBytes));
      // Polls the sender's queue, too: on some transports time, and so the memory, only advances by
      // polling a completion queue.
      Completion completion;
      size_t completions = 0;
      ASSERT_TRUE(eventually([&] {
        if (completions == 0) completions += link.near.sends->poll(std::span(&completion, 1));
        return arrived.load(std::memory_order_acquire) == round;
      }));
      EXPECT_TRUE(holds(to, 0, data));
      if (completions == 0) completion = take_one(*link.near.sends);
      EXPECT_TRUE(succeeded(completion, round, CompletionKind::kWrite));
    } else {
      EXPECT_TRUE(
          succeeded(take_one(*link.far.receives), round, CompletionKind::kReceiveImmediate));
      EXPECT_TRUE(holds(to, 0, data));
      EXPECT_EQ(to.word(kBytes), round);
      EXPECT_TRUE(succeeded(take_one(*link.near.sends), round, CompletionKind::kWrite));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, TransferContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
