// Combines the participation reports of an ending job, so that its processes agree on the set of
// remaining processes, and on whether calls are in flight. Pure functions; shutdown.h has the
// rounds.
#ifndef CARIAMA_DSFABRIC_FABRIC_PARTICIPATION_H_
#define CARIAMA_DSFABRIC_FABRIC_PARTICIPATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsfabric/serializer.h"

namespace cariama::internal {

// Returns the first of `ranks` that no rank of a job of `processes` in ascending order can be:
// there is no such process, or the rank is not above the one before it.
[[nodiscard]] inline std::optional<uint32_t> first_impossible_rank(std::span<const uint32_t> ranks,
                                                                   uint32_t processes) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= processes || (i != 0 && ranks[i] <= ranks[i - 1])) return ranks[i];
  }
  return std::nullopt;
}

// The report of one process in one round.
struct ParticipationReport {
  uint64_t begun = 0;  // calls, without those to and from the processes in `lost`
  uint64_t ended = 0;
  std::vector<uint32_t> lost;         // ranks that the process considers failed, ascending
  std::vector<uint32_t> lost_before;  // its `lost` of the previous round, ascending

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(begun, ended, lost, lost_before);
  }
  [[nodiscard]] std::optional<uint32_t> first_impossible(uint32_t processes) const {
    const std::optional<uint32_t> in_lost = first_impossible_rank(lost, processes);
    return in_lost.has_value() ? in_lost : first_impossible_rank(lost_before, processes);
  }
};

// The result of a round, the same for all processes.
struct ParticipationResult {
  uint64_t begun = 0;  // sums over the processes that remain
  uint64_t ended = 0;
  std::vector<uint32_t> without;  // ranks that are excluded from the job, ascending
  bool agreed = false;            // the `lost` of every remaining process equals `without`

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(begun, ended, without, agreed);
  }
  [[nodiscard]] std::optional<uint32_t> first_impossible(uint32_t processes) const {
    return first_impossible_rank(without, processes);
  }
};

// Loads a ParticipationReport or a ParticipationResult from the bytes that a process has put.
// Throws MalformedArguments, which names an impossible rank, if no process of a job of `processes`
// puts these bytes; std::bad_alloc.
template <typename Put>
[[nodiscard]] Put load_participation(std::span<const std::byte> bytes, uint32_t processes) {
  auto put = load_value<Put>(bytes);
  if (!bytes.empty()) throw MalformedArguments("bytes follow it");
  if (const std::optional<uint32_t> rank = put.first_impossible(processes)) {
    throw MalformedArguments("its list of ranks of a job of " + std::to_string(processes) +
                             " contains " + std::to_string(*rank) +
                             (*rank < processes ? " in the wrong place" : ""));
  }
  return put;
}

// Combines the reports of a round. `said` is indexed by rank; nullopt: the process has ended, or
// was excluded in an earlier round. Requires: no report has a first_impossible(said.size()).
//
// Processes that have ended are excluded. Two live processes that consider each other failed (the
// link between them has failed) cannot both remain, or the rounds would never end: the higher rank
// is excluded. Both are certain to be alive if the process that was reported lost in the previous
// round has sent a report in this round. A process sends that report after it has received the
// result of the previous round, so after it was considered failed.
[[nodiscard]] inline ParticipationResult combine_reports(
    const std::vector<std::optional<ParticipationReport>>& said) {
  ParticipationResult result;
  std::vector<bool> out(said.size());
  for (size_t rank = 0; rank < said.size(); ++rank) out[rank] = !said[rank].has_value();
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (out[rank]) continue;
    for (const uint32_t lost : said[rank]->lost_before) {
      if (lost == rank || out[lost]) continue;
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
    result.ended += said[rank]->ended;
    result.agreed = result.agreed && said[rank]->lost == result.without;
  }
  return result;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_PARTICIPATION_H_
