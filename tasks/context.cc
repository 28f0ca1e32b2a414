#include "tasks/context.h"

#include <cstring>

namespace cariama::tasks {

void close_stack(void* stack_top) { std::memset(stack_top, 0, kStackEndBytes); }

}  // namespace cariama::tasks
