#include "dtutils/internal/flush_cells.h"

#include <deque>
#include <mutex>
#include <vector>

namespace cariama::internal {
namespace {

struct Pool {
  std::mutex mutex;
  std::deque<FlushCell> cells;
  std::vector<FlushCell*> unused;
};

Pool& pool() {
  static Pool* const immortal = new Pool;
  return *immortal;
}

}  // namespace

FlushCell* take_flush_cell() {
  const std::lock_guard lock(pool().mutex);
  if (pool().unused.empty()) return &pool().cells.emplace_back();
  FlushCell* const cell = pool().unused.back();
  pool().unused.pop_back();
  return cell;
}

void return_flush_cell(FlushCell* cell) {
  const std::lock_guard lock(pool().mutex);
  pool().unused.push_back(cell);
}

}  // namespace cariama::internal
