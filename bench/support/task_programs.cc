#include "bench/support/task_programs.h"

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "tasks/task.h"

namespace cariama::bench {

// ---- fib ----

// noinline prevents the compiler from merging the two calls or unrolling the recursion: the
// benchmark compares the cost of a call.
[[gnu::noinline]] long fib_plain(long n) {
  if (n < 2) return n;
  const long left = fib_plain(n - 1);
  asm volatile("");
  const long right = fib_plain(n - 2);
  asm volatile("");
  return left + right;
}

[[gnu::noinline]] long fib_tasks(long n) {
  if (n < 2) return n;
  task<long> left = spawn([n] { return fib_tasks(n - 1); });
  const long right = fib_tasks(n - 2);
  return join(std::move(left)) + right;
}

uint64_t fib_value(int n) {
  uint64_t a = 0;
  uint64_t b = 1;
  for (int i = 0; i < n; ++i) a = std::exchange(b, a + b);
  return a;
}
uint64_t fib_spawns(int n) { return fib_value(n + 1) - 1; }

// ---- binary task creation ----

[[gnu::noinline]] uint64_t btc_plain(int depth, int iter) {
  uint64_t count = 1;
  if (depth == 0) return count;
  for (int i = 0; i < iter; ++i) {
    count += btc_plain(depth - 1, iter);
    asm volatile("");
    count += btc_plain(depth - 1, iter);
    asm volatile("");
  }
  return count;
}

[[gnu::noinline]] uint64_t btc_tasks(int depth, int iter) {
  uint64_t count = 1;
  if (depth == 0) return count;
  for (int i = 0; i < iter; ++i) {
    task<uint64_t> a = spawn([=] { return btc_tasks(depth - 1, iter); });
    task<uint64_t> b = spawn([=] { return btc_tasks(depth - 1, iter); });
    count += join(std::move(a));
    count += join(std::move(b));
  }
  return count;
}

uint64_t btc_value(int depth, int iter) {
  uint64_t level = 1;
  uint64_t sum = 1;
  for (int i = 0; i < depth; ++i) sum += level *= 2 * static_cast<uint64_t>(iter);
  return sum;
}

// ---- UTS ----

namespace {

// The tree's options, set in each worker before the run. As arguments of the tasks they would
// travel with every stolen frame.
UtsOptions tree;

UtsCount uts_node(const UtsNode& node, TaskLoop loop);

// Counts the subtrees of the children [begin, end).
UtsCount uts_halves(const UtsNode& parent, int begin, int end) {
  if (end - begin == 1) return uts_node(uts_child(parent, begin), TaskLoop::kHalves);
  const int middle = begin + (end - begin) / 2;
  task<UtsCount> low = spawn([=] { return uts_halves(parent, begin, middle); });
  UtsCount count = uts_halves(parent, middle, end);
  count.add(join(std::move(low)));
  return count;
}

// Forks one task per child, except for the last child.
UtsCount uts_each(const UtsNode& parent, int begin, int end) {
  const UtsNode child = uts_child(parent, begin);
  if (end - begin == 1) return uts_node(child, TaskLoop::kPerChild);
  task<UtsCount> first = spawn([child] { return uts_node(child, TaskLoop::kPerChild); });
  UtsCount count = uts_each(parent, begin + 1, end);
  count.add(join(std::move(first)));
  return count;
}

UtsCount uts_node(const UtsNode& node, TaskLoop loop) {
  const int children = uts_children(tree, node);
  UtsCount count{1, static_cast<uint64_t>(node.depth), children == 0 ? uint64_t{1} : 0};
  if (children == 0) return count;
  count.add(loop == TaskLoop::kHalves ? uts_halves(node, 0, children)
                                      : uts_each(node, 0, children));
  return count;
}

}  // namespace

void set_uts_tree(const UtsOptions& options) { tree = options; }
const UtsOptions& uts_tree() { return tree; }

UtsCount uts_tasks(TaskLoop loop) { return uts_node(uts_root(tree), loop); }

// ---- n queens ----

namespace {

struct Board {
  std::array<uint8_t, 20> column;  // column of the queen in each row
};

bool is_legal(const Board& board, int row, int column) {
  for (int i = 0; i < row; ++i) {
    const int other = board.column[static_cast<size_t>(i)];
    if (other == column || other - (row - i) == column || other + (row - i) == column) return false;
  }
  return true;
}

uint64_t queens_rest(int n, const Board& board, int row);

// Forks by halves over the columns of `legal`. Requires: `legal` is not empty. (Forks over all
// columns, legal or not, would be several times as many as placements, and most would do nothing.)
uint64_t queens_halves(int n, const Board& board, int row, uint32_t legal) {
  const int count = std::popcount(legal);
  if (count == 1) {
    Board next = board;
    next.column[static_cast<size_t>(row)] = static_cast<uint8_t>(std::countr_zero(legal));
    return queens_rest(n, next, row + 1);
  }
  uint32_t high = legal;
  for (int i = 0; i < count / 2; ++i) high &= high - 1;
  const uint32_t low = legal & ~high;
  task<uint64_t> below = spawn([=] { return queens_halves(n, board, row, low); });
  const uint64_t above = queens_halves(n, board, row, high);
  return join(std::move(below)) + above;
}

uint64_t queens_rest(int n, const Board& board, int row) {
  if (row == n) return 1;
  uint32_t legal = 0;
  for (int column = 0; column < n; ++column) {
    if (is_legal(board, row, column)) legal |= uint32_t{1} << column;
  }
  return legal == 0 ? 0 : queens_halves(n, board, row, legal);
}

// Forks one task per legal placement.
uint64_t queens_each(int n, const Board& board, int row, int begin) {
  for (int column = begin; column < n; ++column) {
    if (!is_legal(board, row, column)) continue;
    Board next = board;
    next.column[static_cast<size_t>(row)] = static_cast<uint8_t>(column);
    task<uint64_t> first =
        spawn([=] { return row + 1 == n ? uint64_t{1} : queens_each(n, next, row + 1, 0); });
    const uint64_t count = queens_each(n, board, row, column + 1);
    return join(std::move(first)) + count;
  }
  return 0;
}

uint64_t queens_sequential(int n, Board& board, int row) {
  if (row == n) return 1;
  uint64_t count = 0;
  for (int column = 0; column < n; ++column) {
    if (!is_legal(board, row, column)) continue;
    board.column[static_cast<size_t>(row)] = static_cast<uint8_t>(column);
    count += queens_sequential(n, board, row + 1);
  }
  return count;
}

}  // namespace

uint64_t queens_plain(int n) {
  Board board{};
  return queens_sequential(n, board, 0);
}

uint64_t queens_tasks(int n, TaskLoop loop) {
  const Board board{};
  return loop == TaskLoop::kHalves ? queens_rest(n, board, 0) : queens_each(n, board, 0, 0);
}

uint64_t queens_value(int n) {
  static constexpr uint64_t kSolutions[] = {
      1,   1,    0,     0,     2,      10,      4,        40,       92,       352,
      724, 2680, 14200, 73712, 365596, 2279184, 14772512, 95815104, 666090624};
  return n < static_cast<int>(std::size(kSolutions)) ? kSolutions[n] : 0;
}

}  // namespace cariama::bench
