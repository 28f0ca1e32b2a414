// How the processes of a job that ends agree on who is still there, and on whether anything is
// under way. A pure function of what they told each other; see fabric_finalize.cc for the rounds.
#ifndef CARIAMA_DSFABRIC_INTERNAL_ROLL_CALL_H_
#define CARIAMA_DSFABRIC_INTERNAL_ROLL_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cariama::internal {

// What one process says in a round.
struct Presence {
  uint64_t begun = 0;  // calls, without those to and from the processes in `lost`
  uint64_t over = 0;
  std::vector<uint32_t> lost;         // ranks that it holds for dead, ascending
  std::vector<uint32_t> lost_before;  // those that it said so of in the round before, ascending

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(begun, over, lost, lost_before);
  }
};

// What follows from a round, the same for all.
struct RollCall {
  uint64_t begun = 0;  // sums over those who go on
  uint64_t over = 0;
  std::vector<uint32_t> without;  // ranks that the job goes on without, ascending
  bool agreed = false;            // everybody who goes on left out just these from its counts

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(begun, over, without, agreed);
  }
  friend bool operator==(const RollCall&, const RollCall&) = default;
};

// `said` by rank; nullopt: it has ended, or was left out before.
//
// Who has ended is left out. So that the end always comes, two processes that both live but have
// lost each other (the link between them failed) cannot both stay: the higher rank goes. That they
// live is certain if the one that was given up in the round before has come to this one: it cannot
// have done so before it learned how the last one ended, which was later than it was given up.
[[nodiscard]] inline RollCall call_roll(const std::vector<std::optional<Presence>>& said) {
  RollCall result;
  std::vector<bool> out(said.size());
  for (size_t rank = 0; rank < said.size(); ++rank) out[rank] = !said[rank].has_value();
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (out[rank]) continue;
    for (const uint32_t lost : said[rank]->lost_before) {
      if (lost >= said.size() || lost == rank || out[lost]) continue;
      out[std::max<size_t>(rank, lost)] = true;
      if (lost < rank) break;
    }
  }
  for (uint32_t rank = 0; rank < said.size(); ++rank) {
    if (out[rank]) result.without.push_back(rank);
  }
  result.agreed = true;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (out[rank]) continue;
    result.begun += said[rank]->begun;
    result.over += said[rank]->over;
    result.agreed = result.agreed && said[rank]->lost == result.without;
  }
  return result;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_ROLL_CALL_H_
