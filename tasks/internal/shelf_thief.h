// The thief's side of the split deque (split_deque.h has the protocol and its proof), over
// one-sided operations: what the scheduler and the simulation steal with.
#ifndef CARIAMA_TASKS_INTERNAL_SHELF_THIEF_H_
#define CARIAMA_TASKS_INTERNAL_SHELF_THIEF_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/split_deque.h"

namespace cariama::tasks {

// Memory of the thief that the victim's shelf is read to.
struct ShelfCopy {
  uint64_t words[3];  // state, copied, attention
  PublicEntry slots[kShelfSlots];
};

enum class Claim : uint8_t {
  kNothing,  // the shelf was empty: its owner knows now that somebody is hungry
  kLost,     // somebody else was faster
  kOurs,     // copy.slots[first] is this thief's: it reads the frames, then calls say_copied()
};
struct ClaimResult {
  Claim claim;
  uint32_t first;
};

// Claims the oldest entry of the victim's shelf, which is at the address of `shelf` in each worker.
// `looked()` is called between the two round trips. Blocks for them.
template <typename Looked>
[[nodiscard]] absl::StatusOr<ClaimResult> claim_from_shelf(RemoteAccess& access, int victim,
                                                           const Shelf& shelf, ShelfCopy& copy,
                                                           const Looked& looked) {
  const auto address_of = [](const void* memory) { return reinterpret_cast<uint64_t>(memory); };
  const std::array<ReadPiece, 2> pieces{
      ReadPiece{address_of(&shelf.state), copy.words, sizeof copy.words},
      ReadPiece{address_of(&shelf.slots), copy.slots, sizeof copy.slots}};
  absl::Status status = access.read(victim, pieces);
  if (!status.ok()) return status;
  const uint64_t seen = copy.words[0];
  const uint64_t attention = copy.words[2];
  const ShelfState state = ShelfState::decode(seen);
  const auto ask = [&](const uint64_t& wanted) {
    return access.write(victim, address_of(&shelf.attention), &wanted, sizeof wanted);
  };
  if (state.count == 0) {
    if (attention != kHungry) status = ask(kHungry);
    if (!status.ok()) return status;
    return ClaimResult{Claim::kNothing, 0};
  }
  looked();
  const absl::StatusOr<uint64_t> old =
      access.compare_swap(victim, address_of(&shelf.state), seen, claim_oldest(seen));
  if (!old.ok()) return old.status();
  if (*old != seen) return ClaimResult{Claim::kLost, 0};
  if (state.count == 1 && attention == kCalm) status = ask(kRefill);
  if (!status.ok()) return status;
  return ClaimResult{Claim::kOurs, state.first};
}

// The frames have been read: their owner may overwrite them. Nobody waits for it.
[[nodiscard]] inline absl::Status say_copied(RemoteAccess& access, int victim, const Shelf& shelf) {
  return access.post_add(victim, reinterpret_cast<uint64_t>(&shelf.copied), 1);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SHELF_THIEF_H_
