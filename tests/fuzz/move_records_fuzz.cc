// Feeds the decoders of messages about nodes of a search tree with arbitrary bytes, for games of
// two players, of three and of one.
//
// From accepted records a node can be created. Its contents give the same statistics, and its
// children exist in the job.
#include <cstddef>
#include <cstdint>
#include <span>

#include "docs/examples/connect_four.h"
#include "docs/examples/nim_for_three.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/move_records.h"
#include "mcts/values.h"
#include "tests/fuzz/fuzz_arena.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/mcts/testing/players_games.h"

namespace cariama::mcts {
namespace {

constexpr uint32_t kProcesses = 5;

// Decodes the contents of a node for a position in which the game has not ended.
template <typename G>
void decode_node(const uint8_t* data, size_t size, const G& position) {
  const auto records = decode_move_records<G>(data, size, kProcesses);
  if (!records) return;
  Arena& arena = fuzz_arena();
  Node<G>* node = Node<G>::create(position, std::span<const MoveRecord<G>>(*records), arena, 0);
  require(node != nullptr && node->size() == static_cast<int>(records->size()));
  require(node->size() != 0 || node->outcome() != Outcome::kOpen);
  for (int i = 0; i < node->size(); ++i) {
    const MoveRecord<G>& record = (*records)[static_cast<size_t>(i)];
    // With other than two players a loss or a draw says nothing.
    const bool open =
        !kTwoPlayers<G> && (record.verdict == Verdict::kLoses || record.verdict == Verdict::kDraws);
    require(node->visits(i) == record.visits);
    require(node->verdict(i) == (open ? Verdict::kOpen : record.verdict));
    const auto child = node->child(i);
    require(child.is_remote() == record.has_child);
    if (record.has_child) require(child.remote() == record.child && record.child.rank < kProcesses);
  }
  node->destroy(arena);
}

void decode(const uint8_t* data, size_t size) {
  using example::ConnectFour;
  if (const auto counts = decode_move_counts(data, size, ConnectFour::kMaxMoves)) {
    for (const MoveCounts& count : *counts) {
      require(count.move < ConnectFour::kMaxMoves && count.verdict <= Verdict::kPruned);
    }
  }
  decode_node(data, size, ConnectFour());
  decode_node(data, size, example::NimForThree());
  decode_node(data, size, testing::PayoffTree<1>());
}

}  // namespace
}  // namespace cariama::mcts

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::mcts::decode(data, size);
  return 0;
}
