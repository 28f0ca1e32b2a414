// error: cariama: the result of a task travels between processes: return a value, and specialise
// cariama::Transfer for its type (tasks/transfer.h), or put the data into global memory
#include <map>
#include <string>

#include "tasks/runtime.h"

bool example(cariama::TaskRuntime& runtime) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return runtime.run([] { return std::map<int, int>(); }).ok();
#else
  return runtime.run([] { return std::string(); }).ok();
#endif
}
