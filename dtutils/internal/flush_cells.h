// The pool of flush cells. Cells are never freed, because handles to memory may outlive the queue
// pair that used it; a cell taken again goes on counting where it stopped, so that old tags stay
// free. The pool is as large as the most queues that were ever alive at once.
#ifndef CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_
#define CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_

#include "dtutils/memory.h"

namespace cariama::internal {

// Thread-safe.
[[nodiscard]] FlushCell* take_flush_cell();
void return_flush_cell(FlushCell* cell);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_
