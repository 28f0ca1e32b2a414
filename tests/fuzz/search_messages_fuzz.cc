// A node of a search tree and a copy of it, which get the messages that a misbehaving peer sends:
// contents, counts, names, offers, playouts and answers, in any order. The game has two players,
// five, or one.
//
// A message that is malformed changes nothing. After each other one, select_move() returns a move
// of the node or none, children exist in the job, and a name finds the object that got it, or none.
//
// Longest input: 256 bytes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "mcts/engine/arena.h"
#include "mcts/engine/copies.h"
#include "mcts/engine/job.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/offers.h"
#include "mcts/engine/selection.h"
#include "mcts/engine/slot_table.h"
#include "mcts/options.h"
#include "mcts/values.h"
#include "tests/fuzz/fuzz_arena.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/mcts/testing/players_games.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

constexpr uint32_t kProcesses = 5;

// Returns the bytes of records or counts: those of the input, or valid ones of which the input
// changes a byte.
template <typename Element>
std::vector<std::byte> take_elements(FuzzInput& input, const std::vector<Element>& valid) {
  std::vector<std::byte> bytes(std::as_bytes(std::span(valid)).begin(),
                               std::as_bytes(std::span(valid)).end());
  const auto choice = input.take<uint8_t>();
  if (choice % 4 == 0) {
    const std::string_view taken = input.take_bytes(input.take<uint16_t>() % 1024);
    const auto raw = std::as_bytes(std::span(taken));
    bytes.assign(raw.begin(), raw.end());
  } else if (choice % 4 == 1 && !bytes.empty()) {
    bytes[input.take<uint16_t>() % bytes.size()] = std::byte{input.take<uint8_t>()};
  } else if (choice % 4 == 2) {
    bytes.resize(bytes.size() - std::min<size_t>(bytes.size(), input.take<uint8_t>()));
  }
  return bytes;
}

template <typename G>
void check(const Node<G>& node) {
  for (int i = 0; i < node.size(); ++i) {
    require(std::isfinite(node.prior(i)));
    const Verdict verdict = node.verdict(i);
    require(verdict <= Verdict::kPruned);
    require(kTwoPlayers<G> || (verdict != Verdict::kLoses && verdict != Verdict::kDraws));
    const auto child = node.child(i);
    require(!child.is_remote() || is_possible(child.remote(), kProcesses));
  }
  // Behind the named outcomes: the wins of the players from 2 on.
  constexpr auto kLast = kTwoPlayers<G> ? Outcome::kDraw : win_of(players<G>() - 1);
  require(node.outcome() <= std::max(kLast, Outcome::kDraw));
  const int move = select_move(node, SelectionOptions{});
  require(move >= -1 && move < node.size());
}

// ---- Names --------------------------------------------------------------------------------------

void use_names(FuzzInput& input) {
  SlotTable<int, 3> table;
  std::map<std::pair<uint32_t, uint32_t>, int> given;  // 0: taken
  for (int next = 1; !input.empty(); ++next) {
    const auto step = input.take<uint8_t>();
    if (step % 4 == 0) {
      const SlotId id = table.add(next);
      require(id.generation <= 3 && given.insert({{id.slot, id.generation}, next}).second);
      continue;
    }
    const SlotId id = step % 4 == 1 ? SlotId{input.take<uint32_t>(), input.take<uint32_t>()}
                                    : SlotId{input.take<uint8_t>() % 16U, step / 4 % 5U};
    const auto known = given.find({id.slot, id.generation});
    const std::optional<int> expected =
        known == given.end() || known->second == 0 ? std::nullopt : std::optional(known->second);
    require(table.find(id) == expected);
    if (step % 4 != 3) continue;
    require(table.take(id) == expected);
    if (expected) known->second = 0;
  }
}

// ---- Nodes --------------------------------------------------------------------------------------

template <typename G>
void use_nodes(FuzzInput& input, const G& position) {
  Arena& arena = fuzz_arena();
  Random random(1);
  Node<G>* const node = Node<G>::create(position, arena, 0, random, false);
  require(node != nullptr);
  const auto contents = [node] {
    std::vector<MoveRecord<G>> records;
    for (int i = 0; i < node->size(); ++i) records.push_back(node->record(i));
    return records;
  };
  Node<G>* copy = nullptr;
  Offers<G> offers;
  std::vector<Sample<G>> samples;
  CountExchange exchange;
  while (!input.empty()) {
    switch (input.take<uint8_t>() % 7) {
      case 0: {  // CopyExchange::on_copy(), on_merge()
        const std::vector<std::byte> bytes = take_elements(input, contents());
        const auto records = decode_move_records<G>(bytes.data(), bytes.size(), kProcesses);
        if (!records) break;
        std::vector<MoveCounts> counts;
        for (const MoveRecord<G>& record : *records) {
          counts.push_back({record.visits, record.verdict, 0, record.amaf_visits, record.amaf_value,
                            record.value});
        }
        if (copy == nullptr) {
          copy = Node<G>::create(position, std::span<const MoveRecord<G>>(*records), arena, 0);
          require(copy != nullptr);
          exchange.set_common(std::move(counts));
        } else if (counts.size() == exchange.common().size()) {
          for (int i = 0; i < copy->size(); ++i) {
            const MoveCounts& now = counts[static_cast<size_t>(i)];
            exchange.merge(*copy, i, now);
            require(exchange.common()[static_cast<size_t>(i)].visits == now.visits);
            const MoveRecord<G>& record = (*records)[static_cast<size_t>(i)];
            if (record.has_child) copy->set_child(i, typename Node<G>::Ref(record.child));
          }
          copy->resolve();
        }
        break;
      }
      case 1: {  // CopyExchange::on_counts()
        std::vector<MoveCounts> grown;
        if (copy != nullptr) grown = exchange.take_grown(*copy, false);
        const std::vector<std::byte> bytes = take_elements(input, grown);
        const auto counts = decode_move_counts(bytes.data(), bytes.size(), node->size());
        if (!counts) break;
        for (const MoveCounts& one : *counts) node->add_counts(one.move, one, {});
        node->resolve();
        break;
      }
      case 2: {  // CopyExchange::on_offered(), answer_offer(), end_creation()
        typename Offers<G>::Offer offer;
        offer.move = input.take<uint16_t>();
        offer.name = input.take<RemoteNode>();
        if (!is_possible(offer.name, kProcesses) || offer.move >= node->size()) break;
        const bool creates = input.take<uint8_t>() % 2 == 1 && node->claim_child(offer.move);
        if (node->child(offer.move).none()) {
          require(node->publish_child(offer.move, typename Node<G>::Ref(offer.name)));
        }
        require(offers.defer(*node, offer) == node->child(offer.move).is_creating());
        if (creates) node->set_child(offer.move, {});
        require(offers.take_deferred(*node, offer.move).size() == (creates ? 1 : 0));
        break;
      }
      case 3: {  // on_unknown()
        const auto move = input.take<uint8_t>();
        if (move < node->size()) node->drop_child(move, input.take<RemoteNode>());
        break;
      }
      case 4: {  // Worker::on_answer(): playouts
        std::vector<Sample<G>> valid(input.take<uint8_t>() % 4);
        const std::vector<std::byte> bytes = take_elements(input, valid);
        require(decode_samples<G>(bytes.data(), bytes.size(), samples) || samples.empty());
        require(samples.size() * sizeof(Sample<G>) <= bytes.size());
        for (const Sample<G>& sample : samples) {
          for (const float one : internal::numbers_of(sample.value)) require(one >= 0 && one <= 1);
          node->count_amaf(sample);
        }
        break;
      }
      case 5: {  // RemotePlayouts::on_request()
        const std::vector<std::byte> bytes = take_elements(input, std::vector{position});
        const std::optional<G> position = decode_position<G>(bytes.data(), bytes.size());
        require(position.has_value() == (bytes.size() == sizeof(G)));
        require(!position || std::memcmp(&*position, bytes.data(), sizeof(G)) == 0);
        break;
      }
      default: {  // Worker::on_answer(): sums and outcome
        JobAnswer<G> answer;
        const int move = input.take<uint8_t>() % node->size();
        answer.completed = input.take<uint8_t>();
        answer.outcome = static_cast<Outcome>(input.take<uint8_t>() % 4);
        if (answer.outcome != Outcome::kOpen && !kTwoPlayers<G>) {
          answer.outcome = win_of(input.take<uint8_t>() % players<G>());
        }
        for (double& one : internal::numbers_of(answer.value)) one = input.take<double>();
        if (!answer.is_possible(kProcesses)) break;
        for (const double one : internal::numbers_of(answer.value)) require(std::isfinite(one));
        node->leave(move, answer.completed, answer.value);
        if (answer.outcome != Outcome::kOpen) node->prove(move, answer.outcome);
        const Outcome known = node->resolve();
        // With other than two players only the player to move has proofs, or all moves are pruned.
        require(kTwoPlayers<G> || known == Outcome::kOpen || known == Outcome::kDraw ||
                known == win_of(node->player()));
        break;
      }
    }
    check(*node);
    if (copy != nullptr) check(*copy);
  }
  if (copy != nullptr) copy->destroy(arena);
  node->destroy(arena);
}

void use(FuzzInput& input) {
  const auto choice = input.take<uint8_t>();
  testing::OwnedHeap heap;
  heap.stones = 9;
  heap.player = 3;
  if (choice % 4 == 0) {
    use_names(input);
  } else if (choice / 4 % 3 == 0) {
    use_nodes(input, testing::TicTacToe());
  } else if (choice / 4 % 3 == 1) {
    use_nodes(input, heap);
  } else {
    use_nodes(input, testing::PayoffTree<1>(3));
  }
}

}  // namespace
}  // namespace cariama::mcts

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::FuzzInput input(data, size);
  cariama::mcts::use(input);
  return 0;
}
