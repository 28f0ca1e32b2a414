// Decoders of what processes send about nodes: names, positions, the contents of a node, counts of
// moves, and the playouts of a job.
#ifndef CARIAMA_MCTS_ENGINE_MOVE_RECORDS_H_
#define CARIAMA_MCTS_ENGINE_MOVE_RECORDS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "mcts/engine/node.h"
#include "mcts/values.h"

namespace cariama::mcts {
namespace internal {

// Returns the byte at `offset` of a record. A member that is no bool or no Verdict must not be
// read as one.
[[nodiscard]] inline uint8_t byte_of(const std::byte* record, size_t offset) {
  return std::to_integer<uint8_t>(record[offset]);
}
[[nodiscard]] constexpr bool is_verdict(uint8_t value) {
  return value <= static_cast<uint8_t>(Verdict::kPruned);
}

}  // namespace internal

// Returns true if a node of a job of `processes` can have this name. Another name must not be
// looked up.
[[nodiscard]] constexpr bool is_possible(const RemoteNode& name, uint32_t processes) {
  return name.rank < processes && name.generation <= RemoteNode::kLastGeneration;
}

// Returns the position in a message, or nullopt if `bytes` is not the size of a position. Any bytes
// of this size count as a position: the game alone knows which ones it can reach.
template <Game G>
[[nodiscard]] std::optional<G> decode_position(const void* data, uint64_t bytes) {
  if (bytes != sizeof(G)) return std::nullopt;
  alignas(G) std::byte position[sizeof(G)];
  std::memcpy(position, data, sizeof(G));
  return *std::launder(reinterpret_cast<const G*>(position));
}

// Returns the records in a message, or nullopt if these are not the contents of a node: a record is
// cut short, there are more than the game has moves, a verdict does not exist, a number is not
// finite, or a child cannot exist in a job of `processes`. The moves themselves are not checked:
// the game alone knows which are legal.
template <Game G>
[[nodiscard]] std::optional<std::vector<MoveRecord<G>>> decode_move_records(const void* data,
                                                                            uint64_t bytes,
                                                                            uint32_t processes) {
  using Record = MoveRecord<G>;
  if (bytes % sizeof(Record) != 0 || bytes / sizeof(Record) > G::kMaxMoves) return std::nullopt;
  std::vector<Record> records(bytes / sizeof(Record));
  const auto* from = static_cast<const std::byte*>(data);
  for (Record& record : records) {
    const uint8_t has_child = internal::byte_of(from, offsetof(Record, has_child));
    if (has_child > 1) return std::nullopt;
    if (!internal::is_verdict(internal::byte_of(from, offsetof(Record, verdict))))
      return std::nullopt;
    std::memcpy(static_cast<void*>(&record), from, sizeof record);
    if (record.has_child && !is_possible(record.child, processes)) return std::nullopt;
    if (!std::isfinite(record.prior) || !std::isfinite(record.value) ||
        !std::isfinite(record.amaf_visits) || !std::isfinite(record.amaf_value)) {
      return std::nullopt;
    }
    from += sizeof record;
  }
  return records;
}

// Returns the counts in a message about a node with `moves` moves, or nullopt if these are not such
// counts.
[[nodiscard]] inline std::optional<std::vector<MoveCounts>> decode_move_counts(const void* data,
                                                                               uint64_t bytes,
                                                                               int moves) {
  if (bytes % sizeof(MoveCounts) != 0) return std::nullopt;
  std::vector<MoveCounts> counts(bytes / sizeof(MoveCounts));
  const auto* from = static_cast<const std::byte*>(data);
  for (MoveCounts& count : counts) {
    if (!internal::is_verdict(internal::byte_of(from, offsetof(MoveCounts, verdict))))
      return std::nullopt;
    std::memcpy(&count, from, sizeof count);
    if (count.move >= moves || !std::isfinite(count.value) || !std::isfinite(count.amaf_visits) ||
        !std::isfinite(count.amaf_value)) {
      return std::nullopt;
    }
    from += sizeof count;
  }
  return counts;
}

// Sets `samples` to the playouts in the answer to a job. If these are none, because one is cut
// short or a number of its value is not between 0 and 1, clears `samples` and returns false.
template <Game G>
[[nodiscard]] bool decode_samples(const void* data, uint64_t bytes,
                                  std::vector<Sample<G>>& samples) {
  samples.resize(bytes % sizeof(Sample<G>) == 0 ? bytes / sizeof(Sample<G>) : 0);
  if (samples.empty()) return bytes == 0;
  std::memcpy(static_cast<void*>(samples.data()), data, bytes);
  for (const Sample<G>& sample : samples) {
    const auto possible = [](float one) { return one >= 0 && one <= 1; };
    if (std::ranges::all_of(internal::numbers_of(sample.value), possible)) continue;
    samples.clear();
    return false;
  }
  return true;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_MOVE_RECORDS_H_
