// The pool of flush cells. Cells are never freed, because handles to memory may outlive the queue
// pair that used it. A cell that is taken again continues from its last value, so that memory with
// old tags stays free. The pool grows to the largest number of queues that existed at the same
// time.
#ifndef CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_
#define CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_

#include "dtutils/memory.h"

namespace cariama::internal {

// Thread-safe.
[[nodiscard]] FlushCell* take_flush_cell();
void return_flush_cell(FlushCell* cell);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FLUSH_CELLS_H_
