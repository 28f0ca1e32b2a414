// Shared by the fuzzers that create nodes of search trees.
#ifndef CARIAMA_TESTS_FUZZ_FUZZ_ARENA_H_
#define CARIAMA_TESTS_FUZZ_FUZZ_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mcts/engine/arena.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::mcts {

// Returns an arena without blocks, whose first bytes have the same content for each input: nodes do
// not depend on those of earlier inputs. All inputs get the same arena. A new one would map 8 MiB,
// and the first node would make the kernel clear a huge page.
inline Arena& fuzz_arena() {
  constexpr size_t kFilledBytes = size_t{16} << 10;  // more than the nodes of an input have
  static auto* const budget = new ArenaBudget(uint64_t{1} << 20);
  static auto* const arena = new Arena(*budget);
  arena->clear();
  void* const block = arena->allocate(kFilledBytes);
  require(block != nullptr);
  std::memset(block, 0xa5, kFilledBytes);
  arena->clear();
  return *arena;
}

}  // namespace cariama::mcts

#endif  // CARIAMA_TESTS_FUZZ_FUZZ_ARENA_H_
