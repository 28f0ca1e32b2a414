// A node of a search tree and a copy of it, which get the messages that a misbehaving peer sends:
// contents, counts, names, offers and playouts, in any order.
//
// A message that is malformed changes nothing. After each other one, select_move() returns a move
// of the node or none, children exist in the job, and a name finds the object that got it, or none.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
#include "tests/fuzz/fuzz_input.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using Game = testing::TicTacToe;
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

void check(const Node<Game>& node) {
  for (int i = 0; i < node.size(); ++i) {
    require(std::isfinite(node.prior(i)));
    require(node.verdict(i) <= Verdict::kPruned);
    const auto child = node.child(i);
    require(!child.is_remote() || is_possible(child.remote(), kProcesses));
  }
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

void use_nodes(FuzzInput& input) {
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Random random(1);
  Node<Game>* const node = Node<Game>::create(Game(), arena, 0, random, false);
  require(node != nullptr);
  const auto contents = [node] {
    std::vector<MoveRecord<Game>> records;
    for (int i = 0; i < node->size(); ++i) records.push_back(node->record(i));
    return records;
  };
  Node<Game>* copy = nullptr;
  Offers<Game> offers;
  std::vector<Sample<Game>> samples;
  CountExchange exchange;
  while (!input.empty()) {
    switch (input.take<uint8_t>() % 5) {
      case 0: {  // CopyExchange::on_copy(), on_merge()
        const std::vector<std::byte> bytes = take_elements(input, contents());
        const auto records = decode_move_records<Game>(bytes.data(), bytes.size(), kProcesses);
        if (!records) break;
        std::vector<MoveCounts> counts;
        for (const MoveRecord<Game>& record : *records) {
          counts.push_back({record.visits, record.verdict, 0, record.amaf_visits, record.amaf_value,
                            record.value});
        }
        if (copy == nullptr) {
          copy = Node<Game>::create(Game(), std::span<const MoveRecord<Game>>(*records), arena, 0);
          require(copy != nullptr);
          exchange.set_common(std::move(counts));
        } else if (counts.size() == exchange.common().size()) {
          for (int i = 0; i < copy->size(); ++i) {
            const MoveCounts& now = counts[static_cast<size_t>(i)];
            exchange.merge(*copy, i, now);
            require(exchange.common()[static_cast<size_t>(i)].visits == now.visits);
            const MoveRecord<Game>& record = (*records)[static_cast<size_t>(i)];
            if (record.has_child) copy->set_child(i, Node<Game>::Ref(record.child));
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
        Offers<Game>::Offer offer;
        offer.move = input.take<uint16_t>();
        offer.name = input.take<RemoteNode>();
        if (!is_possible(offer.name, kProcesses) || offer.move >= node->size()) break;
        const bool creates = input.take<uint8_t>() % 2 == 1 && node->claim_child(offer.move);
        if (node->child(offer.move).none()) {
          require(node->publish_child(offer.move, Node<Game>::Ref(offer.name)));
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
      default: {  // Worker::on_answer()
        std::vector<Sample<Game>> valid(input.take<uint8_t>() % 4);
        const std::vector<std::byte> bytes = take_elements(input, valid);
        require(decode_samples<Game>(bytes.data(), bytes.size(), samples) || samples.empty());
        require(samples.size() * sizeof(Sample<Game>) <= bytes.size());
        for (const Sample<Game>& sample : samples) {
          require(sample.value >= 0 && sample.value <= 1);
          node->count_amaf(sample);
        }
        break;
      }
    }
    check(*node);
    if (copy != nullptr) check(*copy);
  }
  if (copy != nullptr) copy->destroy(arena);
  node->destroy(arena);
}

}  // namespace
}  // namespace cariama::mcts

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::FuzzInput input(data, size);
  if (input.take<uint8_t>() % 4 == 0) {
    cariama::mcts::use_names(input);
  } else {
    cariama::mcts::use_nodes(input);
  }
  return 0;
}
