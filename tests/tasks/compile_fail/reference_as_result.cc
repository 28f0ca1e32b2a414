// error: cariama: the result of a task travels between processes: return a value, and specialise
// cariama::Transfer for its type (tasks/transfer.h), or put the data into global memory
#include "tasks/task.h"

int counter;

int example() {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::join(cariama::spawn([]() -> int& { return counter; }));
#else
  return cariama::join(cariama::spawn([]() -> int { return counter; }));
#endif
}
