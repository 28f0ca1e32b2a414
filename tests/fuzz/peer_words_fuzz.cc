// A thief, a joiner and a server of atomics read words that a misbehaving worker writes between any
// two steps: the public part of its deque, join records, and requests for atomics.
//
// Words that pass the checks name slots, workers and places that exist. As long as no worker has
// misbehaved, every public entry is taken once, the thief takes the oldest one and the owner the
// newest one, and no check fails.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "tasks/internal/join_protocol.h"
#include "tasks/internal/peer_words.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::tasks {
namespace {

constexpr int kWorkers = 4;  // the worker that is tested is rank 0
constexpr uint64_t kRecords = 8;

// The memory at kPinnedAddress, in which all workers of the test have their records: record i is at
// the same address in each of them, and the access below maps all workers to the same memory.
JoinRecord* records() {
  static JoinRecord* const all = [] {
    void* const at =
        mmap(reinterpret_cast<void*>(kPinnedAddress), kFirstSegmentBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    require(at == reinterpret_cast<void*>(kPinnedAddress));
    return reinterpret_cast<JoinRecord*>(static_cast<std::byte*>(at) + 64);
  }();
  return all;
}

struct NativeMemory {
  uint64_t load(const std::atomic<uint64_t>& word) const { return word.load(); }
  void store(std::atomic<uint64_t>& word, uint64_t value) const { word.store(value); }
  uint64_t compare_swap(std::atomic<uint64_t>& word, uint64_t expected, uint64_t desired) const {
    word.compare_exchange_strong(expected, desired);
    return expected;
  }
};

// One-sided operations on memory of this process.
class LocalAccess final : public RemoteAccess {
 public:
  explicit LocalAccess(PublicPart& part) : RemoteAccess(0, kWorkers), part_(part) {}

  absl::Status read(int peer, std::span<const ReadPiece> pieces) override {
    for (const ReadPiece& piece : pieces) {
      check(peer, piece.address, piece.bytes);
      std::memcpy(piece.local, reinterpret_cast<const void*>(piece.address), piece.bytes);
    }
    return absl::OkStatus();
  }
  absl::Status write(int peer, uint64_t address, const void* local, size_t bytes) override {
    check(peer, address, bytes);
    std::memcpy(reinterpret_cast<void*>(address), local, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> fetch_add(int peer, uint64_t address, uint64_t addend) override {
    check(peer, address, sizeof addend);
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(address)).fetch_add(addend);
  }
  absl::StatusOr<uint64_t> compare_swap(int peer, uint64_t address, uint64_t expected,
                                        uint64_t desired) override {
    check(peer, address, sizeof desired);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(address))
        .compare_exchange_strong(expected, desired);
    return expected;
  }
  absl::Status post_add(int peer, uint64_t address, uint64_t addend) override {
    return fetch_add(peer, address, addend).status();
  }
  absl::Status add_segment(size_t, const MemorySource&) override { return absl::OkStatus(); }
  void* mapped(int, uint64_t, size_t) override { return nullptr; }

 private:
  void check(int peer, uint64_t address, uint64_t bytes) const {
    require(peer >= 0 && peer < kWorkers);
    require(lies_within(address, bytes, reinterpret_cast<uint64_t>(&part_), sizeof part_) ||
            lies_within(address, bytes, kPinnedAddress, kFirstSegmentBytes));
  }

  PublicPart& part_;
};

class Scene {
 public:
  void step(FuzzInput& input) {
    const auto choice = input.take<uint8_t>();
    switch (choice % 8) {
      case 0:
        return publish(input, 1 + choice / 8 % kPublicSlots);
      case 1:
        return take_back();
      case 2:
        return claim([] {});
      case 3:  // the owner or a misbehaving worker acts within the steal
        return claim([&] { act(input, choice); });
      case 4:
        return join(input, choice / 8);
      case 5:
        return write_record(input, choice / 8);
      case 6:
        return serve_atomic(input);
      default:
        return misbehave(input);
    }
  }

 private:
  void act(FuzzInput& input, uint8_t choice) {
    if ((choice & 8) != 0) take_back();
    if ((choice & 16) != 0) publish(input, 1 + choice / 32);
    if ((choice & 64) != 0 && input.take<uint8_t>() % 4 == 0) misbehave(input);
  }
  // ---- The deque.
  void publish(FuzzInput& input, uint32_t count) {
    if (owner_.count() != 0) return;
    require(!honest_ || published_.empty());
    published_.clear();
    owner_.publish(
        [&](uint32_t) {
          const uint64_t sp = 0x7000 + 64 * ++entries_;
          published_.push_back(sp);
          return PublicEntry{
              sp, sp + 32, Reference(input.take<uint8_t>() % kWorkers, kPinnedAddress + 64).word(),
              Reference(0, kPinnedAddress + 128).word()};
        },
        count);
  }
  void take_back() {
    const bool taken = owner_.take_back();
    if (!honest_) return;
    require(taken == !published_.empty());
    if (taken) published_.pop_back();
  }
  template <typename Within>
  void claim(const Within& within) {
    bool looked = false;
    const auto got = claim_from_public_part(access_, 1, part_, *copy_, [&] {
      looked = true;
      within();
    });
    if (!got.ok()) return require(!honest_ && absl::IsInternal(got.status()));
    if (got->claim != Claim::kClaimed) return;
    require(looked && got->first < kPublicSlots);
    const PublicEntry entry = copy_->slots[got->first];
    require(entry.sp < entry.top && Reference(entry.report).rank() < kWorkers &&
            Reference(entry.record).rank() < kWorkers);
    require(report_copied(access_, 1, part_).ok());
    if (!honest_) return;
    require(!published_.empty() && published_.front() == entry.sp);
    published_.pop_front();
  }
  void misbehave(FuzzInput& input) {
    honest_ = false;
    const auto choice = input.take<uint8_t>();
    const uint64_t value = (choice & 1) != 0 ? input.take<uint64_t>() : input.take<uint16_t>();
    switch (choice / 2 % 4) {
      case 0:
        return part_.state.store(value);
      case 1:
        return part_.steal_request.store(value);
      default:
        return part_.slots[choice / 8 % kPublicSlots][choice / 64].store(value);
    }
  }

  // ---- Join records.
  void write_record(FuzzInput& input, uint8_t choice) {
    JoinRecord& record = records()[choice % kRecords];
    switch (choice / 8) {
      case 0:
        new (&record) JoinRecord;
        record.arrivals.store(0);
        return;
      case 1:
        return record.arrivals.store(input.take<uint8_t>() % 4);
      case 2: {
        std::memset(&record.result, 0, sizeof record.result);
        record.result.kind = static_cast<TaskResultKind>(input.take<uint8_t>() % 6);
        record.result.bytes = input.take<uint8_t>();
        record.result.block = input.take<uint8_t>() == 0 ? 0 : input.take<uint64_t>();
        return;
      }
      default:
        record.waiter = {input.take<uint64_t>() >> input.take<uint8_t>() % 64,
                         input.take<uint8_t>(), input.take<uint8_t>(),
                         input.take<uint64_t>() >> input.take<uint8_t>() % 64};
    }
  }
  void join(FuzzInput& input, uint8_t choice) {
    JoinRecord& record = records()[choice % kRecords];
    const Reference reference(input.take<uint8_t>() % kWorkers, &record);
    if (record.arrivals.load() > 2) record.arrivals.store(0);
    if (choice / 8 == 0) {
      TaskResult result;
      result.kind = TaskResultKind::kValue;
      result.bytes = input.take<uint8_t>() % (TaskResult::kInlineBytes + 1);
      std::memset(result.value, 7, sizeof result.value);
      const absl::StatusOr<Suspended> waiter = joins_.deliver(reference, result);
      if (!waiter.ok() || waiter->frames == 0) return;
      require(waiter->sp < waiter->top && Reference(waiter->frames).rank() < kWorkers &&
              Reference(waiter->report).rank() < kWorkers);
      return;
    }
    if (choice / 8 == 1) {
      const Suspended task{Reference(0, kPinnedAddress + 64).word(), 64, 128, 0};
      return require(joins_.wait(reference, task).ok());
    }
    const absl::StatusOr<std::optional<TaskResult>> result = joins_.poll_result(reference);
    if (!result.ok()) return require(absl::IsInternal(result.status()));
    if (!result->has_value()) return;
    // As Worker::fetch().
    const auto bytes = std::make_unique<std::byte[]>((*result)->bytes);
    if ((*result)->block == 0) {
      std::memcpy(bytes.get(), (*result)->value, (*result)->bytes);
    } else {
      require(Reference((*result)->block).rank() < kWorkers);
    }
  }

  // ---- Requests for atomics.
  static void serve_atomic(FuzzInput& input) {
    const auto address = input.take<uint64_t>();
    const auto bytes = input.take<uint64_t>();
    const auto begin = input.take<uint64_t>();
    const auto length = input.take<uint64_t>();
    using Wide = unsigned __int128;
    require(lies_within(address, bytes, begin, length) ==
            (address >= begin && Wide{address} + bytes <= Wide{begin} + length));
    if (address < kPinnedAddress) return;
    const size_t segment = segment_of(address);
    if (segment >= kMaxSegments) return;
    require(lies_within(address, 1, segment_address(segment), segment_bytes(segment)));
  }

  PublicPart part_{};
  NativeMemory memory_;
  PublicPartOwner<NativeMemory> owner_{memory_, part_};
  LocalAccess access_{part_};
  // Separate heap memory, so that AddressSanitizer reports an access beyond it.
  std::unique_ptr<PublicPartCopy> copy_ = std::make_unique<PublicPartCopy>();
  std::unique_ptr<JoinCopy> join_copy_ = std::make_unique<JoinCopy>();
  JoinProtocol joins_{access_, *join_copy_};
  std::deque<uint64_t> published_;  // sp of the public entries, the oldest first
  uint64_t entries_ = 0;
  bool honest_ = true;
};

}  // namespace
}  // namespace cariama::tasks

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::tasks;  // NOLINT
  std::memset(static_cast<void*>(records()), 0, kRecords * sizeof(JoinRecord));
  cariama::FuzzInput input(data, size);
  Scene scene;
  while (!input.empty()) scene.step(input);
  return 0;
}
