// error: cariama: the result of a task travels between processes: return a value, and specialise
// cariama::Transfer for its type (tasks/transfer.h), or put the data into global memory
#include <map>
#include <vector>

#include "tasks/task.h"

size_t example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  auto child = cariama::spawn([] { return std::map<int, int>(); });
#else
  auto child = cariama::spawn([] { return std::vector<int>(); });
#endif
  return cariama::join(std::move(child)).size();
}
