// The distributed hash table: counts the states of the 8-puzzle that can be reached, and the moves
// that the farthest one needs. The default is two processes; `example_puzzle_states -n 4` starts
// four.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "dht/hash_table.h"
#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"

namespace {

using namespace cariama;  // NOLINT: an example

using State = TableKey<1>;  // 9 tiles of 4 bits; 0 is the gap

// Appends the states that one move leads to.
void moves_from(const State& state, std::vector<State>& to) {
  const auto tile = [&](int place) { return state[0] >> (4 * place) & 15; };
  int gap = 0;
  while (tile(gap) != 0) ++gap;
  for (const auto& [x, y] : {std::pair{-1, 0}, {1, 0}, {0, -1}, {0, 1}}) {
    const int column = gap % 3 + x;
    const int row = gap / 3 + y;
    if (column < 0 || column > 2 || row < 0 || row > 2) continue;
    const int from = row * 3 + column;
    to.push_back({state[0] - (tile(from) << (4 * from)) + (tile(from) << (4 * gap))});
  }
}

// [puzzle_states]
struct Reached {
  uint64_t states = 0;
  uint64_t depth = 0;  // of the farthest state
};

Reached explore(Fabric& fabric, const State& start) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  Collectives all(fabric);
  // 200,000 states at a load of about 0.7: 280,000 buckets of 8 bytes, divided by the processes.
  const auto table =
      check(HashTable<1>::create(all, {.buckets = 280'000 / fabric.size()}, deadline));
  auto access = check(table->access());

  // The process that has inserted a state explores it: every state is explored exactly once.
  std::vector<State> frontier;
  if (access->find_or_put(start).outcome == TableOutcome::kInserted) frontier.push_back(start);
  for (Reached reached;; ++reached.depth) {
    std::vector<State> next;
    for (const State& state : frontier) moves_from(state, next);
    std::vector<TableResult> results(next.size());
    access->find_or_put(next, results);  // a batch: many operations in flight
    reached.states += check(all.all_reduce(uint64_t{frontier.size()}, std::plus<>(), deadline));
    frontier.clear();
    for (size_t i = 0; i < next.size(); ++i) {
      check(results[i].outcome != TableOutcome::kFull, "the table is too small");
      check(results[i].outcome != TableOutcome::kUnavailable, "a process does not answer");
      if (results[i].outcome == TableOutcome::kInserted) frontier.push_back(next[i]);
    }
    if (check(all.all_reduce(uint64_t{frontier.size()}, std::plus<>(), deadline)) == 0) {
      access.reset();
      check(table->destroy(deadline));
      return reached;
    }
  }
}
// [puzzle_states]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  auto fabric = check(Fabric::create({.threads = 1}));
  const auto self = check(fabric->init_thread(0));
  const Reached reached = explore(*fabric, {0x0'8765'4321});
  if (fabric->rank() == 0) {
    std::printf("%lu states, the farthest after %lu moves\n",
                static_cast<unsigned long>(reached.states),
                static_cast<unsigned long>(reached.depth));
  }
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
  return reached.states == 181'440 && reached.depth == 31 ? 0 : 1;
}
