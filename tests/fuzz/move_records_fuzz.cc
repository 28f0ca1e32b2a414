// Feeds the decoders of messages about nodes of a search tree with arbitrary bytes.
//
// From accepted records a node can be created. Its contents give the same statistics, and its
// children exist in the job.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "docs/examples/connect_four.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/move_records.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using namespace cariama::mcts;  // NOLINT(google-build-using-namespace)
  using Game = example::ConnectFour;
  constexpr uint32_t kProcesses = 5;

  if (const auto counts = decode_move_counts(data, size, Game::kMaxMoves)) {
    for (const MoveCounts& count : *counts) {
      require(count.move < Game::kMaxMoves && count.verdict <= Verdict::kPruned);
    }
  }
  const auto records = decode_move_records<Game>(data, size, kProcesses);
  if (!records) return 0;
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Node<Game>* node =
      Node<Game>::create(Game(), std::span<const MoveRecord<Game>>(*records), arena, 0);
  require(node != nullptr && node->size() == static_cast<int>(records->size()));
  require(node->size() != 0 || node->outcome() != Outcome::kOpen);
  for (int i = 0; i < node->size(); ++i) {
    const MoveRecord<Game>& record = (*records)[static_cast<size_t>(i)];
    require(node->visits(i) == record.visits && node->verdict(i) == record.verdict);
    const auto child = node->child(i);
    require(child.is_remote() == record.has_child);
    if (record.has_child) require(child.remote() == record.child && record.child.rank < kProcesses);
  }
  node->destroy(arena);
  return 0;
}
