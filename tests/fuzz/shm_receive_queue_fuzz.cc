// A receive queue whose shared memory is overwritten by a hostile peer.
//
// The input is a list of steps: the owner posts, finishes or takes back a request; a peer claims a
// request properly, or stores any word anywhere in the queue. For any stores, these conditions must
// hold: the owner's side only uses its slots, it returns each posted request at most once and with
// the capacity that it was posted with, and it never runs out of free slots. A new queue in the
// same memory works like a first one.
//
// Longest input: 256 bytes.
#include <bit>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "dtutils/shm/receive_queue.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::shm {
namespace {

constexpr uint32_t kDomain = 1;

struct Owner {
  Owner()
      : control(*ControlSegment::create(Uuid{})),
        regions(*RegionTable::create(control)),
        memory(4096),
        keys(*regions->add({memory.data(), memory.size()}, Access::kAll, kDomain)) {}

  std::shared_ptr<ControlSegment> control;
  std::unique_ptr<RegionTable> regions;
  std::vector<std::byte> memory;
  RegionTable::Keys keys;
};

class Queue {
 public:
  Queue(Owner& owner, uint32_t depth, uint32_t max_segments)
      : owner_(owner),
        queue_(ReceiveQueue::create(owner.control, depth, max_segments)),
        base_(owner.control->base() + queue_->offset()),
        words_(receive_queue_bytes(std::bit_ceil(depth), depth, max_segments) / sizeof(uint64_t)),
        view_(base_, std::bit_ceil(depth), depth, max_segments) {}

  bool post(uint64_t id, uint32_t segment_count, uint32_t bytes, bool right_key) {
    std::vector<Segment> segments(segment_count % (view_.max_segments() + 1));
    uint64_t capacity = 0;
    for (Segment& segment : segments) {
      segment = {owner_.memory.data(), bytes % 64, right_key ? owner_.keys.local : LocalKey{1}};
      capacity += segment.length;
    }
    const ReceiveRequest request{.id = id,
                                 .segments = segments.data(),
                                 .segment_count = static_cast<uint32_t>(segments.size())};
    const bool posted = queue_->post(std::span(&request, 1), *owner_.regions, kDomain).posted == 1;
    require(posted == (posted_.size() < queue_->depth()));
    if (posted) posted_.emplace(id, capacity);
    return posted;
  }

  std::optional<uint32_t> claim(uint32_t claimant) {
    const std::optional<uint32_t> slot = view_.claim(claimant);
    if (slot.has_value()) require(*slot < queue_->depth());
    return slot;
  }

  std::optional<uint64_t> finish(uint32_t slot, uint32_t claimant) {
    const auto request = queue_->finish(slot, claimant);
    if (!request.has_value()) return std::nullopt;
    require(slot < queue_->depth());
    const auto it = posted_.find(request->id);
    require(it != posted_.end() && it->second == request->capacity);
    posted_.erase(it);
    return request->id;
  }

  void take_back() {
    if (const auto id = queue_->take_back()) require(posted_.erase(*id) == 1);
  }

  void repost_claimed(uint32_t claimant) {
    const std::vector<uint32_t> slots = queue_->claimed_by(claimant);
    require(std::set<uint32_t>(slots.begin(), slots.end()).size() == slots.size());
    for (const uint32_t slot : slots) {
      require(slot < queue_->depth());
      queue_->repost(slot, claimant);
    }
  }

  void store(size_t word, uint64_t value) {
    reinterpret_cast<uint64_t*>(base_)[word % words_] = value;
  }

 private:
  Owner& owner_;
  std::shared_ptr<ReceiveQueue> queue_;
  std::byte* base_;
  size_t words_;
  ReceiveQueueView view_;
  std::map<uint64_t, uint64_t> posted_;  // posted receives: id → capacity
};

}  // namespace
}  // namespace cariama::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::shm;  // NOLINT(google-build-using-namespace)
  using cariama::require;
  static auto* const owner = new Owner;
  cariama::FuzzInput input(data, size);
  const uint32_t depth = input.take<uint8_t>() % 9 + 1;
  const uint32_t max_segments = input.take<uint8_t>() % 3 + 1;
  {
    Queue queue(*owner, depth, max_segments);
    uint64_t next_id = 1;
    while (!input.empty()) {
      const auto step = input.take<uint8_t>();
      const auto argument = input.take<uint8_t>();
      const uint32_t claimant = argument % 4;
      switch (step % 8) {
        case 0:
          queue.post(next_id++, argument % 4, argument, argument % 16 != 0);
          break;
        case 1:
          static_cast<void>(queue.claim(claimant + 1));
          break;
        case 2:
          static_cast<void>(queue.finish(argument / 4, claimant));
          break;
        case 3:
          queue.take_back();
          break;
        case 4:
          queue.repost_claimed(claimant);
          break;
        case 5:  // any value
          queue.store(argument, input.take<uint64_t>());
          break;
        case 6:  // a plausible word of a slot
          queue.store(argument, posted_word(input.take<uint8_t>(), input.take<uint8_t>() % 4));
          break;
        default:  // a plausible entry of the ring
          queue.store(argument, uint64_t{input.take<uint8_t>()} << 16 | input.take<uint8_t>());
      }
    }
  }
  // A new queue, which most likely gets the same memory, works.
  Queue queue(*owner, depth, max_segments);
  for (uint64_t id = 0; id < depth; ++id) require(queue.post(id, 1, 8, true));
  for (uint64_t id = 0; id < depth; ++id) {
    const std::optional<uint32_t> slot = queue.claim(1);
    require(slot.has_value() && queue.finish(*slot, 1) == id);
  }
  return 0;
}
