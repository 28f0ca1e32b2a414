// The thief's side of the split deque, by one-sided operations. The scheduler and the simulation
// steal with it. split_deque.h has the protocol and its proof.
#ifndef CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_THIEF_H_
#define CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_THIEF_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/peer_words.h"
#include "tasks/internal/remote_access.h"
#include "tasks/internal/split_deque.h"

namespace cariama::tasks {

// Memory of the thief into which it reads the victim's public part.
struct PublicPartCopy {
  uint64_t words[3];  // state, copied, steal_request
  PublicEntry slots[kPublicSlots];
};

enum class Claim : uint8_t {
  kNothing,  // the public part was empty; the victim has a kAnyEntryRequest now
  kLost,     // the state changed between read and compare-and-swap
  kClaimed,  // this thief owns copy.slots[first]: it reads the frames, then calls report_copied()
};
struct ClaimResult {
  Claim claim;
  uint32_t first;
};

// Claims the oldest entry of the victim's public part. `public_part` is this worker's own one; the
// victim's has the same address. Blocks for one round trip, or for two if there is an entry, and
// calls looked() between them. If the public part was empty, writes kAnyEntryRequest to the victim.
// If the claim takes the last public entry and there is no steal request, writes kRefillRequest.
// Errors: those of `access`. INTERNAL if the victim's words are malformed.
template <typename Looked>
[[nodiscard]] absl::StatusOr<ClaimResult> claim_from_public_part(RemoteAccess& access, int victim,
                                                                 const PublicPart& public_part,
                                                                 PublicPartCopy& copy,
                                                                 const Looked& looked) {
  const auto address_of = [](const void* memory) { return reinterpret_cast<uint64_t>(memory); };
  const std::array<ReadPiece, 2> pieces{
      ReadPiece{address_of(&public_part.state), copy.words, sizeof copy.words},
      ReadPiece{address_of(&public_part.slots), copy.slots, sizeof copy.slots}};
  absl::Status status = access.read(victim, pieces);
  if (!status.ok()) return status;
  const uint64_t seen = copy.words[0];
  const uint64_t steal_request = copy.words[2];
  const PublicState state = PublicState::decode(seen);
  const auto request = [&](const uint64_t& wanted) {
    return access.write(victim, address_of(&public_part.steal_request), &wanted, sizeof wanted);
  };
  if (state.count == 0) {
    if (steal_request != kAnyEntryRequest) status = request(kAnyEntryRequest);
    if (!status.ok()) return status;
    return ClaimResult{Claim::kNothing, 0};
  }
  if (!state.is_possible()) return malformed_words(victim, "the state of the public part");
  looked();
  const absl::StatusOr<uint64_t> old =
      access.compare_swap(victim, address_of(&public_part.state), seen, claim_oldest(seen));
  if (!old.ok()) return old.status();
  if (*old != seen) return ClaimResult{Claim::kLost, 0};
  if (state.count == 1 && steal_request == kNoRequest) status = request(kRefillRequest);
  if (!status.ok()) return status;
  // Checked only after the claim succeeded. Until then the copy of the slot may be of another
  // state, and mix the words of two entries.
  if (!is_possible(copy.slots[state.first], access.size())) {
    return malformed_words(victim, "a public entry");
  }
  return ClaimResult{Claim::kClaimed, state.first};
}

// Reports to the victim that the frames of a claimed entry have been read, so that the victim may
// overwrite them. Does not block.
[[nodiscard]] inline absl::Status report_copied(RemoteAccess& access, int victim,
                                                const PublicPart& public_part) {
  return access.post_add(victim, reinterpret_cast<uint64_t>(&public_part.copied), 1);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_THIEF_H_
