#include "bench/support/pool_programs.h"

#include <array>
#include <bit>
#include <cstdint>

namespace cariama::bench {
namespace {

[[gnu::noinline]] long pool_fib(long n) {
  if (n < 2) return n;
  pool::Children<pool_fib> left;
  left.spawn(n - 1);
  const long right = pool::call<pool_fib>(n - 2);
  return left.sync() + right;
}

[[gnu::noinline]] uint64_t pool_btc(int depth, int iter) {
  uint64_t count = 1;
  if (depth == 0) return count;
  for (int i = 0; i < iter; ++i) {
    pool::Children<pool_btc> children;
    children.spawn(depth - 1, iter);
    children.spawn(depth - 1, iter);
    count += children.sync();
    count += children.sync();
  }
  return count;
}

// ---- UTS ----

UtsCount pool_uts(const UtsNode& node);
UtsCount pool_uts_node(const UtsNode& node);

// Counts the subtrees of the children [begin, end), by halves.
UtsCount pool_uts_halves(const UtsNode& parent, int begin, int end) {
  if (end - begin == 1) return pool_uts_node(uts_child(parent, begin));
  const int middle = begin + (end - begin) / 2;
  pool::Children<pool_uts_halves> low;
  low.spawn(parent, begin, middle);
  UtsCount count = pool::call<pool_uts_halves>(parent, middle, end);
  count.add(low.sync());
  return count;
}

UtsCount pool_uts_node(const UtsNode& node) {
  const int children = uts_children(uts_tree(), node);
  UtsCount count{1, static_cast<uint64_t>(node.depth), children == 0 ? uint64_t{1} : 0};
  if (children != 0) count.add(pool_uts_halves(node, 0, children));
  return count;
}

// One task for each child but the last.
UtsCount pool_uts(const UtsNode& node) {
  const int children = uts_children(uts_tree(), node);
  UtsCount count{1, static_cast<uint64_t>(node.depth), children == 0 ? uint64_t{1} : 0};
  if (children == 0) return count;
  pool::Children<pool_uts> spawned;
  for (int i = 0; i + 1 < children; ++i) spawned.spawn(uts_child(node, i));
  count.add(pool::call<pool_uts>(uts_child(node, children - 1)));
  while (!spawned.empty()) count.add(spawned.sync());
  return count;
}

// ---- n queens ----

struct PoolBoard {
  std::array<uint8_t, 20> column;  // column of the queen in each row
};

uint32_t legal_columns(int n, const PoolBoard& board, int row) {
  uint32_t legal = 0;
  for (int column = 0; column < n; ++column) {
    bool is_legal = true;
    for (int i = 0; is_legal && i < row; ++i) {
      const int other = board.column[static_cast<size_t>(i)];
      is_legal = other != column && other - (row - i) != column && other + (row - i) != column;
    }
    if (is_legal) legal |= uint32_t{1} << column;
  }
  return legal;
}
PoolBoard with_queen(PoolBoard board, int row, uint32_t legal) {
  board.column[static_cast<size_t>(row)] = static_cast<uint8_t>(std::countr_zero(legal));
  return board;
}

// Requires: `legal` is not empty.
uint64_t pool_queens_halves(int n, const PoolBoard& board, int row, uint32_t legal) {
  const int count = std::popcount(legal);
  if (count == 1) {
    const PoolBoard next = with_queen(board, row, legal);
    if (row + 1 == n) return 1;
    const uint32_t below = legal_columns(n, next, row + 1);
    return below == 0 ? 0 : pool_queens_halves(n, next, row + 1, below);
  }
  uint32_t high = legal;
  for (int i = 0; i < count / 2; ++i) high &= high - 1;
  pool::Children<pool_queens_halves> low;
  low.spawn(n, board, row, legal & ~high);
  const uint64_t above = pool::call<pool_queens_halves>(n, board, row, high);
  return low.sync() + above;
}

// One task for each legal placement.
uint64_t pool_queens_each(int n, const PoolBoard& board, int row) {
  if (row == n) return 1;
  pool::Children<pool_queens_each> spawned;
  for (uint32_t legal = legal_columns(n, board, row); legal != 0; legal &= legal - 1) {
    spawned.spawn(n, with_queen(board, row, legal), row + 1);
  }
  uint64_t count = 0;
  while (!spawned.empty()) count += spawned.sync();
  return count;
}

absl::StatusOr<uint64_t> unsigned_of(const absl::StatusOr<long>& value) {
  if (!value.ok()) return value.status();
  return static_cast<uint64_t>(*value);
}

}  // namespace

absl::StatusOr<uint64_t> fib_pool(TaskPool& pool, int n) {
  return unsigned_of(pool.run<pool_fib>(n));
}
absl::StatusOr<uint64_t> btc_pool(TaskPool& pool, int depth, int iter) {
  return pool.run<pool_btc>(depth, iter);
}
absl::StatusOr<UtsCount> uts_pool(TaskPool& pool, TaskLoop loop) {
  const UtsNode root = uts_root(uts_tree());
  return loop == TaskLoop::kHalves ? pool.run<pool_uts_node>(root) : pool.run<pool_uts>(root);
}
absl::StatusOr<uint64_t> queens_pool(TaskPool& pool, int n, TaskLoop loop) {
  const PoolBoard board{};
  if (loop == TaskLoop::kPerChild) return pool.run<pool_queens_each>(n, board, 0);
  return pool.run<pool_queens_halves>(n, board, 0, legal_columns(n, board, 0));
}

}  // namespace cariama::bench
